"""Packs training examples into the rows of batches.

Batch i depends only on the seed and i, so a run can continue where another ended. Knows examples only as token ids and
marks, and imports no torch, so that workers start quickly.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IGNORED, PROMPT, TARGET = 0, 1, 2  # what predicting the next token of a place counts as

NUM_BATCHES = 999_999  # of a seed
_SEEDS_PER_RUN = NUM_BATCHES + 1  # the last one is for the held-out batch
_TOKENS_PER_DOCUMENT = 192  # fewer than documents have on average, so that there is room for all of them


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
        assert 0 <= index < NUM_BATCHES
        return self._pack(index)

    def held_out(self) -> Batch:
        """From a seed that no batch of this run has."""
        return self._pack(NUM_BATCHES)

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
