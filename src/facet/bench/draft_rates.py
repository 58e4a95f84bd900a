"""Reads what a server says of its drafts in /metrics, by vLLM's names, and prints what became of them in a run."""

import asyncio
import re
from collections.abc import Iterator

from facet.bench.client import BenchClient
from facet.bench.http_client import ExchangeError
from facet.draft_counts import NO_DRAFTS, DraftCounts

_SECONDS_FOR_METRICS = 30.0
_LINE = re.compile(r"^vllm:spec_decode_num_(\w+?)_total(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_PLACE = re.compile(r'position="(\d+)"')


async def ask_draft_counts(client: BenchClient) -> DraftCounts:
    """The server's counts of drafts; zeros where it does not draft, or has no such page."""
    try:
        async with asyncio.timeout(_SECONDS_FOR_METRICS):
            response = await client.http.get(client.url.target("/metrics"))
    except (ExchangeError, TimeoutError):
        return NO_DRAFTS
    return parse_draft_counts(response.body.decode(errors="replace")) if response.status == 200 else NO_DRAFTS


def parse_draft_counts(text: str) -> DraftCounts:
    """Sums over engines and models, should there be several."""
    sums = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
    by_place: dict[int, int] = {}
    for name, labels, value in _LINE.findall(text):
        place = _PLACE.search(labels)
        if name in sums:
            sums[name] += int(float(value))
        elif name == "accepted_tokens_per_pos" and place is not None:
            by_place[int(place[1])] = by_place.get(int(place[1]), 0) + int(float(value))
    return DraftCounts(
        num_runs=sums["drafts"],
        num_drafts=sums["draft_tokens"],
        num_accepted=sums["accepted_tokens"],
        num_accepted_by_place=tuple(by_place.get(place, 0) for place in range(max(by_place, default=-1) + 1)),
    )


def counted_between(before: DraftCounts, after: DraftCounts) -> DraftCounts:
    earlier = (*before.num_accepted_by_place, *(0,) * len(after.num_accepted_by_place))
    return DraftCounts(
        num_runs=after.num_runs - before.num_runs,
        num_drafts=after.num_drafts - before.num_drafts,
        num_accepted=after.num_accepted - before.num_accepted,
        num_accepted_by_place=tuple(
            now - then for now, then in zip(after.num_accepted_by_place, earlier, strict=False)
        ),
    )


def rates_of(drafts: DraftCounts) -> Iterator[tuple[str, float]]:
    """Rows of the result, as vLLM names them; none without drafts."""
    if not drafts.num_runs:
        return
    yield "Acceptance rate (%):", 100 * drafts.num_accepted / max(1, drafts.num_drafts)
    yield "Acceptance length:", 1 + drafts.num_accepted / drafts.num_runs
    yield "Drafts:", drafts.num_runs
    yield "Draft tokens:", drafts.num_drafts
    yield "Accepted tokens:", drafts.num_accepted
    for place, count in enumerate(drafts.num_accepted_by_place):
        if count:
            yield f"  Position {place} (%):", 100 * count / drafts.num_runs
