"""Runs jobs on media in a few processes of their own, each of which may die without anybody else noticing."""

import os
import pickle
import queue
import subprocess
import threading
from typing import Any

import msgspec

from facet.errors import EngineError, RequestError
from facet.media.limits import refused
from facet.media.worker import Done, Job
from facet.piped_process import read_frame, start_piped, stop_piped, write_frame
from facet.prepared_media import PreparedMedia

_SECONDS_TO_START = 120.0  # on a machine that has much else to do
_KEPT_BYTES = 64 << 20  # by a process that has nothing to do


class MediaWorkers:
    """A bounded number of processes, started when they are first needed. Threads may share it."""

    def __init__(self, num_workers: int | None = None, *, max_seconds: float = 30.0) -> None:
        """`num_workers` None: half of the processor's cores, from two to eight."""
        num_workers = num_workers or max(2, min(8, (os.cpu_count() or 1) // 2))
        self._max_seconds = max_seconds
        self._decoder = msgspec.msgpack.Decoder(Done)
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()  # the one used last is in the caches
        self._all = [_Worker() for _ in range(num_workers)]
        for worker in self._all:
            self._idle.put(worker)

    def run(self, function: str, *arguments: Any, where: str) -> tuple[PreparedMedia, ...]:
        """Calls a function by its dotted name; blocks until a process is free and has done it.

        `where` names the item in error messages.
        """
        job: Job = (function, arguments)
        worker = self._idle.get()
        try:
            answer, timed_out = worker.do(pickle.dumps(job), self._max_seconds)
        finally:
            self._idle.put(worker)
        if answer is None:
            what = f"took longer than {self._max_seconds:g} seconds to decode" if timed_out else "could not be decoded"
            raise refused(f"{where} {what}. Send a smaller or simpler file.")
        done = self._decoder.decode(answer)
        if done.fault is not None:
            raise EngineError(f"{where} could not be prepared: {done.fault}")
        if done.refusal is not None:
            raise RequestError(done.refusal, field=done.field)
        return done.media

    def close(self) -> None:
        """Ends all processes, whatever they are doing."""
        for worker in self._all:
            worker.stop()


class _Worker:
    """One process at a time; used by one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def do(self, job: bytes, max_seconds: float) -> tuple[bytes | None, bool]:
        """The answer to a job, or None and whether time ran out. Without an answer the process is gone."""
        answer, timed_out = self._exchanged(self._running(), job, max_seconds)
        if answer is None:
            self.stop()
        return answer, timed_out

    @staticmethod
    def _exchanged(
        process: "subprocess.Popen[bytes]", job: bytes | None, max_seconds: float
    ) -> tuple[bytes | None, bool]:
        """Sends a job, if there is one, and reads a frame. The process is killed when time runs out."""
        assert process.stdin is not None, "it was started with a pipe"
        assert process.stdout is not None, "it was started with a pipe"
        timed_out = threading.Event()

        def end() -> None:
            timed_out.set()
            process.kill()

        timer = threading.Timer(max_seconds, end)
        timer.start()
        try:
            if job is not None:
                write_frame(process.stdin, job)
            answer = read_frame(process.stdout)
        except OSError:  # it ended before it had read everything
            answer = None
        finally:
            timer.cancel()
        return answer, timed_out.is_set()

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            stop_piped(process)

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._process = start_piped(
                "facet.media.worker",
                {
                    **{name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
                    "PYTHONDONTWRITEBYTECODE": "1",
                    # What a picture needed is there for the next one: glibc would give it back, and 3,000 pages of
                    # memory that come anew take a fifth of the time of a picture of 1024 x 768.
                    "MALLOC_MMAP_THRESHOLD_": str(_KEPT_BYTES),
                    "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
                },
            )
            ready, _ = self._exchanged(self._process, None, _SECONDS_TO_START)
            if ready is None:
                self.stop()
                raise EngineError("A process that decodes media could not be started.")
        return self._process
