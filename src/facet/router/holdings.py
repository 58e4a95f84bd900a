"""Remembers which replicas hold which prefixes, in bounded memory.

A replica computes a prompt and keeps its keys until other prompts push them out. How soon that is depends on its memory
and its work, which the router does not know; it counts the bytes each replica was given to compute, its *mileage*, and
learns from answers after how many of them a prefix is gone.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_MOST_HOLDERS = 4  # of one prefix: among more of them the choice is no better


@dataclass(slots=True, eq=False)
class Replica:
    """One start of a replica: after the next its cache is empty, and it is another `Replica`."""

    name: str
    digest: int  # of the name, the same in every process
    is_ready: bool = True
    is_gone: bool = False
    num_running: int = 0  # requests this router has sent it
    num_elsewhere: int = 0  # requests it has from others
    load: int = 0  # the sum of both, which every choice asks for
    mileage: int = 0
    retention: float = float("inf")  # the mileage after which prefixes were seen to be gone

    def learn(self, age: int, expected: float, found: float) -> None:
        """Learns how much of a prefix of such an age was expected in the cache, and how much was found."""
        if found < expected / 2:
            self.retention = min(self.retention, age)
        else:
            self.retention = max(self.retention, age)


class Holding(NamedTuple):
    """A replica computed something when it had that mileage."""

    replica: Replica
    mileage: int

    @property
    def age(self) -> int:
        return self.replica.mileage - self.mileage

    @property
    def is_fresh(self) -> bool:
        return self.age <= self.replica.retention


class Found(NamedTuple):
    """How much of a prefix a replica holds."""

    holding: Holding
    num_links: int


class Holdings:
    """Links, sessions and pins are all 64-bit keys here. Old ones are dropped by generations."""

    def __init__(self, max_keys: int) -> None:
        self._generation_size = max(1, max_keys // 2)
        self._young: dict[int, tuple[Holding, ...]] = {}
        self._old: dict[int, tuple[Holding, ...]] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def of(self, key: int) -> tuple[Holding, ...]:
        """The holdings of a key, the newest first."""
        return self._young.get(key) or self._old.get(key, ())

    def find(self, links: Sequence[int], most: int) -> list[Found]:
        """The holders of the longest prefixes, each once, the longest first."""
        found: dict[Replica, Found] = {}
        young, old = self._young.get, self._old.get  # not `of`: this loop is most of what a choice takes
        last: tuple[Holding, ...] | None = None
        for num_links in range(len(links), 0, -1):
            link = links[num_links - 1]
            holdings = young(link) or old(link)
            if holdings is last:  # as those of one request are, see `record`; or nobody's
                continue
            last = holdings
            for holding in holdings or ():
                if holding.replica not in found and not holding.replica.is_gone:
                    found[holding.replica] = Found(holding, num_links)
            if len(found) >= most:
                break
        return list(found.values())

    def held_by(self, replica: Replica, links: Sequence[int]) -> Found | None:
        """The longest prefix that this replica holds."""
        young, old = self._young.get, self._old.get
        last: tuple[Holding, ...] | None = None
        for num_links in range(len(links), 0, -1):
            link = links[num_links - 1]
            holdings = young(link) or old(link)
            if holdings is last:
                continue
            last = holdings
            for holding in holdings or ():
                if holding.replica is replica:
                    return Found(holding, num_links)
        return None

    def record(self, keys: Iterable[int], holding: Holding) -> None:
        young, old = self._young, self._old.get
        before: tuple[Holding, ...] | None = None
        after: tuple[Holding, ...] = (holding,)
        for key in keys:
            found = young.get(key) or old(key)
            if found is not before:
                before = found
                after = (holding, *_others(before or (), holding.replica))
            young[key] = after  # neighbours had the same visitors and share a tuple, which saves memory
        if len(young) > self._generation_size:
            self._old, self._young = young, {}

    def discard(self, keys: Iterable[int], holding: Holding) -> None:
        """Takes back what was recorded of a request that its replica never computed."""
        for key in keys:
            if holding in (before := self._young.get(key, ())):
                self._young[key] = tuple(one for one in before if one is not holding)


def _others(holdings: tuple[Holding, ...], replica: Replica) -> list[Holding]:
    others = [one for one in holdings if one.replica is not replica and not one.replica.is_gone]
    return others[: _MOST_HOLDERS - 1]
