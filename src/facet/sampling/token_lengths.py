"""How many characters the tokens of a vocabulary have, as far as bounds on the lengths of texts ask for it.

A *plain* token neither begins nor ends a text, has no escapes, and consists of whole characters. No token may end
within an escape or a character that would not fit: the grammar library would let it go beyond the bound, and complain.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from facet.sampling.bitmask import num_words
from facet.sampling.token_bytes import CONTROL

Bits = NDArray[np.uint32]
Ids = NDArray[np.int64]


class Doubtful(NamedTuple):
    """Packed sets of tokens of which some do not keep within a bound."""

    forbidden: Bits
    to_try: Bits


class TokenLengths:
    """`delimiters`: where texts begin or end; with a backslash among them, escapes begin with it."""

    def __init__(self, spelled: Sequence[bytes], delimiters: bytes) -> None:
        size = self._vocab_size = len(spelled)
        self.counts, is_special = _counts(spelled, delimiters)
        self.needed = self.counts.copy()  # with one more where a token ends within an escape or a character
        self.behind = np.full(size, -1, np.int32)  # how many characters are behind the first delimiter
        self._is_whole, self._has_escapes = np.ones(size, np.bool_), np.zeros(size, np.bool_)
        self._shapes = -1 - np.arange(size)
        shapes: dict[tuple[str, ...], int] = {}
        escape, ends = b"\\" in delimiters, delimiters.replace(b"\\", b"").decode()
        parts = re.compile(f"([{re.escape(ends)}])")
        for token_id in np.flatnonzero(is_special).tolist():
            token = spelled[token_id]
            if token.startswith(CONTROL):  # it is no text
                self.counts[token_id] = self.needed[token_id] = 0
                continue
            text = token.decode(errors="replace")
            self._is_whole[token_id] = "\ufffd" not in text
            self._has_escapes[token_id] = escape and "\\" in text
            is_open = escape and (len(text) - len(text.rstrip("\\"))) % 2 == 1
            self.needed[token_id] += is_open or text.endswith("\ufffd")
            runs = parts.split(text)
            if len(runs) > 1:
                self.behind[token_id] = sum(map(len, runs[2:]))
                shape = tuple(run if index % 2 else str(len(run)) for index, run in enumerate(runs))
                self._shapes[token_id] = shapes.setdefault(shape, len(shapes))
        self._is_simple = self._is_whole & ~self._has_escapes
        self._is_plain = (self.counts > 0) & (self.behind < 0) & self._is_simple
        self.parts = self._packed(~self._is_whole)
        lengths = np.flatnonzero(np.bincount(self.counts[self._is_plain]))[::-1].tolist()
        self._plain = [(length, self._packed(self._is_plain & (self.counts == length))) for length in lengths]
        self.above, self._entering_above = cache(self._above), cache(self._entering)

    def plain_of_each(self, allowed: Bits) -> Iterator[tuple[int, int]]:
        """Each length that plain tokens among these have, from the longest on, and one of them."""
        for length, tokens in self._plain:
            found = allowed & tokens
            if found.any():
                word = int(found.argmax())
                yield length, 32 * word + int(found[word]).bit_length() - 1

    def entering(self, bound: int) -> Doubtful:
        """Tokens that may begin a text, with more characters than that."""
        return self._entering_above(min(bound, int(self.behind.max(initial=0))))  # few bounds are kept

    def groups(self, tokens: Bits) -> Iterator[Ids]:
        """Groups of tokens with equally many characters before, between and behind delimiters, which keep within a
        bound alike."""
        ids = np.flatnonzero(np.unpackbits(tokens.astype("<u4").view(np.uint8), bitorder="little"))
        order = np.argsort(self._shapes[ids], kind="stable")
        yield from np.split(ids[order], 1 + np.flatnonzero(np.diff(self._shapes[ids[order]]))) if len(ids) else ()

    def _above(self, length: int) -> Doubtful:
        """Tokens with more characters."""
        has_delimiters = self._is_simple & (self.behind >= 0)
        is_above = self.needed > length
        return Doubtful(self._packed(is_above & ~has_delimiters), self._packed(is_above & has_delimiters))

    def _entering(self, bound: int) -> Doubtful:
        is_entering = self.behind > bound
        return Doubtful(self._packed(is_entering & ~self._is_simple), self._packed(is_entering & self._is_simple))

    def _packed(self, chosen: NDArray[np.bool_]) -> Bits:
        bits = np.zeros(num_words(self._vocab_size) * 32, np.uint8)
        bits[: self._vocab_size] = chosen
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def _counts(spelled: Sequence[bytes], delimiters: bytes) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """How many characters begin in each token; and which tokens are more than characters of ASCII."""
    ends = np.cumsum([0, *map(len, spelled)])
    codes = np.frombuffer(b"".join(spelled), np.uint8)

    def in_each(is_one: NDArray[np.bool_]) -> NDArray[np.int32]:
        sums = np.concatenate(([0], np.cumsum(is_one)))
        counts: NDArray[np.int32] = np.diff(sums[ends]).astype(np.int32)
        return counts

    is_special = np.isin(codes, np.frombuffer(delimiters, np.uint8)) | (codes >= 0x80)
    return in_each(codes & 0xC0 != 0x80), in_each(is_special) > 0
