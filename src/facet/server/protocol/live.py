"""Wire types of /engine/live."""

from typing import Any

import msgspec


class LiveModel(msgspec.Struct):
    """What requests may name, and what they find there. Only adapters change while the server runs."""

    name: str
    max_model_len: int
    sampling_defaults: dict[str, Any]
    media: list[str]  # what it reads besides text: "image", "audio", "video"
    version: str
    adapters: list[str] = []


class LiveRequests(msgspec.Struct):
    num_running: int
    num_waiting: int
    num_preemptions: int  # ever


class LiveWork(msgspec.Struct):
    """Counters since the start. The difference of two responses over that of their `seconds` is a rate."""

    num_steps: int
    busy_seconds: float  # spent in steps
    num_sampled_tokens: int
    num_computed_tokens: int
    num_prompt_tokens: int  # looked up in the prefix cache
    num_prompt_tokens_hit: int  # found there
    num_drafts: int  # tokens that steps computed before they were known to be right
    num_accepted_drafts: int  # those that were


class LivePages(msgspec.Struct):
    kind: str  # "sliding", "global" or "cached"
    num_pages: int
    cells: list[int]  # how many pages of each cell are of this kind


class LiveArena(msgspec.Struct):
    """The pages of the cache in order, grouped into cells of equal size. Pages of no kind are free."""

    num_pages: int
    page_bytes: int
    pages_per_cell: int
    kinds: list[LivePages]


class LiveResponse(msgspec.Struct):
    seconds: float  # on a clock that only goes forward; the same number means the same moment
    model: LiveModel
    requests: LiveRequests
    work: LiveWork
    arena: LiveArena
