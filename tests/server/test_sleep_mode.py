"""/sleep, /wake_up and /is_sleeping: who is refused meanwhile, and who is waited for."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from facet.engine.messages import SleepState
from facet.errors import EngineDeadError
from facet.server.sleep_mode import SleepMode
from tests.server.conftest import Scripted

COMPLETIONS, ASK = "/v1/completions", {"prompt": "x", "max_tokens": 3}


def test_there_is_no_sleep_without_the_flag(scripted: Scripted) -> None:
    with scripted("one") as (server, _):
        assert [server.post(path, {}).status_code for path in ("/sleep", "/wake_up")] == [404, 404]
        assert server.get("/is_sleeping").status_code == 404


def test_a_server_sleeps_and_wakes_up(scripted: Scripted) -> None:
    with scripted("one", enable_sleep_mode=True, api_key=("key",)) as (server, engine):
        assert server.post("/sleep", {}).status_code == 401
        with server.client(headers={"authorization": "Bearer key"}) as client:

            def is_asleep() -> bool:
                answer: dict[str, bool] = client.get("/is_sleeping").json()
                return answer["is_sleeping"]

            assert not is_asleep()
            assert client.post("/wake_up").status_code == 200, "it is awake already"
            refused = client.post("/sleep?level=3")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "level")
            assert [client.post(path).status_code for path in ("/sleep", "/sleep?level=2")] == [200, 200]
            assert engine.sleeps == [1], "it sleeps already"
            assert is_asleep()
            assert client.get("/health").status_code == 200
            refused = client.post(COMPLETIONS, json=ASK)
            assert refused.status_code == 503
            assert refused.json()["error"]["message"].startswith("The model is asleep. POST /wake_up")
            assert int(refused.headers["retry-after"]) > 0
            assert client.post("/wake_up?tags=weights").json()["error"]["param"] == "tags"
            engine.cannot_wake_up = "The GPU has 1.0 of 80.0 GiB free, which is not enough."
            failed = client.post("/wake_up")
            assert (failed.status_code, failed.json()["error"]["message"]) == (500, engine.cannot_wake_up)
            assert is_asleep()
            engine.cannot_wake_up = None
            assert client.post("/wake_up").status_code == 200
            assert not is_asleep()
            assert client.post(COMPLETIONS, json=ASK).status_code == 200


def test_running_answers_are_finished_first() -> None:
    async def run() -> None:
        states: asyncio.Queue[Any] = asyncio.Queue()
        told: list[int] = []
        bridge: Any = SimpleNamespace(num_pending=2, takes_requests=True, sleep_states=states, sleep=told.append)
        mode = SleepMode(bridge)
        falling_asleep = asyncio.create_task(mode.sleep(2))
        await asyncio.sleep(0.1)
        assert (bridge.takes_requests, told, mode.is_asleep) == (False, [], False)
        bridge.num_pending = 0
        states.put_nowait(SleepState(is_asleep=True))
        await falling_asleep
        assert (bridge.takes_requests, told, mode.is_asleep) == (False, [2], True)

    asyncio.run(run())


def test_an_engine_that_dies_is_not_waited_for() -> None:
    async def run() -> None:
        states: asyncio.Queue[Any] = asyncio.Queue()
        states.put_nowait(EngineDeadError("The engine stopped."))
        bridge: Any = SimpleNamespace(num_pending=0, takes_requests=True, sleep_states=states, sleep=lambda level: None)
        with pytest.raises(EngineDeadError):
            await SleepMode(bridge).sleep(1)
        assert bridge.takes_requests

    asyncio.run(run())
