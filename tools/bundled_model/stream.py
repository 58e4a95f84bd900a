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


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPicture:
    """A picture in an example: one soft token for each of its patches."""

    first: int  # soft token, as a place in the example
    patches: NDArray[np.uint8]  # [number, patch width]
    places: NDArray[np.int32]  # [number, 2]: column and row


class Example(Protocol):
    """One dialogue: its tokens, which of them the model must produce, and the pictures that stand for some of them."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def is_target(self) -> Sequence[bool]: ...
    @property
    def pictures(self) -> Sequence[PlacedPicture]: ...


# A seed in, endless examples out. Sent to worker processes, so it must survive pickling.
ExampleSource = Callable[[int], Iterator[Example]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRoom:
    """How many pictures a batch has room for. Always the same, since a compiled model is compiled for it."""

    num_pictures: int
    num_patches: int  # of one picture, at most
    patch_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPictures:
    """The pictures of a batch; the rest of the room is empty."""

    patches: NDArray[np.uint8]  # [pictures, patches, patch width]
    places: NDArray[np.int32]  # [pictures, patches, 2]
    is_patch: NDArray[np.bool_]  # [pictures, patches]
    # [rows, row length]: 1 + the number of the patch, counted through all of the room, whose row stands there; 0: none
    row_of_token: NDArray[np.int32]


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
    pictures: BatchPictures | None = None  # None: the model reads text only

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


def pack(examples: Iterable[Example], num_rows: int, row_length: int, picture_room: PictureRoom | None = None) -> Batch:
    """Fills the rows with examples in order until they would be full, the longest first into the tightest row.

    Few places stay empty that way. An example longer than a row is passed over, and the last few short ones that no
    row has room for are too. Where there is no room for another picture, the rest stays empty.
    """
    chosen: list[Example] = []
    num_tokens = num_pictures = 0
    for example in examples:
        if len(example.token_ids) > row_length:
            continue
        num_pictures += len(example.pictures)
        if num_pictures > (0 if picture_room is None else picture_room.num_pictures):
            break  # what follows may be about pictures, too, without end
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
    return _lay_out(rows, row_length, picture_room)


def _lay_out(rows: list[list[Example]], row_length: int, picture_room: PictureRoom | None) -> Batch:
    shape = (len(rows), row_length)
    token_ids, document_ids = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
    positions, label_kinds = np.zeros(shape, np.uint16), np.zeros(shape, np.uint8)
    pictures = None if picture_room is None else _empty_pictures(picture_room, shape)
    num_pictures = 0
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
            for picture in example.pictures:
                assert pictures is not None, "there is room for every picture that was chosen"
                _put(picture, pictures, num_pictures, row, start)
                num_pictures += 1
                # That soft tokens follow each other is nothing to learn.
                label_kinds[row, start + picture.first - 1 : start + picture.first + len(picture.patches) - 1] = IGNORED
            start = end
        document_ids[row, start:] = len(examples)
        positions[row, start:] = np.arange(row_length - start)
    return Batch(
        token_ids=token_ids,
        document_ids=document_ids,
        positions=positions,
        label_kinds=label_kinds,
        pictures=pictures,
    )


def _empty_pictures(room: PictureRoom, shape: tuple[int, int]) -> BatchPictures:
    size = (room.num_pictures, room.num_patches)
    return BatchPictures(
        patches=np.zeros((*size, room.patch_width), np.uint8),
        places=np.zeros((*size, 2), np.int32),
        is_patch=np.zeros(size, np.bool_),
        row_of_token=np.zeros(shape, np.int32),
    )


def _put(picture: PlacedPicture, pictures: BatchPictures, index: int, row: int, start: int) -> None:
    """A picture of an example that begins at `start` of a row."""
    number = len(picture.patches)
    pictures.patches[index, :number] = picture.patches
    pictures.places[index, :number] = picture.places
    pictures.is_patch[index, :number] = True
    first_row = 1 + index * pictures.is_patch.shape[1]
    first = start + picture.first
    pictures.row_of_token[row, first : first + number] = np.arange(first_row, first_row + number)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMaker:
    """Makes batch i, any i, at any time."""

    source: ExampleSource
    seed: int
    num_rows: int
    row_length: int
    picture_room: PictureRoom | None = None

    def batch(self, index: int) -> Batch:
        assert 0 <= index < NUM_BATCHES
        return self._pack(index)

    def held_out(self) -> Batch:
        """From a seed that no batch of this run has."""
        return self._pack(NUM_BATCHES)

    def _pack(self, index: int) -> Batch:
        examples = self.source(self.seed * _SEEDS_PER_RUN + index)
        return pack(examples, self.num_rows, self.row_length, self.picture_room)


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
