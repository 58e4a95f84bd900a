"""Simulates a large service to compare ways of choosing a replica: the router's own code against three simpler ones.

    python -m benchmarks.router_simulation                       # 1,000 replicas, a million sessions: minutes
    python -m benchmarks.router_simulation --replicas 50 --sessions 20000

Sessions arrive at random. Each belongs to an application, whose system prompt it shares with the application's other
sessions; applications are as popular as Zipf's law has it. A session asks several times, each time with all that was
said before. A replica computes prompts one after the other, skips what its cache has of them, and forgets what was used
longest ago. In the second half of the run replicas die at random, with all they have, and all of them are restarted
once in a rolling restart.

The columns: the share of prompt bytes found in caches; that share of what one endless cache would have found; the
largest load of a replica over the mean, and the 99th percentile over it, both averaged over the run; the time until
answers begin; requests moved to another replica before they began to be answered; answers lost with their replica; the
CPU time that the simulation itself took.
"""

import argparse
import heapq
import os
import random
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from facet.router import Route, RouteKey, Router, RouterLimits
from facet.router.route_key import LINK_ENDS, stable_digest

BYTES_PER_SECOND = 80_000  # of prompts that a replica computes: about 20,000 tokens
SECONDS_PER_ANSWER = 8.0  # between first token and last, on average
SECONDS_TO_THINK = 20.0  # before a session asks again, on average
BYTES_PER_TURN = 1_500
BYTES_OF_SYSTEM_PROMPT = 4_000
NUM_TURNS = 2.5  # of a session, on average
CACHE_BYTES = 3_000_000  # of prompts that a replica keeps: about 750,000 tokens
SECONDS_TO_RESTART = 60.0
REPLICAS_AT_A_TIME = 0.02  # of all, in a rolling restart
MEAN_LOAD = 12.0  # requests that a replica has, on average


class Session(NamedTuple):
    number: int
    application: int
    shared_bytes: int  # of the system prompt
    num_bytes: int  # of the whole prompt
    turns_left: int

    def key(self) -> RouteKey:
        """Links of the system prompt are the application's, all others the session's own."""
        num_shared = bisect_right(LINK_ENDS, self.shared_bytes)
        num_links = bisect_right(LINK_ENDS, self.num_bytes)
        shared = [hash((self.application, link)) for link in range(min(num_shared, num_links))]
        own = [hash((self.application, self.number, link)) for link in range(num_shared, num_links)]
        return RouteKey((*shared, *own), self.num_bytes)


class Policy(Protocol):
    def choose(self, session: Session, avoid: int | None) -> int: ...
    def begin(self, session: Session, replica: int) -> None: ...
    def end(self, session: Session, replica: int, found_bytes: float) -> None: ...
    def change(self, replica: int, *, is_up: bool) -> None: ...
    def drain(self, replica: int) -> None: ...


@dataclass
class Plain:
    """What the simple policies share: who is up, and the load of each."""

    num_replicas: int
    loads: np.ndarray = field(init=False)
    is_up: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.loads = np.zeros(self.num_replicas, np.int64)
        self.is_up = np.ones(self.num_replicas, bool)

    def begin(self, session: Session, replica: int) -> None:
        self.loads[replica] += 1

    def end(self, session: Session, replica: int, found_bytes: float) -> None:
        self.loads[replica] -= 1

    def change(self, replica: int, *, is_up: bool) -> None:
        self.is_up[replica] = is_up
        if is_up:
            self.loads[replica] = 0

    def drain(self, replica: int) -> None:
        self.is_up[replica] = False


class RoundRobin(Plain):
    last = 0

    def choose(self, session: Session, avoid: int | None) -> int:
        while True:
            self.last = (self.last + 1) % self.num_replicas
            if self.is_up[self.last] and self.last != avoid:
                return self.last


class LeastLoaded(Plain):
    def choose(self, session: Session, avoid: int | None) -> int:
        return int(np.argmin(np.where(self.is_up, self.loads, 1 << 40)))


class ConsistentHashing(Plain):
    """By session, which a header would have to name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ring = sorted(
            (stable_digest(b"%d %d" % (replica, point)), replica)
            for replica in range(self.num_replicas)
            for point in range(64)
        )

    def choose(self, session: Session, avoid: int | None) -> int:
        place = bisect_right(self.ring, (stable_digest(b"session %d" % session.number), 0))
        while True:
            replica = self.ring[place % len(self.ring)][1]
            if self.is_up[replica] and replica != avoid:
                return replica
            place += 1


class ByPrefix:
    """The router. It sees no names of sessions."""

    def __init__(self, num_replicas: int, max_keys: int) -> None:
        self.router = Router(RouterLimits(max_keys=max_keys))
        for replica in range(num_replicas):
            self.router.add(str(replica))
        self.routes: dict[int, Route] = {}
        self.key = RouteKey()

    def choose(self, session: Session, avoid: int | None) -> int:
        self.key = session.key()
        chosen = self.router.choose(self.key, avoid=() if avoid is None else {str(avoid)})
        assert chosen is not None, "some replica is up"
        return int(chosen)

    def begin(self, session: Session, replica: int) -> None:
        self.routes[session.number] = self.router.begin(self.key, str(replica))

    def end(self, session: Session, replica: int, found_bytes: float) -> None:
        self.router.end(self.routes.pop(session.number), int(found_bytes), session.num_bytes)

    def change(self, replica: int, *, is_up: bool) -> None:
        (self.router.add if is_up else self.router.remove)(str(replica))

    def drain(self, replica: int) -> None:
        self.router.drain(str(replica))


class Cache:
    """The prefixes of one replica: system prompts and what sessions added to them."""

    def __init__(self, capacity: float = float("inf")) -> None:
        self._capacity = capacity
        self._held: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._num_bytes = 0

    def use(self, session: Session) -> int:
        """Looks a prompt up, and keeps all of it. Returns how many bytes were there."""
        found = 0
        own = session.num_bytes - session.shared_bytes
        names = (session.application, -1), (session.application, session.number)
        for name, size in zip(names, (session.shared_bytes, own), strict=True):
            before = self._held.pop(name, 0)
            found += before
            self._held[name] = size
            self._num_bytes += size - before
        while self._num_bytes > self._capacity:
            self._num_bytes -= self._held.popitem(last=False)[1]
        return found


@dataclass
class Replica:
    cache: Cache = field(default_factory=lambda: Cache(CACHE_BYTES))
    num_starts: int = 0
    is_free_at: float = 0.0  # when the prompts before are computed
    running: dict[int, "Running"] = field(default_factory=dict)  # by session
    is_draining: bool = False


class Running(NamedTuple):
    session: Session
    asked: float
    begins: float  # to be answered
    found_bytes: int


class Simulation:
    """Events in order of time, each a call."""

    def __init__(self, policy: Policy, options: argparse.Namespace) -> None:
        self.policy, self.options = policy, options
        self.draw = random.Random(options.seed)
        self.popularity = list(accumulate(1 / (rank + 1) ** 1.1 for rank in range(options.applications)))
        self.system_prompts = [
            max(200, int(self.draw.lognormvariate(0, 0.8) * BYTES_OF_SYSTEM_PROMPT)) for _ in self.popularity
        ]
        self.replicas = [Replica() for _ in range(options.replicas)]
        self.to_restart = deque(range(options.replicas))
        self.endless = Cache()
        # With so many sessions a second the mean load is as wanted: prompts take little beside answers.
        self.rate = options.replicas * MEAN_LOAD / (SECONDS_PER_ANSWER * NUM_TURNS)
        self.duration = options.sessions / self.rate
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.num_events = 0
        self.num_bytes = self.found_bytes = self.best_bytes = self.num_moved = self.num_lost = 0
        self.waits, self.peaks, self.highs = array("f"), array("f"), array("f")

    def run(self) -> None:
        for _ in range(int(self.options.failures * self.options.replicas)):
            number = self.draw.randrange(self.options.replicas)
            self.at(self.draw.uniform(self.duration / 2, self.duration), partial(self.stop, number))
        for _ in range(max(1, int(REPLICAS_AT_A_TIME * self.options.replicas))):
            self.at(self.duration * 0.6, self.restart_next)
        for number in range(1, 100):
            self.at(self.duration * number / 100, self.look)
        self.arrive(0)
        while self.events:
            self.now, _, event = heapq.heappop(self.events)
            event()

    def at(self, moment: float, event: Callable[[], None]) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (moment, self.num_events, event))

    def after(self, mean_seconds: float, event: Callable[[], None]) -> None:
        self.at(self.now + self.draw.expovariate(1 / mean_seconds), event)

    def arrive(self, number: int) -> None:
        application = bisect_right(self.popularity, self.draw.random() * self.popularity[-1])
        shared = self.system_prompts[application]
        num_turns = 1 + int(self.draw.expovariate(1 / (NUM_TURNS - 0.5)))
        self.ask(Session(number, application, shared, shared, num_turns))
        if number + 1 < self.options.sessions:
            self.after(1 / self.rate, partial(self.arrive, number + 1))

    def ask(self, session: Session) -> None:
        more = 1 + int(self.draw.expovariate(1 / BYTES_PER_TURN))
        session = session._replace(num_bytes=session.num_bytes + more, turns_left=session.turns_left - 1)
        self.best_bytes += self.endless.use(session)
        self.num_bytes += session.num_bytes
        self.send(session)

    def send(self, session: Session, avoid: int | None = None) -> None:
        number = self.policy.choose(session, avoid)
        self.policy.begin(session, number)
        replica = self.replicas[number]
        found = replica.cache.use(session)
        begins = max(self.now, replica.is_free_at) + (session.num_bytes - found) / BYTES_PER_SECOND
        replica.is_free_at = begins
        replica.running[session.number] = Running(session, self.now, begins, found)
        ends = begins + self.draw.expovariate(1 / SECONDS_PER_ANSWER)
        self.at(ends, partial(self.end, number, replica.num_starts, session.number))

    def end(self, number: int, start: int, session_number: int) -> None:
        replica = self.replicas[number]
        if replica.num_starts != start:
            return  # it ended with its replica
        session, asked, begins, found = replica.running.pop(session_number)
        self.policy.end(session, number, found)
        self.found_bytes += found
        self.waits.append(begins - asked)
        if session.turns_left:
            self.after(SECONDS_TO_THINK, partial(self.ask, session))
        if replica.is_draining and not replica.running:
            self.stop(number)

    def restart_next(self) -> None:
        if self.to_restart:
            number = self.to_restart.popleft()
            self.replicas[number].is_draining = True
            self.policy.drain(number)
            if not self.replicas[number].running:
                self.stop(number)

    def stop(self, number: int) -> None:
        """With all it has: an accident, unless it was drained before."""
        before = self.replicas[number]
        for running in before.running.values():
            self.policy.end(running.session, number, running.found_bytes)
        self.policy.change(number, is_up=False)
        self.replicas[number] = Replica(num_starts=before.num_starts + 1)
        self.at(self.now + SECONDS_TO_RESTART, partial(self.start, number, before.is_draining))
        for running in before.running.values():
            if running.begins > self.now:
                self.num_moved += 1
                self.send(running.session, avoid=number)
            else:
                self.num_lost += 1

    def start(self, number: int, was_drained: bool) -> None:
        self.policy.change(number, is_up=True)
        if was_drained:
            self.restart_next()

    def look(self) -> None:
        loads = np.array([len(replica.running) for replica in self.replicas if not replica.is_draining])
        self.peaks.append(loads.max() / loads.mean())
        self.highs.append(np.quantile(loads, 0.99) / loads.mean())


POLICIES: dict[str, Callable[[argparse.Namespace], Policy]] = {
    "round-robin": lambda options: RoundRobin(options.replicas),
    "least loaded": lambda options: LeastLoaded(options.replicas),
    "consistent hashing": lambda options: ConsistentHashing(options.replicas),
    "Facet's router": lambda options: ByPrefix(options.replicas, options.max_keys),
}


def measure(options: argparse.Namespace, name: str) -> list[str]:
    simulation = Simulation(POLICIES[name](options), options)
    began = time.process_time()
    simulation.run()
    seconds = time.process_time() - began
    waits = np.array(simulation.waits)
    print(f"{name}: {len(waits):,} answers, {seconds:.0f} s", flush=True)
    return [
        f"{simulation.found_bytes / simulation.num_bytes:.1%}",
        f"{simulation.found_bytes / simulation.best_bytes:.1%}",
        *(f"{np.mean(loads):.2f}" for loads in (simulation.peaks, simulation.highs)),
        *(f"{np.quantile(waits, share):.2f}" for share in (0.5, 0.99)),
        *(f"{count:,}" for count in (simulation.num_moved, simulation.num_lost)),
        f"{seconds / len(waits) * 1e6:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--applications", type=int, default=20_000, help="with a system prompt each")
    parser.add_argument("--failures", type=float, default=0.1, help="deaths, as a share of the replicas")
    parser.add_argument("--max-keys", type=int, default=1 << 22, help="that the router remembers")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    table = Table(title=f"{options.replicas:,} replicas, {options.sessions:,} sessions")
    for column in ("", "hit rate", "of an endless cache", "largest load", "p99 load", "TTFT p50, s", "p99, s", "moved",
                   "lost", "us per request"):  # fmt: skip
        table.add_column(column, justify="right" if column else "left")
    with ProcessPoolExecutor(min(len(POLICIES), os.cpu_count() or 1)) as pool:
        for name, figures in zip(POLICIES, pool.map(partial(measure, options), POLICIES), strict=True):
            table.add_row(name, *figures)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
