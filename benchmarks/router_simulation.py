"""Simulates a large service to compare ways of choosing a replica: the router's own code against three simpler ones.

    python -m benchmarks.router_simulation                       # 1,000 replicas, a million sessions: minutes
    python -m benchmarks.router_simulation --replicas 50 --sessions 20000

Sessions arrive at random. Each belongs to an application, whose system prompt it shares with the application's other
sessions; applications are as popular as Zipf's law has it. A session asks several times, each time with all that was
said before. A replica computes prompts one after the other, skips what its cache has of them, and forgets what was used
longest ago. In the second half of the run replicas die at random, with all they have, and all of them are restarted
once in a rolling restart. Every policy gets the same sessions.

The columns: the share of prompt bytes found in caches; that share of what one endless cache would have found; the
largest load of a replica over the mean, and the 99th percentile over it, both averaged over the run; the time until
answers begin; requests moved to another replica before they began to be answered; answers lost with their replica; the
CPU time of the policy alone, without the simulation around it.
"""

import argparse
import gc
import heapq
import os
import random
import time
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
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
CALLS_PER_CLOCK = 16  # of so many choices, one is timed: the clock takes its time, too


@dataclass(frozen=True, slots=True)
class Sessions:
    """All that is asked, drawn beforehand. The requests of a session are neighbours; their numbers count through."""

    # By session.
    arrivals: Sequence[float]  # seconds
    applications: Sequence[int]
    first_requests: Sequence[int]  # and the number of all requests at the end
    # By request.
    sessions: Sequence[int]
    num_bytes: Sequence[int]  # of the prompt
    best_bytes: Sequence[int]  # of it that an endless cache would have
    seconds: Sequence[float]  # of the answer
    thinking_seconds: Sequence[float]  # after it
    # By application.
    shared_bytes: Sequence[int]  # of its system prompt

    @property
    def duration(self) -> float:
        return self.arrivals[-1]


def draw_sessions(options: argparse.Namespace) -> Sessions:
    draw = np.random.default_rng(options.seed)
    popularity = 1 / np.arange(1, options.applications + 1) ** 1.1
    shared = np.maximum(200, draw.lognormal(0, 0.8, options.applications) * BYTES_OF_SYSTEM_PROMPT).astype(np.int64)
    applications = draw.choice(options.applications, options.sessions, p=popularity / popularity.sum())
    # With so many sessions a second the mean load is as wanted: prompts take little beside answers.
    rate = options.replicas * MEAN_LOAD / (SECONDS_PER_ANSWER * NUM_TURNS)
    num_turns = 1 + draw.exponential(NUM_TURNS - 0.5, options.sessions).astype(np.int64)
    first = np.concatenate(([0], np.cumsum(num_turns)))
    sessions = np.repeat(np.arange(options.sessions), num_turns)
    added = 1 + draw.exponential(BYTES_PER_TURN, len(sessions)).astype(np.int64)
    so_far = np.cumsum(added)
    own = so_far - (so_far - added)[first[:-1]][sessions]  # what was added in this session
    num_bytes = shared[applications][sessions] + own
    # What a session said before is there, and a system prompt that any session before had.
    best = np.concatenate(([0], num_bytes[:-1]))
    is_known = np.ones(options.sessions, bool)
    is_known[np.unique(applications, return_index=True)[1]] = False
    best[first[:-1]] = shared[applications] * is_known

    def ints(values: NDArray[np.int64]) -> Sequence[int]:
        return array("q", values.astype(np.int64).tobytes())

    def floats(values: NDArray[np.float64]) -> Sequence[float]:
        return array("d", values.tobytes())

    return Sessions(
        arrivals=floats(np.cumsum(draw.exponential(1 / rate, options.sessions))),
        applications=ints(applications),
        first_requests=ints(first),
        sessions=ints(sessions),
        num_bytes=ints(num_bytes),
        best_bytes=ints(best),
        seconds=floats(draw.exponential(SECONDS_PER_ANSWER, len(sessions))),
        thinking_seconds=floats(draw.exponential(SECONDS_TO_THINK, len(sessions))),
        shared_bytes=ints(shared),
    )


class Policy(Protocol):
    """Requests and replicas are numbers."""

    def send(self, request: int, avoid: int | None) -> int:
        """Chooses a replica, and counts the request there."""

    def end(self, request: int, replica: int, found_bytes: int) -> None: ...
    def change(self, replica: int, *, is_up: bool) -> None: ...
    def drain(self, replica: int) -> None: ...


class Plain(ABC):
    """What the simple policies share: who is up, and the load of each."""

    def __init__(self, sessions: Sessions, options: argparse.Namespace) -> None:
        self.sessions = sessions
        self.loads = np.zeros(options.replicas, np.int64)
        self.is_up = [True] * options.replicas

    def send(self, request: int, avoid: int | None) -> int:
        replica = self.choose(request, avoid)
        self.loads[replica] += 1
        return replica

    @abstractmethod
    def choose(self, request: int, avoid: int | None) -> int: ...

    def end(self, request: int, replica: int, found_bytes: int) -> None:
        self.loads[replica] -= 1

    def change(self, replica: int, *, is_up: bool) -> None:
        self.is_up[replica] = is_up
        if is_up:
            self.loads[replica] = 0

    def drain(self, replica: int) -> None:
        self.is_up[replica] = False


class RoundRobin(Plain):
    last = 0

    def choose(self, request: int, avoid: int | None) -> int:
        while True:
            self.last = (self.last + 1) % len(self.is_up)
            if self.is_up[self.last] and self.last != avoid:
                return self.last


class LeastLoaded(Plain):
    MUCH = 1 << 40

    def choose(self, request: int, avoid: int | None) -> int:
        return int(self.loads.argmin())

    def change(self, replica: int, *, is_up: bool) -> None:
        self.loads[replica] = 0 if is_up else self.MUCH
        self.is_up[replica] = is_up

    def drain(self, replica: int) -> None:
        self.loads[replica] += self.MUCH


class ConsistentHashing(Plain):
    """By session, which a header would have to name."""

    def __init__(self, sessions: Sessions, options: argparse.Namespace) -> None:
        super().__init__(sessions, options)
        ring = sorted(
            (stable_digest(b"%d %d" % (replica, point)), replica)
            for replica in range(options.replicas)
            for point in range(64)
        )
        self.digests = [digest for digest, _ in ring]
        self.owners = [owner for _, owner in ring]

    def choose(self, request: int, avoid: int | None) -> int:
        place = bisect_right(self.digests, stable_digest(b"session %d" % self.sessions.sessions[request]))
        while True:
            replica = self.owners[place % len(self.owners)]
            if self.is_up[replica] and replica != avoid:
                return replica
            place += 1


class ByPrefix:
    """The router. It sees no names of sessions."""

    def __init__(self, sessions: Sessions, options: argparse.Namespace) -> None:
        self.sessions = sessions
        self.router = Router(RouterLimits(max_keys=options.max_keys))
        self.names = [str(replica) for replica in range(options.replicas)]
        for name in self.names:
            self.router.add(name)
        self.routes: dict[int, Route] = {}
        self.num_sent = self.num_timed = 0
        self.seconds = 0.0

    def send(self, request: int, avoid: int | None) -> int:
        key = self.key(request)
        self.num_sent += 1
        if is_timed := self.num_sent % CALLS_PER_CLOCK == 0:
            began = time.thread_time()
        chosen = self.router.choose(key, avoid=() if avoid is None else {self.names[avoid]})
        assert chosen is not None, "some replica is up"
        self.routes[request] = self.router.begin(key, chosen)
        if is_timed:
            self.seconds += time.thread_time() - began
            self.num_timed += 1
        return int(chosen)

    def end(self, request: int, replica: int, found_bytes: int) -> None:
        self.router.end(self.routes.pop(request), found_bytes, self.sessions.num_bytes[request])

    def change(self, replica: int, *, is_up: bool) -> None:
        (self.router.add if is_up else self.router.remove)(self.names[replica])

    def drain(self, replica: int) -> None:
        self.router.drain(self.names[replica])

    def key(self, request: int) -> RouteKey:
        """Links of the system prompt are the application's, all others the session's own."""
        session, num_bytes = self.sessions.sessions[request], self.sessions.num_bytes[request]
        application = self.sessions.applications[session]
        num_shared = bisect_right(LINK_ENDS, self.sessions.shared_bytes[application])
        num_links = bisect_right(LINK_ENDS, num_bytes)
        shared = [hash((-1, application, link)) for link in range(min(num_shared, num_links))]
        own = [hash((session, link)) for link in range(num_shared, num_links)]
        return RouteKey((*shared, *own), num_bytes)


class Cache:
    """The prefixes of one replica: system prompts and what sessions added to them."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, int] = OrderedDict()  # by session, or by application with a minus sign
        self._num_bytes = 0

    def use(self, application: int, shared: int, session: int, own: int) -> int:
        """Looks a prompt up, and keeps all of it. Returns how many bytes were there."""
        held = self._held
        before = held.pop(~application, 0)
        held[~application] = shared
        own_before = held.pop(session, 0)
        held[session] = own
        self._num_bytes += shared - before + own - own_before
        while self._num_bytes > CACHE_BYTES:
            self._num_bytes -= held.popitem(last=False)[1]
        return before + own_before


@dataclass
class Replica:
    cache: Cache = field(default_factory=Cache)
    num_starts: int = 0
    is_free_at: float = 0.0  # when the prompts before are computed
    running: dict[int, "Running"] = field(default_factory=dict)  # by request
    is_draining: bool = False


class Running(NamedTuple):
    begins: float  # to be answered
    found_bytes: int


class Simulation:
    """Events in order of time, each a call with up to two numbers. Arrivals are in order already."""

    def __init__(self, policy: Policy, sessions: Sessions, options: argparse.Namespace) -> None:
        self.policy, self.sessions, self.options = policy, sessions, options
        self.draw = random.Random(options.seed)
        self.replicas = [Replica() for _ in range(options.replicas)]
        self.to_restart = deque(range(options.replicas))
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], int, int]] = []
        self.num_events = 0
        self.num_bytes = self.found_bytes = self.best_bytes = self.num_moved = self.num_lost = 0
        self.waits, self.peaks, self.highs = array("f"), array("f"), array("f")
        self.asked = array("d", bytes(8 * len(sessions.num_bytes)))

    def run(self) -> None:
        duration = self.sessions.duration
        for _ in range(int(self.options.failures * self.options.replicas)):
            number = self.draw.randrange(self.options.replicas)
            self.at(self.draw.uniform(duration / 2, duration), self.stop, number)
        for _ in range(max(1, int(REPLICAS_AT_A_TIME * self.options.replicas))):
            self.at(duration * 0.6, self.restart_next)
        for number in range(1, 100):
            self.at(duration * number / 100, self.look)
        events = self.events
        for arrival, request in zip(self.sessions.arrivals, self.sessions.first_requests, strict=False):
            while events and events[0][0] <= arrival:
                self.now, _, event, first, second = heapq.heappop(events)
                event(first, second)
            self.now = arrival
            self.ask(request)
        while events:
            self.now, _, event, first, second = heapq.heappop(events)
            event(first, second)

    def at(self, moment: float, event: Callable[..., None], first: int = 0, second: int = 0) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (moment, self.num_events, event, first, second))

    def ask(self, request: int, _: int = 0) -> None:
        self.best_bytes += self.sessions.best_bytes[request]
        self.num_bytes += self.sessions.num_bytes[request]
        self.asked[request] = self.now
        self.send(request)

    def send(self, request: int, avoid: int | None = None) -> None:
        number = self.policy.send(request, avoid)
        replica = self.replicas[number]
        sessions = self.sessions
        session, num_bytes = sessions.sessions[request], sessions.num_bytes[request]
        application = sessions.applications[session]
        shared = sessions.shared_bytes[application]
        found = replica.cache.use(application, shared, session, num_bytes - shared)
        begins = max(self.now, replica.is_free_at) + (num_bytes - found) / BYTES_PER_SECOND
        replica.is_free_at = begins
        replica.running[request] = Running(begins, found)
        place = number + replica.num_starts * len(self.replicas)
        self.at(begins + sessions.seconds[request], self.end, place, request)

    def end(self, place: int, request: int) -> None:
        start, number = divmod(place, len(self.replicas))
        replica = self.replicas[number]
        if replica.num_starts != start:
            return  # it ended with its replica
        begins, found = replica.running.pop(request)
        self.policy.end(request, number, found)
        self.found_bytes += found
        self.waits.append(begins - self.asked[request])
        if request + 1 < self.sessions.first_requests[self.sessions.sessions[request] + 1]:
            self.at(self.now + self.sessions.thinking_seconds[request], self.ask, request + 1)
        if replica.is_draining and not replica.running:
            self.stop(number)

    def restart_next(self, *_: int) -> None:
        if self.to_restart:
            number = self.to_restart.popleft()
            self.replicas[number].is_draining = True
            self.policy.drain(number)
            if not self.replicas[number].running:
                self.stop(number)

    def stop(self, number: int, _: int = 0) -> None:
        """With all it has: an accident, unless it was drained before."""
        before = self.replicas[number]
        for request, running in before.running.items():
            self.policy.end(request, number, running.found_bytes)
        self.policy.change(number, is_up=False)
        self.replicas[number] = Replica(num_starts=before.num_starts + 1)
        self.at(self.now + SECONDS_TO_RESTART, self.start, number, before.is_draining)
        for request, running in before.running.items():
            if running.begins > self.now:
                self.num_moved += 1
                self.send(request, avoid=number)
            else:
                self.num_lost += 1

    def start(self, number: int, was_drained: int) -> None:
        self.policy.change(number, is_up=True)
        if was_drained:
            self.restart_next()

    def look(self, *_: int) -> None:
        loads = np.array([len(replica.running) for replica in self.replicas if not replica.is_draining])
        self.peaks.append(loads.max() / loads.mean())
        self.highs.append(np.quantile(loads, 0.99) / loads.mean())


POLICIES: dict[str, Callable[[Sessions, argparse.Namespace], Policy]] = {
    "Facet's router": ByPrefix,  # first, because it takes longest
    "round-robin": RoundRobin,
    "least loaded": LeastLoaded,
    "consistent hashing": ConsistentHashing,
}


def measure(options: argparse.Namespace, name: str) -> list[str]:
    sessions = draw_sessions(options)
    policy = POLICIES[name](sessions, options)
    simulation = Simulation(policy, sessions, options)
    began = time.process_time()
    gc.disable()  # nothing here refers to itself
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
        f"{policy.seconds / policy.num_timed * 1e6:.0f}" if isinstance(policy, ByPrefix) else "",
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
                   "lost", "us per choice"):  # fmt: skip
        table.add_column(column, justify="right" if column else "left")
    with ProcessPoolExecutor(min(len(POLICIES), os.cpu_count() or 1)) as pool:
        for name, figures in zip(POLICIES, pool.map(partial(measure, options), POLICIES), strict=True):
            table.add_row(name, *figures)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
