"""Keeps responses, so that a later request can read them and go on from there.

Bounded in number, age and bytes; the oldest go first. A response belongs to the key it was made with: for every other
key it does not exist.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from facet.server.responses.wire import ResponseObject, Status

Messages = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Stored:
    """Kept as JSON: no object of one response keeps another alive, and its size is known."""

    owner: bytes
    expires: float
    status: Status
    item_ids: tuple[str, ...]
    response: bytes
    conversation: bytes  # messages up to and with this response; without its instructions, which do not carry over

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.conversation)

    def messages(self) -> Messages:
        return msgspec.json.decode(self.conversation, type=Messages)

    def item(self, item_id: str) -> dict[str, Any]:
        """An item of its output."""
        output: Messages = msgspec.json.decode(self.response)["output"]
        return next(item for item in output if item["id"] == item_id)


class ResponseStore:
    def __init__(
        self,
        *,
        max_responses: int = 4096,
        max_bytes: int = 256 << 20,
        max_age_seconds: float = 24 * 3600,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_responses, self._max_bytes, self._max_age_seconds = max_responses, max_bytes, max_age_seconds
        self._clock = clock
        self._stored: dict[str, Stored] = {}  # oldest first
        self._response_of: dict[str, str] = {}  # by the id of an item
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, owner: bytes, response: ResponseObject, conversation: Sequence[dict[str, Any]]) -> None:
        """Keeps a response, or a later state of one that is kept already."""
        self._remove(response.id)
        stored = Stored(
            owner,
            self._clock() + self._max_age_seconds,
            response.status,
            tuple(item.id for item in response.output if item.id),
            msgspec.json.encode(response),
            msgspec.json.encode(conversation),
        )
        self._stored[response.id] = stored
        self._response_of |= dict.fromkeys(stored.item_ids, response.id)
        self._num_bytes += stored.num_bytes
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            self._remove(next(iter(self._stored)))

    def find(self, response_id: str, owner: bytes) -> Stored | None:
        self._remove_expired()
        stored = self._stored.get(response_id)
        return stored if stored is not None and stored.owner == owner else None

    def find_item(self, item_id: str, owner: bytes) -> dict[str, Any] | None:
        """An item of the output of any response."""
        stored = self.find(self._response_of.get(item_id, ""), owner)
        return None if stored is None else stored.item(item_id)

    def delete(self, response_id: str, owner: bytes) -> bool:
        if self.find(response_id, owner) is None:
            return False
        self._remove(response_id)
        return True

    def _remove_expired(self) -> None:
        now = self._clock()
        for response_id, stored in list(self._stored.items()):
            if stored.expires > now:
                break
            self._remove(response_id)

    def _remove(self, response_id: str) -> None:
        stored = self._stored.pop(response_id, None)
        if stored is not None:
            self._num_bytes -= stored.num_bytes
            for item_id in stored.item_ids:
                del self._response_of[item_id]
