"""/sleep, /wake_up and /is_sleeping: who is refused meanwhile, and who is waited for."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from facet.engine.messages import SleepState
from facet.errors import EngineDeadError
from facet.server.sleep_mode import SleepMode
from tests.server.conftest import Scripted
from tests.server.running import wait_until

COMPLETIONS, ASK = "/v1/completions", {"prompt": "x", "max_tokens": 3}


def test_there_is_no_sleep_without_the_flag(scripted: Scripted) -> None:
    with scripted("one") as (server, _):
        assert [server.post(path, {}).status_code for path in ("/sleep", "/wake_up")] == [404, 404]
        assert server.get("/is_sleeping").status_code == 404
        assert "Start it with --enable-sleep-mode." in server.post("/sleep", {}).json()["error"]["message"]
        assert "/sleep" not in server.get("/openapi.json").json()["paths"]


def test_a_server_sleeps_and_wakes_up(scripted: Scripted) -> None:
    with scripted("one", enable_sleep_mode=True, api_key=("key",)) as (server, engine):
        assert server.post("/sleep", {}).status_code == 401
        with server.client(headers={"authorization": "Bearer key"}) as client:

            def is_asleep() -> bool:
                answer: dict[str, bool] = client.get("/is_sleeping").json()
                return answer["is_sleeping"]

            def state() -> str:
                lines = [line for line in client.get("/metrics").text.splitlines() if line.endswith(" 1.0")]
                (line,) = [line for line in lines if line.startswith("vllm:engine_sleep_state{")]
                return line.partition('sleep_state="')[2].partition('"')[0]

            assert {"/sleep", "/wake_up", "/is_sleeping"} <= set(client.get("/openapi.json").json()["paths"])
            assert not is_asleep()
            assert client.post("/wake_up").json()["status"] == "awake", "it is awake already"
            refused = client.post("/sleep?level=3")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "level")
            refused = client.post("/sleep?mode=keep")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "mode")
            refused = client.post("/sleep", json={"level": 2})
            assert (refused.status_code, "POST /sleep?level=2" in refused.text) == (400, True)
            assert state() == "awake"
            answers = [client.post(path) for path in ("/sleep", "/sleep?level=1")]
            assert engine.sleeps == [1], "it sleeps already"
            for answer in answers:
                said = answer.json()
                assert (said["status"], said["level"]) == ("sleeping", 1)
                assert said["elapsed_ms"] >= 0
            assert is_asleep()
            assert state() == "weights_offloaded"
            levels = [client.post(f"/sleep?level={level}").json()["level"] for level in (2, 1)]
            assert (levels, engine.sleeps) == ([2, 2], [1, 2]), "more deeply, and not less"
            assert (is_asleep(), state()) == (True, "discard_all")
            assert client.get("/health").status_code == 200
            assert client.get("/api/ps").json() == {"models": []}
            refused = client.post(COMPLETIONS, json=ASK)
            assert refused.status_code == 503
            assert refused.json()["error"]["message"].startswith("The model is asleep, or about to be. POST /wake_up")
            assert int(refused.headers["retry-after"]) > 0
            assert client.post("/wake_up?tags=weights").json()["error"]["param"] == "tags"
            engine.cannot_wake_up = "The GPU has 1.0 of 80.0 GiB free, which is not enough."
            failed = client.post("/wake_up")
            assert (failed.status_code, failed.json()["error"]["message"]) == (500, engine.cannot_wake_up)
            assert is_asleep()
            engine.cannot_wake_up = None
            assert client.post("/wake_up?tags=weights&tags=kv_cache").json()["status"] == "awake"
            assert not is_asleep()
            assert client.post(COMPLETIONS, json=ASK).status_code == 200


def test_running_answers_are_finished_first() -> None:
    async def run() -> None:
        states: asyncio.Queue[Any] = asyncio.Queue()
        told: list[int] = []
        bridge: Any = SimpleNamespace(
            num_pending=2, takes_requests=True, sleep_level=0, sleep_states=states, sleep=told.append
        )
        mode = SleepMode(bridge)
        falling_asleep = asyncio.create_task(mode.sleep(2))
        await asyncio.sleep(0.1)
        assert (bridge.takes_requests, told, mode.level) == (False, [], 0)
        bridge.num_pending = 0
        states.put_nowait(SleepState(is_asleep=True))
        await falling_asleep
        assert (bridge.takes_requests, told, mode.level) == (False, [2], 2)

    asyncio.run(run())


def test_running_answers_are_ended_if_asked(scripted: Scripted) -> None:
    """Also those that an earlier call has been waiting for."""
    slowly = scripted([281] * 4000, engine={"seconds_per_turn": 0.01}, enable_sleep_mode=True)
    ask = {"prompt": "x", "max_tokens": 4000}
    with slowly as (server, engine), ThreadPoolExecutor(3) as threads:
        whole = threads.submit(server.post, COMPLETIONS, ask)
        stream = threads.submit(server.post, COMPLETIONS, {**ask, "stream": True})
        wait_until(lambda: len(engine.submitted) == 2)
        patient = threads.submit(server.post, "/sleep", {})
        wait_until(lambda: server.post(COMPLETIONS, ASK).status_code == 503)
        assert not patient.done()
        assert server.post("/sleep?mode=abort", {}).json()["status"] == "sleeping"
        assert patient.result().json()["status"] == "sleeping"
        assert len(engine.cancelled) == 2
        assert whole.result().status_code == 503
        assert "The model is asleep" in whole.result().json()["error"]["message"]
        assert "The model is asleep" in stream.result().text  # in an event, or whole if none had been sent


def test_an_engine_that_dies_is_not_waited_for() -> None:
    async def run() -> None:
        states: asyncio.Queue[Any] = asyncio.Queue()
        states.put_nowait(EngineDeadError("The engine stopped."))
        bridge: Any = SimpleNamespace(
            num_pending=0, takes_requests=True, sleep_level=0, sleep_states=states, sleep=lambda level: None
        )
        with pytest.raises(EngineDeadError):
            await SleepMode(bridge).sleep(1)
        assert bridge.takes_requests

    asyncio.run(run())
