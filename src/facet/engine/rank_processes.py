"""Starts the processes of an engine's ranks, hears of their ends, and ends them.

`LocalRanks` are children of this process. `RayRanks` (`ray_ranks.py`) has the same methods for ranks that Ray places on
the nodes of a cluster.
"""

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Protocol

from facet.config import EngineConfig
from facet.engine.addresses import FrontAddresses, Network, in_folder
from facet.engine.gpu_context import begin_context
from facet.engine.start_times import StartClock
from facet.exit_codes import how_it_ended
from facet.large_imports import large_imports
from facet.ranks import Rank

SECONDS_TO_HEAR_OF_AN_END = 1


class RankProcesses(Protocol):
    network: Network  # how the front process listens

    def start(self, config: EngineConfig, front: FrontAddresses, show_progress: bool) -> None: ...

    @property
    def sentinels(self) -> Sequence[int]:
        """File descriptors that can be read once a rank has ended."""

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of the processes on this machine, by rank."""

    def who_ended(self, *, is_told: bool) -> str | None:
        """The rank that ended first, in words. `is_told`: another one told why it ends, which may be because of that
        one; None then means that it was not. Ranks that were killed could not tell."""

    def kill(self) -> None: ...

    def close(self, *, are_asked: bool) -> None:
        """End all that still run, after a moment if they are asked to end, and clean up."""

    @property
    def all_run(self) -> bool: ...


class LocalRanks:
    """Ranks on this machine, each a child process. The system tells of the end of each.

    The processes are there at once and import for seconds; what to run they are told at the `start`.
    """

    def __init__(self, size: int, device: str) -> None:
        """`device`: as the config has it."""
        self._folder = tempfile.TemporaryDirectory(prefix="facet-")
        self.network = in_folder(Path(self._folder.name))
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._tasks: list[Connection] = []
        # A fresh interpreter: a fork would copy threads' locks and, on a GPU, a context that cannot be used.
        spawn = multiprocessing.get_context("spawn")
        for index in range(size):
            theirs, task = spawn.Pipe(duplex=False)
            process = spawn.Process(
                target=run_rank,
                args=(Rank(index=index, size=size), device, self.network, theirs, time.monotonic()),
                name=f"facet-{index}",
                daemon=True,
            )
            with _interrupts_ignored():
                process.start()
            theirs.close()
            self._processes.append(process)
            self._tasks.append(task)

    def start(self, config: EngineConfig, front: FrontAddresses, show_progress: bool) -> None:
        for task in self._tasks:
            with contextlib.suppress(OSError):  # one that has ended is heard of
                task.send((config, front, show_progress))

    @property
    def sentinels(self) -> Sequence[int]:
        return [process.sentinel for process in self._processes]

    @property
    def process_ids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes if process.pid is not None)

    @property
    def all_run(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def who_ended(self, *, is_told: bool) -> str | None:
        codes = self._exit_codes()
        deadline = time.monotonic() + SECONDS_TO_HEAR_OF_AN_END
        # A rank that lost another tells of it at once, and perhaps before the system does.
        while len(codes) > 1 and None in codes and not any((code or 0) < 0 for code in codes):
            if not wait([each.sentinel for each in self._processes if each.is_alive()], deadline - time.monotonic()):
                break
            codes = self._exit_codes()
        ended = [index for index, code in enumerate(codes) if code is not None]
        first = min(ended, key=lambda index: codes[index] or 0, default=None)
        if first is None or (is_told and (codes[first] or 0) >= 0):
            return None
        who = "engine process" if len(codes) == 1 else f"engine process of rank {first}"
        return f"The {who} {how_it_ended(codes[first] or 0)}."

    def _exit_codes(self) -> list[int | None]:
        """The exit code of each process. None: it runs. A sentinel tells of an end a moment before there is a code."""
        for process in self._processes:
            if wait([process.sentinel], 0):
                process.join()
        return [process.exitcode for process in self._processes]

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def close(self, *, are_asked: bool = False) -> None:
        if are_asked:
            self._processes[0].join(timeout=5)
        # Others have been told by rank 0; after a second they are not asked again.
        for process in self._processes:
            process.join(timeout=1 if self._processes[0].exitcode == 0 else 0)
            process.kill()
            process.join()
        for task in self._tasks:
            task.close()
        self._folder.cleanup()


@contextlib.contextmanager
def begun_early(config: EngineConfig) -> Iterator[LocalRanks | None]:
    """Processes for the engine of a server, which import while this one does the same and reads files.

    None: they are not on this machine, or there can be none.
    """
    if config.distributed_executor_backend == "ray" or config.tensor_parallel_size < 1:
        yield None
        return
    with contextlib.closing(LocalRanks(config.tensor_parallel_size, config.device)) as ranks:
        yield ranks


def run_rank(rank: Rank, device: str, network: Network, task: Connection, started: float) -> None:
    """What a new process runs."""
    from facet.runner.compile_process import begin_early

    clock = StartClock(started)
    compiling = begin_early(device)
    begin_context(device, rank)
    # Read when torch is loaded. Threads without work sleep: other processes, such as the front, need the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Imported there and not here: torch takes seconds and 150 MB that a front process has no use for.
    with large_imports():
        from facet.engine.process import run_engine_process

    clock.ends("imports")
    try:
        config, front, show_progress = task.recv()
    except EOFError:
        return  # the front process has found nothing to run, or is gone
    clock.ends("files")
    run_engine_process(config, rank, network, front, clock, show_progress, compiling=compiling)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignores interrupts while a process is started: Ctrl-C reaches it too, before it can say that its parent sees to
    that."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's to arrange
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
