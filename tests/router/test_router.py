"""Who gets a request: by prefix, session and load, whatever happens to the replicas."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from facet.router import Route, RouteKey, Router, RouterLimits
from facet.router.route_key import LINK_ENDS, make_pin

NAMES = [f"replica {number}" for number in range(12)]


def made_key(*path: int, session: int | None = None, pin: int | None = None) -> RouteKey:
    """A prompt whose links are named by a path: those that begin alike share links."""
    links = tuple(hash(path[: length + 1]) for length in range(len(path)))
    return RouteKey(links, LINK_ENDS[len(path) - 1] if path else 0, session, pin)


def router_of(count: int, **limits: float) -> Router:
    router = Router(RouterLimits(**limits))  # type: ignore[arg-type]
    for name in NAMES[:count]:
        router.add(name)
    return router


def send(router: Router, key: RouteKey) -> Route:
    name = router.choose(key)
    assert name is not None
    return router.begin(key, name)


def test_the_same_prefix_goes_where_it_was() -> None:
    router = router_of(3)
    conversations = [(number, *range(20)) for number in range(9)]
    homes = {}
    for conversation in conversations:
        route = send(router, made_key(*conversation[:5]))
        homes[conversation] = route.replica
        router.end(route)
    assert set(Counter(homes.values()).values()) == {3}, "prompts that nobody knows are dealt out"
    for length in (8, 12, 20):
        for conversation in conversations:
            route = send(router, made_key(*conversation[:length]))
            assert route.replica == homes[conversation]
            router.end(route)


def test_a_prefix_that_all_share_spreads_with_its_requests() -> None:
    router = router_of(4)
    routes = [send(router, made_key(1, 2, 3, 100 + number)) for number in range(80)]
    assert max(Counter(route.replica for route in routes).values()) <= 80 / 4 + 8
    assert set(Counter(route.replica for route in routes)) == set(NAMES[:4])


def test_a_session_stays_together_and_moves_when_its_replica_is_full() -> None:
    router = router_of(3, load_slack=4)
    first = send(router, made_key(1, session=77))
    router.end(first)
    assert router_of(3).choose(made_key(5, session=77)) == first.replica, "as any other router would have chosen"
    crowd = [send(router, made_key(number, session=77)) for number in range(2, 6)]
    assert {route.replica for route in crowd} == {first.replica}
    assert send(router, made_key(9, session=77)).replica != first.replica


def test_a_cache_that_forgets_is_found_out_and_one_that_keeps_too() -> None:
    router = router_of(2)
    old = made_key(1, *range(9))
    home = send(router, old)
    router.end(home)
    for number in range(2, 40):  # others push it out
        router.end(send(router, made_key(number, *range(9))))
    again = router.begin(old, home.replica)
    assert again.expected_bytes == old.num_bytes
    router.end(again, 0, 600)  # nothing was cached
    other = next(name for name in NAMES[:2] if name != home.replica)
    for number in range(40, 80):
        router.end(send(router, made_key(number, *range(9))))
    busy = [router.begin(made_key(), home.replica) for _ in range(4)]
    assert router.choose(old) == other, "a prefix that is probably gone is not worth waiting for"
    for route in busy:
        router.end(route)
    kept = router.begin(old, home.replica)
    router.end(kept, 600, 600)
    for number in range(80, 120):
        router.end(send(router, made_key(number, *range(9))))
    for _ in range(4):
        router.begin(made_key(), home.replica)
    assert router.choose(old) == home.replica


def test_what_only_one_replica_has_is_asked_there_until_it_is_gone() -> None:
    router = router_of(3)
    route = send(router, made_key(1))
    router.pin(route, "resp_1", owner=b"me")
    router.end(route)
    key = made_key(2, pin=make_pin(b"me", "resp_1"))
    router.drain(route.replica)
    assert router.choose(key) == route.replica
    router.add(route.replica)  # it has started again, and has nothing
    router.begin(made_key(), route.replica)
    assert router.choose(key) != route.replica


def test_nobody_is_chosen_of_none() -> None:
    router = router_of(2)
    assert router.choose(made_key(1), avoid=set(NAMES)) is None
    for name in NAMES[:2]:
        router.drain(name)
    assert router.choose(made_key(1, session=4)) is None


class Histories(RuleBasedStateMachine):
    """Any sequence of events, with a plain count of what is running beside it."""

    limits = RouterLimits(max_keys=64, load_slack=2)

    def __init__(self) -> None:
        super().__init__()
        self.router = Router(self.limits)
        self.routes: list[tuple[Route, int]] = []  # and which start of its replica it went to
        self.starts: Counter[str] = Counter()
        self.alive: dict[str, bool] = {}  # and whether it takes requests
        self.elsewhere: Counter[str] = Counter()

    def running(self, name: str) -> int:
        return sum((route.replica, start) == (name, self.starts[name]) for route, start in self.routes)

    @rule(name=st.sampled_from(NAMES))
    def starts_anew(self, name: str) -> None:
        self.router.add(name)
        self.starts[name] += 1
        self.alive[name] = True
        self.elsewhere[name] = 0

    @rule(name=st.sampled_from(NAMES))
    def drains(self, name: str) -> None:
        self.router.drain(name)
        if name in self.alive:
            self.alive[name] = False

    @rule(name=st.sampled_from(NAMES))
    def dies(self, name: str) -> None:
        self.router.remove(name)
        self.alive.pop(name, None)

    @rule(name=st.sampled_from(NAMES), pending=st.integers(0, 20))
    def reports(self, name: str, pending: int) -> None:
        self.router.report_load(name, pending)
        if name in self.alive:
            self.elsewhere[name] = max(0, pending - self.running(name))

    @rule(
        path=st.lists(st.integers(0, 2), max_size=6),
        session=st.none() | st.integers(0, 3),
        avoid=st.sets(st.sampled_from(NAMES), max_size=3),
    )
    def asks(self, path: list[int], session: int | None, avoid: set[str]) -> None:
        key = made_key(*path, session=session)
        chosen = self.router.choose(key, avoid=avoid)
        assert chosen == self.router.choose(key, avoid=avoid), "choosing changes nothing"
        ready = {name for name, takes in self.alive.items() if takes}
        possible = ready - avoid
        assert (chosen in possible) if possible else chosen is None
        if chosen is None:
            return
        loads = {name: self.running(name) + self.elsewhere[name] for name in ready}
        most = self.limits.most_load((sum(loads.values()) + 1) / len(ready))
        assert loads[chosen] < most or loads[chosen] == min(loads[name] for name in possible)
        self.routes.append((self.router.begin(key, chosen), self.starts[chosen]))

    @precondition(lambda self: self.routes)
    @rule(data=st.data(), cached=st.none() | st.integers(0, 100), is_undone=st.booleans())
    def ends(self, data: st.DataObject, cached: int | None, is_undone: bool) -> None:
        route, _ = self.routes.pop(data.draw(st.integers(0, len(self.routes) - 1)))
        if is_undone:
            self.router.undo(route)
        else:
            self.router.end(route, cached, 100)

    @invariant()
    def the_books_are_right(self) -> None:
        assert sorted(self.router.ready) == sorted(name for name, takes in self.alive.items() if takes)
        for name in self.alive:
            assert self.router.num_running(name) == self.running(name)
            assert self.router.load_of(name) == self.running(name) + self.elsewhere[name]
        assert self.router.num_keys <= self.limits.max_keys + 2 * (len(LINK_ENDS) + 1)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
