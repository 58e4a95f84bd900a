"""Chooses the replica where a request costs least: prompt bytes to compute there, plus a price for those before it.

No replica takes more than its bounded share of the load while another has room. So a prefix that everyone shares
spreads over as many replicas as its requests need, and a busy session moves rather than waits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

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


def cheapest(candidates: Mapping[Replica, float], mean_load: float, limits: RouterLimits) -> Replica | None:
    """The replica that costs least. None: every candidate has its share already. Of equals it is the one that has
    computed least: its cache has room.

    `candidates`: for each, the bytes of the prompt that need not be computed there.
    """
    most, price = limits.most_load(mean_load), limits.bytes_per_request
    best, least = None, (math.inf, 0)
    for replica, hit_bytes in candidates.items():
        if replica.load < most:
            cost = (replica.load * price - hit_bytes, replica.mileage)
            if cost < least:
                best, least = replica, cost
    return best
