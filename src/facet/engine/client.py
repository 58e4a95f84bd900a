"""The engine as callers use it, in a process of its own: submit, cancel, receive.

`LocalEngine` (`local_engine.py`) is the same for an engine in this process. Both speak the same messages, so that what
runs offline in one process is what serves in two. Nothing here imports torch: only the process that computes does.
"""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from facet.config import EngineConfig
from facet.engine.addresses import FROM_ENGINE, TO_ENGINE, address
from facet.engine.messages import AskStats, Cancel, Died, EngineInfo, FromEngine, Shutdown, Stats, Submit, ToEngine
from facet.errors import ConfigError, EngineDeadError
from facet.ranks import Rank
from facet.request import Request

SECONDS_TO_HEAR_OF_AN_END = 1


class EngineClient(Protocol):
    """What callers need of an engine."""

    info: EngineInfo

    def submit(self, request: Request) -> None:
        """Send a request; its tokens, or its refusal, come from `receive`."""

    def cancel(self, request_id: str) -> None:
        """Ask for an early end; a message with finish_reason "abort" confirms it, unless the request ended first."""

    def receive(self, timeout: float | None = None) -> Sequence[FromEngine]:
        """The next messages; nothing if none come within `timeout` seconds. Raises EngineDeadError once it is dead."""

    def stats(self) -> Stats: ...

    def close(self) -> None: ...


class RemoteEngine:
    """An engine in a process of its own, or one for each rank. One thread may receive while others submit and cancel.

    The ranks are children of this process, which hears of the end of each: when one ends, so do the others at once.
    """

    def __init__(self, config: EngineConfig, *, show_progress: bool = False) -> None:
        if config.tensor_parallel_size < 1:
            raise ConfigError(f"--tensor-parallel-size is {config.tensor_parallel_size}, but must be 1 or more.")
        self._folder = tempfile.TemporaryDirectory(prefix="facet-")
        self._context = zmq.Context()
        self._to_engine, self._from_engine = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self._to_engine.setsockopt(zmq.LINGER, 0)
        folder = Path(self._folder.name)
        self._to_engine.bind(address(folder, TO_ENGINE))
        self._from_engine.bind(address(folder, FROM_ENGINE))
        self._sending = threading.Lock()  # a socket belongs to one thread at a time
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[FromEngine])
        self._kept: Sequence[FromEngine] = ()
        self._death: EngineDeadError | None = None
        # A fresh interpreter: a fork would copy threads' locks and, on a GPU, a context that cannot be used.
        spawn = multiprocessing.get_context("spawn")
        ranks = [Rank(index=index, size=config.tensor_parallel_size) for index in range(config.tensor_parallel_size)]
        self._processes = [
            spawn.Process(
                target=run_engine,
                args=(config, rank, folder, time.monotonic(), show_progress),
                name=f"facet-{rank.index}",
                daemon=True,
            )
            for rank in ranks
        ]
        self._poller = zmq.Poller()
        self._poller.register(self._from_engine, zmq.POLLIN)
        try:
            for process in self._processes:
                with _interrupts_ignored():
                    process.start()
                self._poller.register(process.sentinel, zmq.POLLIN)
            self.info = self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def is_dead(self) -> bool:
        """Whether a caller of `receive` has learned that it ended."""
        return self._death is not None

    @property
    def process_id(self) -> int | None:
        """Of rank 0."""
        return self._processes[0].pid

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of all ranks."""
        return tuple(process.pid for process in self._processes if process.pid is not None)

    def submit(self, request: Request) -> None:
        self._send(Submit(request))

    def cancel(self, request_id: str) -> None:
        self._send(Cancel(request_id))

    def receive(self, timeout: float | None = None) -> Sequence[FromEngine]:
        if self._kept:
            messages, self._kept = self._kept, ()
            return messages
        messages = self._next_messages(timeout)
        if messages and isinstance(messages[-1], Died):
            raise self._died(messages[-1].as_error())
        return messages

    def stats(self) -> Stats:
        """Ask and wait; messages that come first are kept for `receive`."""
        self._send(AskStats())
        others: list[FromEngine] = []
        found: Stats | None = None
        while found is None:
            for message in self.receive():
                if isinstance(message, Stats):
                    found = message
                else:
                    others.append(message)
        self._kept = others
        return found

    def close(self) -> None:
        started = [process for process in self._processes if process.pid is not None]
        if started and all(process.is_alive() for process in started):
            self._send_quietly(Shutdown())
            started[0].join(timeout=5)
        # Others have been told by rank 0; after a second they are not asked again.
        for process in started:
            process.join(timeout=1 if started[0].exitcode == 0 else 0)
            process.kill()
            process.join()
        self._to_engine.close()
        self._from_engine.close()
        self._context.term()
        self._folder.cleanup()

    def _wait_until_ready(self) -> EngineInfo:
        (first,) = self._next_messages(None)
        if isinstance(first, EngineInfo):
            return first
        assert isinstance(first, Died), f"an engine begins with {first}"
        raise ConfigError(first.reason) if first.is_users_to_fix else first.as_error()

    def _send(self, message: ToEngine) -> None:
        if self._death is not None:
            raise self._death
        with self._sending:
            self._to_engine.send(self._encoder.encode(message))

    def _send_quietly(self, message: ToEngine) -> None:
        with self._sending:
            try:
                self._to_engine.send(self._encoder.encode(message), zmq.NOBLOCK)
            except zmq.ZMQError:
                return  # it is being closed because it no longer answers; it will be killed

    def _next_messages(self, timeout: float | None) -> Sequence[FromEngine]:
        """The engine's next messages; those of a dying engine come before the error that says it died."""
        if self._death is not None:
            raise self._death
        ready = dict(self._poller.poll(None if timeout is None else int(timeout * 1000)))
        if self._from_engine in ready:
            return self._decoder.decode(self._from_engine.recv())
        if ready:
            if self._from_engine.poll(100):
                return self._decoder.decode(self._from_engine.recv())
            raise self._died(None)
        return ()

    def _died(self, told: EngineDeadError | None) -> EngineDeadError:
        """The end of all ranks, because one of them ended: by itself, or as it told. Killed ones could not tell."""
        codes = [process.exitcode for process in self._processes]
        deadline = time.monotonic() + SECONDS_TO_HEAR_OF_AN_END
        # A rank that lost another tells of it at once, and perhaps before the system does.
        while len(codes) > 1 and None in codes and not any((code or 0) < 0 for code in codes):
            if not wait([each.sentinel for each in self._processes if each.is_alive()], deadline - time.monotonic()):
                break
            codes = [process.exitcode for process in self._processes]
        ended = [index for index, code in enumerate(codes) if code is not None]
        first = min(ended, key=lambda index: codes[index] or 0, default=None)
        if told is None or (first is not None and (codes[first] or 0) < 0):
            assert first is not None, "a process has ended"
            who = "engine process" if len(codes) == 1 else f"engine process of rank {first}"
            told = EngineDeadError(f"The {who} ended unexpectedly (exit code {codes[first]}). Requests in it are lost.")
        for process in self._processes:
            process.kill()
        self._death = told
        return told


def run_engine(config: EngineConfig, rank: Rank, folder: Path, started: float, show_progress: bool) -> None:
    """What the new process runs."""
    # Read when torch is loaded. Threads without work sleep: other processes, such as the front, need the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Imported there and not here: torch takes seconds and 150 MB that a front process has no use for.
    from facet.engine.process import run_engine_process

    run_engine_process(config, rank, folder, started, show_progress)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """For a process that is being started: Ctrl-C reaches it too, before it can say that its parent sees to that."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's to arrange
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
