"""Chooses the replica where a request costs least: prompt bytes to compute there, plus a price for those before it.

No replica takes more than its bounded share of the load while another has room. So a prefix that everyone shares
spreads over as many replicas as its requests need, and a busy session moves rather than waits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from facet.router.holdings import Replica


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterLimits:
    max_keys: int = 1 << 19  # links, sessions and pins remembered, about 150 bytes each
    load_factor: float = 1.25  # times the mean load that a replica may have,
    load_slack: int = 4  # or so many requests more than the mean, which batching hides
    bytes_per_request: int = 256  # of prompt that are as dear as one more request beside this one
    stale_share: float = 0.25  # of its length that a prefix counts for which is probably gone

    def most_load(self, mean: float) -> float:
        return max(mean * self.load_factor, mean + self.load_slack)


class Candidate(NamedTuple):
    replica: Replica
    hit_bytes: float  # of the prompt that need not be computed there


def cheapest(candidates: Iterable[Candidate], mean_load: float, limits: RouterLimits) -> Replica | None:
    """None if every candidate has its share already. Of equals the one that has computed least: its cache has room."""
    most = limits.most_load(mean_load)
    within = (candidate for candidate in candidates if candidate.replica.load < most)
    best = min(within, key=lambda candidate: _cost(candidate, limits), default=None)
    return None if best is None else best.replica


def _cost(candidate: Candidate, limits: RouterLimits) -> tuple[float, int]:
    replica, hit_bytes = candidate
    return replica.load * limits.bytes_per_request - hit_bytes, replica.mileage
