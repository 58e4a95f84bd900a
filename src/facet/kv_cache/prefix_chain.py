"""Identifies prefixes of token sequences by a chain of digests, one per link of `TOKENS_PER_LINK` tokens.

A link's digest covers everything up to its end. Two sequences have the same digest at a link exactly when they agree on
all tokens up to there and on the salt. The digest is a cryptographic one, because prompts come from strangers and a
collision would show one the cache of another.
"""

import hashlib
from array import array
from collections.abc import Iterable
from typing import Any

# Fine enough that a short system prompt is found almost whole, coarse enough that long prompts hash in milliseconds.
# Independent of block sizes: those differ by group, and a hit need not end where a block does.
TOKENS_PER_LINK = 16
DIGEST_BYTES = 16


class PrefixChain:
    """The known tokens of one request and their digests. Grows at the end."""

    __slots__ = ("_root", "digests", "last_match", "token_ids")

    def __init__(self, token_ids: Iterable[int], *, salt: str | None = None) -> None:
        self.token_ids = array("i")
        self.digests: list[bytes] = []
        self.last_match: tuple[int, Any] | None = None  # a note the prefix index keeps here
        self._root = hashlib.blake2b((salt or "").encode(), digest_size=DIGEST_BYTES).digest()
        self.extend(token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        self.token_ids.extend(token_ids)
        self.last_match = None
        parent = self.digests[-1] if self.digests else self._root
        num_links = len(self.token_ids) // TOKENS_PER_LINK
        for link in range(len(self.digests), num_links):
            link_bytes = self.token_ids[link * TOKENS_PER_LINK : (link + 1) * TOKENS_PER_LINK].tobytes()
            parent = hashlib.blake2b(parent + link_bytes, digest_size=DIGEST_BYTES).digest()
            self.digests.append(parent)

    def __len__(self) -> int:
        return len(self.token_ids)

    def remainder(self, position: int) -> "array[int]":
        """The tokens in front of `position` that the digest before it does not cover."""
        return self.token_ids[position - position % TOKENS_PER_LINK : position]
