"""Keeps the rows that towers made of media, by content: a second question about a picture runs no tower."""

from collections.abc import Set

from torch import Tensor


class EncoderCache:
    """Up to `max_num_rows` rows. What was not used for the longest time goes first, but never what is still needed:
    for that the cache grows beyond its size, for as long as it must."""

    def __init__(self, max_num_rows: int) -> None:
        self._max_num_rows = max_num_rows
        self._rows: dict[str, Tensor] = {}  # the least recently used first
        self.num_rows = 0

    def __contains__(self, content_key: str) -> bool:
        return content_key in self._rows

    def use(self, content_key: str) -> Tensor:
        """[num_rows, hidden]"""
        rows = self._rows[content_key] = self._rows.pop(content_key)
        return rows

    def add(self, content_key: str, rows: Tensor) -> None:
        assert content_key not in self._rows, "content is encoded once"
        self._rows[content_key] = rows
        self.num_rows += len(rows)

    def trim(self, needed: Set[str]) -> None:
        """Forget what is too much, except for content that is `needed`."""
        if self.num_rows <= self._max_num_rows:
            return
        for key in [key for key in self._rows if key not in needed]:
            self.num_rows -= len(self._rows.pop(key))
            if self.num_rows <= self._max_num_rows:
                return
