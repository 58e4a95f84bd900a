"""Makes batches ahead in worker processes and hands them out in a fixed order. Knows nothing of their content."""

import multiprocessing
import os
import queue
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from tools.bundled_model.stream import NUM_BATCHES, Batch, BatchMaker

_MOST_KEPT = 512  # batches to fall back on, half a gigabyte of the usual size
_MOST_AHEAD_PER_WORKER = 24  # what a worker gets done while the model is being compiled
_SECONDS_BETWEEN_LOOKS = 0.2  # at whether it is time to close


class UsedBatches:
    """The last batches used, to use again: the one longest unused first, and none more than `most_uses` times."""

    def __init__(self, most_uses: int, most_kept: int = _MOST_KEPT) -> None:
        self._most_uses = most_uses
        self._batches: deque[tuple[int, Batch]] = deque(maxlen=most_kept)  # (times used, batch)

    def add(self, batch: Batch) -> None:
        self._batches.append((1, batch))

    def again(self) -> Batch | None:
        """None: there is no batch that may be used once more."""
        for _ in range(len(self._batches)):
            times, batch = self._batches.popleft()
            if times < self._most_uses:
                self._batches.append((times + 1, batch))
                return batch
        return None


class WorkerBatches:
    """Batches made by worker processes. Where those fall behind, earlier batches come again, up to `most_uses` times.

    New batches always come in the order of their index; when an old one comes between them depends on the speed of
    the machine. A thread takes them from the workers as they are made: a batch is many times what a pipe holds, so
    one that a worker has finished is not there for a trainer that only looks in now and then.
    """

    def __init__(
        self,
        maker: BatchMaker,
        num_workers: int,
        most_uses: int,
        first: int = 0,
        most_ahead_per_worker: int = _MOST_AHEAD_PER_WORKER,
    ) -> None:
        # Spawned, not forked: a process that has used a GPU cannot be forked.
        context = multiprocessing.get_context("spawn")
        self._arrivals: Any = context.Queue(num_workers)
        self._held_out_arrival: Any = context.Queue(1)
        self._most_ahead = num_workers * most_ahead_per_worker
        self._used = UsedBatches(most_uses)
        self.num_fresh = 0
        self.num_repeated = 0
        # Shared with the receiver, and touched only by who holds `_news`.
        self._news = threading.Condition()
        self._ahead: dict[int, Batch] = {}
        self._next_index = first
        self._failure: Exception | None = None
        self._is_closing = False
        jobs: list[tuple[Any, Sequence[int | None]]] = [(self._held_out_arrival, [None])]
        jobs += [(self._arrivals, range(first + worker, NUM_BATCHES, num_workers)) for worker in range(num_workers)]
        self._processes = [
            context.Process(target=_make_batches, args=(maker, indices, arrivals), daemon=True)
            for arrivals, indices in jobs
        ]
        for process in self._processes:
            process.start()
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()

    def next(self) -> Batch:
        with self._news:
            self._check()
            if self._next_index not in self._ahead and (repeated := self._used.again()) is not None:
                self.num_repeated += 1
                return repeated
            while self._next_index not in self._ahead:
                self._news.wait()
                self._check()
            batch = self._ahead.pop(self._next_index)
            self._next_index += 1
            self._news.notify()  # there is room again
        self.num_fresh += 1
        self._used.add(batch)
        return batch

    @property
    def num_ahead(self) -> int:
        """Batches that are here and not yet used."""
        with self._news:
            return len(self._ahead)

    def held_out(self) -> Batch:
        batch: Batch = _checked(self._held_out_arrival.get())[1]
        return batch

    def close(self) -> None:
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._receiver.join()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _receive(self) -> None:
        """The receiver: takes batches while there is room, and always while the next one is missing."""
        while True:
            with self._news:
                self._news.wait_for(
                    lambda: (
                        self._is_closing or len(self._ahead) < self._most_ahead or self._next_index not in self._ahead
                    )
                )
                if self._is_closing:
                    return
            try:
                index, batch = _checked(self._arrivals.get(timeout=_SECONDS_BETWEEN_LOOKS))
            except queue.Empty:
                continue
            except RuntimeError as error:
                with self._news:
                    self._failure = error
                    self._news.notify()
                return
            with self._news:
                self._ahead[index] = batch
                self._news.notify()


def _make_batches(maker: BatchMaker, indices: Iterable[int | None], arrivals: Any) -> None:
    """The main function of a worker. None asks for the held-out batch; an error is sent in place of a batch."""
    os.nice(10)  # the trainer, and what it compiles, come first
    try:
        for index in indices:
            arrivals.put((index, maker.held_out() if index is None else maker.batch(index)))
    except Exception as error:
        arrivals.put(("failed", repr(error)))
        raise


def _checked(arrival: tuple[Any, Any]) -> tuple[Any, Any]:
    if arrival[0] == "failed":
        raise RuntimeError(f"A worker that makes training data failed: {arrival[1]}")
    return arrival
