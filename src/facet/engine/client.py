"""The engine as callers use it, in a process of its own: submit, cancel, receive.

`LocalEngine` (`local_engine.py`) is the same for an engine in this process. Both speak the same messages, so that what
runs offline in one process is what serves in two. Nothing here imports torch: only the process that computes does.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

import msgspec
import zmq

from facet.adapter import AdapterSource
from facet.config import EngineConfig
from facet.engine.addresses import FROM_ENGINE, TO_ENGINE, FrontAddresses
from facet.engine.messages import (
    AskStats,
    Cancel,
    Died,
    EngineInfo,
    FromEngine,
    LoadAdapter,
    ResetPrefixCache,
    Shutdown,
    Sleep,
    Stats,
    Submit,
    ToEngine,
    UnloadAdapter,
    WakeUp,
)
from facet.engine.rank_processes import LocalRanks, RankProcesses
from facet.errors import ConfigError, EngineDeadError, RequestError
from facet.request import Request


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

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes, without waiting: before whatever is submitted next."""

    def sleep(self, level: int) -> None:
        """Asks an engine to sleep, without waiting; a `SleepState` comes from `receive`."""

    def wake_up(self) -> None:
        """Asks an engine to wake up, without waiting; a `SleepState` comes from `receive`."""

    def load_adapter(self, source: AdapterSource) -> None:
        """Asks an engine to load an adapter, without waiting; an `AdapterState` comes from `receive`."""

    def unload_adapter(self, name: str) -> None:
        """Asks an engine to forget an adapter, without waiting; an `AdapterState` comes from `receive`."""

    def close(self) -> None: ...


class RemoteEngine:
    """An engine in a process of its own, or one for each rank. One thread may receive while others submit and cancel.

    This process hears of the end of each rank: when one ends, so do the others at once.
    """

    def __init__(
        self, config: EngineConfig, *, show_progress: bool = False, ranks: RankProcesses | None = None
    ) -> None:
        """`ranks`: processes that are there already; they end with the engine."""
        self._ranks = start_ranks(config) if ranks is None else ranks
        self._context = zmq.Context()
        self._to_engine, self._from_engine = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        self._to_engine.setsockopt(zmq.LINGER, 0)
        self._sending = threading.Lock()  # a socket belongs to one thread at a time
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[FromEngine])
        self._kept: Sequence[FromEngine] = ()
        self._death: EngineDeadError | None = None
        self._is_ready = False  # one that loads reads no messages
        try:
            front = FrontAddresses(
                to_engine=self._ranks.network.listen(self._to_engine, TO_ENGINE),
                from_engine=self._ranks.network.listen(self._from_engine, FROM_ENGINE),
            )
            self._ranks.start(config, front, show_progress)
            self._poller = zmq.Poller()
            self._poller.register(self._from_engine, zmq.POLLIN)
            for sentinel in self._ranks.sentinels:
                self._poller.register(sentinel, zmq.POLLIN)
            self.info = self._wait_until_ready()
            self._is_ready = True
        except BaseException:
            self.close()
            raise

    @property
    def is_dead(self) -> bool:
        """Whether a caller of `receive` has learned that it ended."""
        return self._death is not None

    @property
    def process_id(self) -> int | None:
        """The id of rank 0's process, where it is on this machine."""
        return next(iter(self.process_ids), None)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of the processes of all ranks on this machine."""
        return self._ranks.process_ids

    def submit(self, request: Request) -> None:
        try:
            self._send(Submit(request))
        except (OverflowError, UnicodeEncodeError) as error:
            raise RequestError(
                f"The request cannot be sent to the engine: {error}. Its integers need at most 64 bits, and its texts "
                "valid Unicode."
            ) from None

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
        """Asks for the engine's stats and waits; messages that come first are kept for `receive`."""
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

    def reset_prefix_cache(self) -> None:
        self._send(ResetPrefixCache())

    def sleep(self, level: int) -> None:
        self._send(Sleep(level))

    def wake_up(self) -> None:
        self._send(WakeUp())

    def load_adapter(self, source: AdapterSource) -> None:
        self._send(LoadAdapter(source))

    def unload_adapter(self, name: str) -> None:
        self._send(UnloadAdapter(name))

    def close(self) -> None:
        are_asked = self._is_ready and self._death is None and self._ranks.all_run
        if are_asked:
            self._send_quietly(Shutdown())
        self._ranks.close(are_asked=are_asked)
        self._to_engine.close()
        self._from_engine.close()
        self._context.term()

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
        """The end of all ranks, because one of them ended: by itself, or as it told."""
        who = self._ranks.who_ended(is_told=told is not None)
        if who is not None:
            told = EngineDeadError(f"{who} Requests in it are lost.")
        assert told is not None, "a process has ended"
        self._ranks.kill()
        self._death = told
        return told


def start_ranks(config: EngineConfig) -> RankProcesses:
    """A place for every rank, on this machine or on those of a cluster."""
    size = config.tensor_parallel_size
    if size < 1:
        raise ConfigError(f"--tensor-parallel-size is {size}, but must be 1 or more.")
    if config.distributed_executor_backend == "ray":
        from facet.engine.ray_ranks import RayRanks  # needs a package that few installations have

        return RayRanks(config)
    return LocalRanks(size, config.device)
