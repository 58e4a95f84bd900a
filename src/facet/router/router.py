"""Keeps what is known of the replicas and routes requests among them.

The caller moves bytes and watches health; it tells the router what happens, in this order for every request:

    key = make_route_key(path, body, owner=..., session=...)
    name = router.choose(key)               # a pure decision; None: nobody takes requests
    route = router.begin(key, name)         # now it counts as load, and its prompt as known there
    router.end(route, num_cached, num_prompt)   # or router.undo(route), and choose(key, avoid={name}) to try elsewhere

A replica that starts is added, one about to stop is drained, one that stopped is removed; its next start is added anew,
with an empty cache. Nothing here is safe for several threads.
"""

from collections.abc import Collection
from dataclasses import dataclass

from facet.router.choice import RouterLimits, cheapest
from facet.router.holdings import Holding, Holdings, Replica
from facet.router.route_key import RouteKey, make_pin, stable_digest

_FEW_REPLICAS = 8  # all are compared; of more, those that hold something and two others
_SESSION_REQUESTS = 4  # by which the home of a session may be ahead of another replica, however short its prompts
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Route:
    """A request on its way, and what was expected of its replica's cache."""

    key: RouteKey
    holding: Holding
    expected_bytes: int
    expected_age: int

    @property
    def replica(self) -> str:
        return self.holding.replica.name


class Router:
    def __init__(self, limits: RouterLimits | None = None) -> None:
        self._limits = limits or RouterLimits()
        self._replicas: dict[str, Replica] = {}
        self._ready: list[Replica] = []
        self._ready_load = 0  # of those that are ready
        self._holdings = Holdings(self._limits.max_keys)
        self._num_begun = 0

    @property
    def ready(self) -> list[str]:
        """The names of the replicas that take requests."""
        return [replica.name for replica in self._ready]

    def is_ready(self, name: str) -> bool:
        return name in self._replicas and self._replicas[name].is_ready

    @property
    def num_keys(self) -> int:
        """Links, sessions and pins in memory."""
        return len(self._holdings)

    def load_of(self, name: str) -> int:
        return self._replicas[name].load if name in self._replicas else 0

    def num_running(self, name: str) -> int:
        """Requests sent there that have not ended; a draining replica may stop at 0."""
        return self._replicas[name].num_running if name in self._replicas else 0

    def add(self, name: str) -> None:
        """Adds a replica that takes requests, with an empty cache."""
        self.remove(name)
        self._replicas[name] = replica = Replica(name, stable_digest(name.encode()))
        self._ready.append(replica)

    def drain(self, name: str) -> None:
        """Drains a replica: it gets nothing new, except what only it has."""
        replica = self._replicas.get(name)
        if replica is not None and replica.is_ready:
            replica.is_ready = False
            self._ready.remove(replica)
            self._ready_load -= replica.load

    def remove(self, name: str) -> None:
        """Removes a replica that has stopped. Requests still on their way there are ended or undone as others."""
        self.drain(name)
        replica = self._replicas.pop(name, None)
        if replica is not None:
            replica.is_gone = True

    def report_load(self, name: str, num_pending: int) -> None:
        """Takes what a replica says it has to do, which includes requests of other routers."""
        if replica := self._replicas.get(name):
            self._change_load(replica, num_elsewhere=max(0, num_pending - replica.num_running))

    def choose(self, key: RouteKey, *, avoid: Collection[str] = ()) -> str | None:
        """The replica to try first, or next after those to avoid. Changes nothing."""
        if key.pin is not None:
            for holding in self._holdings.of(key.pin):
                if not holding.replica.is_gone and holding.replica.name not in avoid:
                    return holding.replica.name
        if not self._ready:
            return None
        mean_load = (self._ready_load + 1) / len(self._ready)
        candidates = self._candidates(key)
        if avoid:
            candidates = {replica: hit for replica, hit in candidates.items() if replica.name not in avoid}
        replica = cheapest(candidates, mean_load, self._limits)
        if replica is None:  # the few that were looked at have enough to do
            others = [replica for replica in self._ready if replica.name not in avoid]
            replica = min(others, key=lambda replica: (replica.load, replica.mileage), default=None)
        return None if replica is None else replica.name

    def begin(self, key: RouteKey, name: str) -> Route:
        replica = self._replicas[name]
        found = self._holdings.held_by(replica, key.links)
        expected_bytes, expected_age = (key.bytes_up_to(found.num_links), found.holding.age) if found else (0, 0)
        replica.mileage += key.num_bytes - expected_bytes
        holding = Holding(replica, replica.mileage)
        self._holdings.record(_keys(key), holding)
        self._change_load(replica, num_running=replica.num_running + 1)
        self._num_begun += 1
        return Route(key, holding, expected_bytes, expected_age)

    def end(self, route: Route, num_cached: int | None = None, num_prompt: int | None = None) -> None:
        """Ends a request whose answer is over; its usage tells how many of the prompt's tokens were cached, if it
        came."""
        replica = route.holding.replica
        self._change_load(replica, num_running=replica.num_running - 1)
        if num_cached is not None and num_prompt and route.expected_bytes:
            replica.learn(
                route.expected_age, route.expected_bytes / max(1, route.key.num_bytes), num_cached / num_prompt
            )

    def undo(self, route: Route) -> None:
        """Undoes a request that the replica did not take."""
        replica = route.holding.replica
        self._change_load(replica, num_running=replica.num_running - 1)
        self._holdings.discard(_keys(route.key), route.holding)

    def pin(self, route: Route, name: str, *, owner: bytes = b"") -> None:
        """Pins a name to the replica of a route: requests that need what was made there, a stored response say, must go
        there."""
        if pin := make_pin(owner, name):
            self._holdings.record([pin], route.holding)

    def _candidates(self, key: RouteKey) -> dict[Replica, float]:
        """The replicas that take requests, with the bytes of the prompt that each holds."""
        stale = self._limits.stale_share
        hits: dict[Replica, float] = {}
        for holding, num_links in self._holdings.find(key.links, _FEW_REPLICAS):
            if holding.replica.is_ready:
                hits[holding.replica] = key.bytes_up_to(num_links) * (1 if holding.is_fresh else stale)
        if key.session is not None:
            home, is_known = self._home(key.session)
            least = _SESSION_REQUESTS * self._limits.bytes_per_request
            hits[home] = max(least, key.num_bytes if is_known else hits.get(home, 0))
        for replica in self._ready if len(self._ready) <= _FEW_REPLICAS else self._two_of_many(key):
            hits.setdefault(replica, 0)
        return hits

    def _home(self, session: int) -> tuple[Replica, bool]:
        """The replica that had its last request; for a new session the one that every router would think of."""
        for holding in self._holdings.of(session):
            if holding.replica.is_ready:
                return holding.replica, True
        return max(self._ready, key=lambda replica: (session ^ replica.digest) * _ODD & _MASK), False

    def _two_of_many(self, key: RouteKey) -> tuple[Replica, Replica]:
        """Two at random: the one with less to do is nearly as good as the best of all."""
        seed, num_ready = hash((key.links[-1:], key.session, self._num_begun)), len(self._ready)
        return self._ready[(seed & 0xFFFFFFFF) % num_ready], self._ready[(seed >> 32 & 0xFFFFFFFF) % num_ready]

    def _change_load(
        self, replica: Replica, *, num_running: int | None = None, num_elsewhere: int | None = None
    ) -> None:
        before = replica.load
        replica.num_running = replica.num_running if num_running is None else num_running
        replica.num_elsewhere = replica.num_elsewhere if num_elsewhere is None else num_elsewhere
        replica.load = replica.num_running + replica.num_elsewhere
        if replica.is_ready:
            self._ready_load += replica.load - before


def _keys(key: RouteKey) -> tuple[int, ...]:
    return key.links if key.session is None else (*key.links, key.session)
