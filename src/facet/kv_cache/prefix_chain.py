"""Identifies prefixes of token sequences by a chain of digests, one per link of `TOKENS_PER_LINK` tokens.

A link's digest covers everything up to its end. Two sequences have the same digest at a link exactly when they agree on
the salt, on all tokens up to there, and on what stands behind those that are media: the content and the offset in it,
so that two pictures never share a prefix although their placeholder tokens are the same. The digest is a cryptographic
one, because prompts come from strangers and a collision would show one the cache of another.
"""

import hashlib
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from facet.media_span import MediaSpan, end_before_cut, uncuttable

# Fine enough that a short system prompt is found almost whole, coarse enough that long prompts hash in milliseconds.
# Independent of block sizes: those differ by group, and a hit need not end where a block does.
TOKENS_PER_LINK = 16
DIGEST_BYTES = 16


class PrefixChain:
    """The known tokens of one request and their digests. Grows at the end."""

    __slots__ = ("_media", "_media_ends", "_root", "_uncuttable", "digests", "last_match", "token_ids")

    def __init__(self, token_ids: Iterable[int], *, salt: str | None = None, media: Sequence[MediaSpan] = ()) -> None:
        self.token_ids = array("i")
        self.digests: list[bytes] = []
        self.last_match: tuple[int, Any] | None = None  # a note the prefix index keeps here
        self._root = _digest((salt or "").encode())
        self._media = tuple((span, _content_digest(span)) for span in media)
        self._media_ends = [span.end for span in media]
        self._uncuttable = uncuttable(media)
        self.extend(token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        self.token_ids.extend(token_ids)
        self.last_match = None
        parent = self.digests[-1] if self.digests else self._root
        last = len(self.token_ids) - TOKENS_PER_LINK
        for start in range(len(self.digests) * TOKENS_PER_LINK, last + 1, TOKENS_PER_LINK):
            stop = start + TOKENS_PER_LINK
            link_bytes = self.token_ids[start:stop].tobytes()
            if self._media:
                link_bytes += self._media_bytes(start, stop)
            parent = hashlib.blake2b(parent + link_bytes, digest_size=DIGEST_BYTES).digest()
            self.digests.append(parent)

    def __len__(self) -> int:
        return len(self.token_ids)

    def remainder(self, position: int) -> bytes:
        """What stands in front of `position` and is not covered by the digest before it."""
        start = position - position % TOKENS_PER_LINK
        return self.token_ids[start:position].tobytes() + self._media_bytes(start, position)

    def end_before_cut(self, position: int) -> int:
        """The last place up to `position` that is not inside a span that attends both ways."""
        return end_before_cut(self._uncuttable, position) if self._uncuttable else position

    def _media_bytes(self, start: int, stop: int) -> bytes:
        """For each span among these tokens: its content, where it begins here, and how far into it that is."""
        found = b""
        for span, content in self._media[bisect_right(self._media_ends, start) :]:
            begins = max(span.first, start)
            if begins >= stop:
                break
            found += content + struct.pack("<ii", begins - start, begins - span.first)
        return found


def _content_digest(span: MediaSpan) -> bytes:
    """A digest of a span's content and its length: rows that attend both ways depend on all of a span."""
    return _digest(f"{span.kind} {span.length} {span.attends_both_ways} {span.content_key}".encode())


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
