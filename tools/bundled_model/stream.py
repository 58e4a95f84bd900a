"""Training data as the trainer eats it: examples packed into rows, made by worker processes, in a fixed order.

Batch i is a function of the seed and i alone, whoever makes it, so a run can go on where another ended. It knows
examples only as token ids and marks; it imports no torch, so that workers start quickly.
"""

import itertools
import multiprocessing
import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

IGNORED, PROMPT, TARGET = 0, 1, 2  # what predicting the next token of a place counts as

_SEEDS_PER_RUN = 1_000_000
_TOKENS_PER_DOCUMENT = 192  # fewer than documents have on average, so that there is room for all of them
_HELD_OUT_SEED = _SEEDS_PER_RUN - 1  # never reached by a batch index
_MOST_KEPT = 512  # batches to fall back on, half a gigabyte of the usual size
_MOST_WAITING_PER_WORKER = 24  # batches made ahead: what a worker gets done while the model is being compiled


class Example(Protocol):
    """One dialogue: its tokens, and which of them the model must produce."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def is_target(self) -> Sequence[bool]: ...


# A seed in, endless examples out. Sent to worker processes, so it must survive pickling.
ExampleSource = Callable[[int], Iterator[Example]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of whole documents, all arrays [rows, row length].

    Place t of a row predicts the token at t + 1; `label_kinds` says what that prediction counts as. Padding at the end
    of a row is one more document whose every place is ignored.
    """

    token_ids: NDArray[np.uint16]
    document_ids: NDArray[np.uint16]  # from 0, rising along the row
    positions: NDArray[np.uint16]  # from 0 in every document
    label_kinds: NDArray[np.uint8]

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.size)

    @property
    def document_starts(self) -> NDArray[np.int64]:
        """Where documents begin in the rows laid end to end, then the number of tokens, repeated up to a round number:
        a compiled model is compiled for it."""
        is_first = np.ones(self.document_ids.shape, bool)
        is_first[:, 1:] = self.document_ids[:, 1:] != self.document_ids[:, :-1]
        starts = np.flatnonzero(is_first)
        room = max(1, self.num_tokens // _TOKENS_PER_DOCUMENT)
        length = -(-(len(starts) + 1) // room) * room
        return np.concatenate((starts, np.full(length - len(starts), self.num_tokens)))


def pack(examples: Iterable[Example], num_rows: int, row_length: int) -> Batch:
    """Fills the rows with examples in order until they would be full, the longest first into the tightest row.

    Few places stay empty that way. An example longer than a row is passed over, and the last few short ones that no
    row has room for are too.
    """
    chosen: list[Example] = []
    num_tokens = 0
    for example in examples:
        if len(example.token_ids) > row_length:
            continue
        chosen.append(example)
        num_tokens += len(example.token_ids)
        if num_tokens >= num_rows * row_length:
            break
    rows: list[list[Example]] = [[] for _ in range(num_rows)]
    room = [row_length] * num_rows
    for example in sorted(chosen, key=lambda example: len(example.token_ids), reverse=True):
        fitting = [row for row in range(num_rows) if room[row] >= len(example.token_ids)]
        if fitting:
            row = min(fitting, key=room.__getitem__)
            rows[row].append(example)
            room[row] -= len(example.token_ids)
    return _lay_out(rows, row_length)


def _lay_out(rows: list[list[Example]], row_length: int) -> Batch:
    shape = (len(rows), row_length)
    token_ids, document_ids = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
    positions, label_kinds = np.zeros(shape, np.uint16), np.zeros(shape, np.uint8)
    for row, examples in enumerate(rows):
        start = 0
        for document, example in enumerate(examples):
            length = len(example.token_ids)
            end = start + length
            token_ids[row, start:end] = example.token_ids
            document_ids[row, start:end] = document
            positions[row, start:end] = np.arange(length)
            # The last token of a document predicts nothing.
            label_kinds[row, start : end - 1] = np.where(np.asarray(example.is_target[1:], bool), TARGET, PROMPT)
            start = end
        document_ids[row, start:] = len(examples)
        positions[row, start:] = np.arange(row_length - start)
    return Batch(token_ids=token_ids, document_ids=document_ids, positions=positions, label_kinds=label_kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMaker:
    """Makes batch i, any i, at any time."""

    source: ExampleSource
    seed: int
    num_rows: int
    row_length: int

    def batch(self, index: int) -> Batch:
        assert 0 <= index < _HELD_OUT_SEED
        return self._pack(index)

    def held_out(self) -> Batch:
        """From a seed that no batch of this run has."""
        return self._pack(_HELD_OUT_SEED)

    def _pack(self, index: int) -> Batch:
        return pack(self.source(self.seed * _SEEDS_PER_RUN + index), self.num_rows, self.row_length)


class OwnBatches:
    """Batches made when they are asked for, in this process."""

    def __init__(self, maker: BatchMaker, first: int = 0) -> None:
        self._maker = maker
        self._indices = itertools.count(first)
        self.num_fresh = 0
        self.num_repeated = 0

    def next(self) -> Batch:
        self.num_fresh += 1
        return self._maker.batch(next(self._indices))

    def held_out(self) -> Batch:
        return self._maker.held_out()

    def close(self) -> None:
        pass


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
    the machine.
    """

    def __init__(self, maker: BatchMaker, num_workers: int, most_uses: int, first: int = 0) -> None:
        # Spawned, not forked: a process that has used a GPU cannot be forked.
        context = multiprocessing.get_context("spawn")
        self._arrivals: Any = context.Queue(num_workers * _MOST_WAITING_PER_WORKER)
        self._held_out_arrival: Any = context.Queue(1)
        self._early: dict[int, Batch] = {}
        self._used = UsedBatches(most_uses)
        self._next_index = first
        self.num_fresh = 0
        self.num_repeated = 0
        jobs: list[tuple[Any, Sequence[int | None]]] = [(self._held_out_arrival, [None])]
        jobs += [(self._arrivals, range(first + worker, _HELD_OUT_SEED, num_workers)) for worker in range(num_workers)]
        self._processes = [
            context.Process(target=_make_batches, args=(maker, indices, arrivals), daemon=True)
            for arrivals, indices in jobs
        ]
        for process in self._processes:
            process.start()

    def next(self) -> Batch:
        self._receive(wait=False)
        if self._next_index not in self._early and (repeated := self._used.again()) is not None:
            self.num_repeated += 1
            return repeated
        self._receive(wait=True)
        batch = self._early.pop(self._next_index)
        self._next_index += 1
        self.num_fresh += 1
        self._used.add(batch)
        return batch

    def held_out(self) -> Batch:
        batch: Batch = _checked(self._held_out_arrival.get())[1]
        return batch

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()

    def _receive(self, *, wait: bool) -> None:
        """Takes batches until the next one in turn is there, and no more: what is left keeps workers from going on."""
        while self._next_index not in self._early:
            try:
                index, batch = _checked(self._arrivals.get(block=wait))
            except queue.Empty:
                return
            self._early[index] = batch


def _make_batches(maker: BatchMaker, indices: Iterable[int | None], arrivals: Any) -> None:
    """A worker's life. None asks for the held-out batch; an error is sent in place of a batch."""
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
