"""The bridge under random histories: every answer reaches its call, in order, and nothing is left behind."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.engine.messages import EngineInfo, FromEngine, NewTokens, Refused, Stats
from facet.errors import EngineDeadError, FacetError
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.server.engine_bridge import EngineBridge, EngineCall, OverloadedError


@dataclass
class SilentEngine:
    """Says nothing by itself: the test hands the bridge its answers."""

    info: EngineInfo = field(default_factory=lambda: EngineInfo(10, (), 10, "", ()))
    cancelled: list[str] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)
    num_loads: int = 0

    def submit(self, request: Request) -> None:
        self.submitted.append(request.request_id)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def receive(self, timeout: float | None = None) -> Sequence[FromEngine]:
        return ()

    def stats(self) -> Stats:
        return Stats(*[0] * 12)

    def ask_stats(self) -> None: ...

    def reset_prefix_cache(self) -> None: ...

    def load_grammars(self) -> None:
        self.num_loads += 1

    def close(self) -> None: ...


LIMIT = 6
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 3)),
        st.tuples(st.just("token"), st.integers(0, 30)),
        st.tuples(st.just("token"), st.integers(0, 3)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("refuse"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.just("close"), st.integers(0, 30)),
        st.tuples(st.just("read"), st.integers(0, 30)),
    ),
    min_size=10,
    max_size=60,
)


def test_grammars_are_loaded_once_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("facet.server.engine_bridge._SECONDS_BEFORE_GRAMMARS", 0.01)
    monkeypatch.setattr("facet.server.engine_bridge._LOOK_SECONDS", 0.01)
    engine = SilentEngine()

    async def ask() -> None:
        bridge = EngineBridge(engine, max_pending=LIMIT)
        bridge.start()
        call = bridge.submit([Request(request_id="a", prompt_token_ids=(2,), sampling=SamplingParams())])
        await asyncio.sleep(0.2)
        assert engine.num_loads == 0
        call.close()
        for _ in range(500):
            await asyncio.sleep(0.02)
            if engine.num_loads:
                break
        await asyncio.sleep(0.1)
        await bridge.stop()

    asyncio.run(ask())
    assert engine.num_loads == 1


def test_no_grammars_are_loaded_by_an_engine_that_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("facet.server.engine_bridge._SECONDS_BEFORE_GRAMMARS", 0.3)
    monkeypatch.setattr("facet.server.engine_bridge._LOOK_SECONDS", 0.01)
    engine = SilentEngine()

    async def stop_at_once() -> None:
        bridge = EngineBridge(engine, max_pending=LIMIT)
        bridge.start()
        await bridge.stop()
        await asyncio.sleep(0.5)

    asyncio.run(stop_at_once())
    assert engine.num_loads == 0


@given(OPERATIONS, st.none() | st.integers(0, 60))
def test_random_histories(operations: list[tuple[str, int]], death: int | None) -> None:
    operations = [("submit", 2), *operations]
    if death is not None:
        operations.insert(death, ("die", 0))
    asyncio.run(History().play(operations))


class History:
    """What should be so, kept beside the bridge in the plainest way."""

    def __init__(self) -> None:
        self.engine = SilentEngine()
        self.bridge = EngineBridge(self.engine, max_pending=LIMIT)
        self.calls: list[EngineCall] = []
        self.owner: dict[str, tuple[EngineCall, int]] = {}
        self.open: set[str] = set()  # in the engine: not ended, not cancelled
        self.unread: dict[int, list[tuple[int, int]]] = {}  # by call: (index, token id) said and not yet read
        self.broken: set[int] = set()  # calls with a refusal or a death ahead
        self.num_said = 0

    async def play(self, operations: list[tuple[str, int]]) -> None:
        for name, number in operations:
            await getattr(self, name)(number)
            assert self.bridge.num_pending == len(self.open)
        for call in self.calls:
            call.close()
        assert self.bridge.num_pending == 0
        ended = [request_id for request_id in self.owner if request_id not in self.open]
        assert len(self.engine.cancelled) == len(set(self.engine.cancelled))
        assert self.open <= set(self.engine.cancelled), "whoever leaves early must tell the engine"
        assert len(ended) + len(self.open) == len(self.engine.submitted)

    def pick(self, number: int) -> str | None:
        names = list(self.owner)
        return names[number % len(names)] if names else None

    async def submit(self, count: int) -> None:
        ids = self.bridge.new_ids("same", count)
        requests = [Request(request_id=name, prompt_token_ids=(1,), sampling=SamplingParams()) for name in ids]
        try:
            call = self.bridge.submit(requests)
        except OverloadedError:
            assert len(self.open) + count > LIMIT
            return
        except EngineDeadError:
            assert self.bridge.death is not None
            return
        self.calls.append(call)
        self.unread[id(call)] = []
        for index, name in enumerate(ids):
            assert name not in self.owner
            self.owner[name] = (call, index)
            self.open.add(name)

    def say(self, number: int, answer: Any, *, ends: bool) -> None:
        name = self.pick(number)
        if name is None:
            return
        self.num_said += 1
        is_open = name in self.open
        self.bridge._distribute([answer(name)])
        if is_open:
            call, index = self.owner[name]
            if isinstance(answer(name), Refused):
                self.broken.add(id(call))
            elif id(call) not in self.broken:
                self.unread[id(call)].append((index, self.num_said))
            if ends:
                self.open.discard(name)

    async def token(self, number: int) -> None:
        self.say(number, lambda name: NewTokens(name, (self.num_said,)), ends=False)

    async def end(self, number: int) -> None:
        self.say(number, lambda name: NewTokens(name, (self.num_said,), "length"), ends=True)

    async def refuse(self, number: int) -> None:
        self.say(number, lambda name: Refused(name, "no", None, False), ends=True)

    async def cancel(self, number: int) -> None:
        name = self.pick(number)
        if name is not None:
            call, index = self.owner[name]
            if id(call) in self.broken:
                return  # it fails as a whole when it is read; nobody goes on with parts of it
            had_ended = name not in self.open
            call.cancel(index)
            self.open.discard(name)
            self.unread[id(call)] = [item for item in self.unread[id(call)] if item[0] != index]
            if had_ended:
                assert self.engine.cancelled.count(name) <= 1

    async def close(self, number: int) -> None:
        if self.calls:
            call = self.calls[number % len(self.calls)]
            call.close()
            self.unread[id(call)] = []
            self.open -= {name for name, (owner, _) in self.owner.items() if owner is call}

    async def read(self, number: int) -> None:
        if not self.calls:
            return
        call = self.calls[number % len(self.calls)]
        expected = self.unread[id(call)]
        try:
            got = await asyncio.wait_for(call.next(), 0.001) if not expected else await call.next()
        except TimeoutError:
            assert not expected
            return
        except FacetError:
            assert id(call) in self.broken
            self.unread[id(call)] = []
            self.open -= {name for name, (owner, _) in self.owner.items() if owner is call}  # cancelled with it
            return
        assert [(index, new.token_ids[0]) for index, new in got] == expected
        self.unread[id(call)] = []

    async def die(self, number: int) -> None:
        self.bridge._die(EngineDeadError("gone"))
        self.broken |= {id(call) for call in self.calls if any(self.owner[n][0] is call for n in self.open)}
        self.open.clear()
