"""Adapters behind every API: named as models, listed, loaded and unloaded while the server runs."""

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from facet.adapter import AdapterInfo, AdapterSource
from facet.config import ServerConfig
from facet.engine.messages import AdapterState
from facet.errors import ConfigError, EngineDeadError, RequestError
from facet.server.adapter_loading import AdapterLoading, check_adapters, find_folder
from facet.server.errors import HttpError
from tests.server.conftest import Scripted
from tests.server.running import RunningServer, wait_until
from tests.server.test_transcriptions import MODEL as HEARING
from tests.server.test_transcriptions import SHORT, says

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
TALK = [{"role": "user", "content": "one"}]
# A request of each API that generates; every one says its model in `model`.
ASKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TALK, "n": 2},
    "/v1/completions": {"prompt": ["one", "two"], "n": 2, "max_tokens": 2},
    "/v1/responses": {"input": "one"},
    "/v1/messages": {"messages": TALK, "max_tokens": 5},
    "/api/chat": {"messages": TALK, "stream": False},
    "/api/generate": {"prompt": "one", "stream": False},
    "/invocations": {"prompt": "one"},
}
LOADED = {"adapters": {"poet": "/adapters/poet", "clerk/v2": "/adapters/clerk"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of adapters, with one in it and one in a folder of it; beside it is another folder."""
    for folder in ("adapters/poet", "adapters/team/clerk", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "adapter_config.json").write_text("{}")
    return tmp_path / "adapters"


def load(server: RunningServer, name: str = "poet", path: str = "poet", **others: Any) -> tuple[int, str]:
    answer = server.post(LOAD, {"lora_name": name, "lora_path": path, **others})
    return answer.status_code, answer.text if answer.status_code == 200 else answer.json()["error"]["message"]


def models(server: RunningServer) -> list[str]:
    return [card["id"] for card in server.get("/v1/models").json()["data"]]


@pytest.mark.parametrize("path", ASKS)
def test_whoever_names_an_adapter_gets_it(scripted: Scripted, path: str) -> None:
    with scripted("one", engine=LOADED) as (server, engine):
        for name, adapter in (("poet", "poet"), ("clerk/v2", "clerk/v2"), ("tiny", None), (None, None)):
            engine.submitted.clear()
            answer = server.post(path, {**ASKS[path], **({} if name is None else {"model": name})})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == (adapter or "tiny")
            assert {request.adapter for request in engine.submitted} == {adapter}
        engine.submitted.clear()
        refused = server.post(path, {**ASKS[path], "model": "poe"})
        assert refused.status_code == 404
        assert "The model 'poe' does not exist. This server has tiny, poet, clerk/v2." in refused.text
        assert not engine.submitted


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_streams_name_the_adapter(scripted: Scripted, path: str) -> None:
    with scripted("one", engine=LOADED) as (server, _):
        text = "".join(server.chunks(path, {**ASKS[path], "model": "poet"}))
    assert '"model":"poet"' in text
    assert '"tiny"' not in text


def test_ollama_takes_a_tag_and_streams(scripted: Scripted) -> None:
    with scripted("one", engine=LOADED) as (server, engine):
        lines = server.post("/api/chat", {"messages": TALK, "model": "poet:latest"}).text.splitlines()
        assert {json.loads(line)["model"] for line in lines} == {"poet"}
        assert engine.submitted[0].adapter == "poet"
        assert server.post("/api/chat", {"model": "poet"}).json()["model"] == "poet"
        assert server.post("/api/show", {"model": "poet:latest"}).status_code == 200
        assert server.post("/api/show", {"model": "poem"}).status_code == 404
        for path in ("/api/tags", "/api/ps"):
            assert [model["name"] for model in server.get(path).json()["models"]] == ["tiny", "poet", "clerk/v2"]


def test_words_of_a_sound(scripted: Scripted) -> None:
    with scripted(says, model=HEARING, engine=LOADED) as (server, engine), server.client() as client:
        for name, adapter in (("poet", "poet"), ("tiny", None)):
            engine.submitted.clear()
            form: dict[str, Any] = {"files": {"file": ("speech.wav", SHORT)}, "data": {"model": name}}
            assert client.post("/v1/audio/transcriptions", **form).status_code == 200
            assert [request.adapter for request in engine.submitted] == [adapter]


def test_what_does_not_run_the_model_takes_the_name(scripted: Scripted) -> None:
    with scripted("one", engine=LOADED) as (server, _):
        for path, ask in (
            ("/tokenize", {"prompt": "one"}),
            ("/tokenize", {"messages": TALK}),
            ("/detokenize", {"tokens": [300]}),
            ("/v1/messages/count_tokens", {"messages": TALK}),
            ("/v1/responses/input_tokens", {"input": "one"}),
        ):
            answers = [server.post(path, {**ask, "model": name}) for name in ("tiny", "poet", "nobody")]
            assert [answer.status_code for answer in answers] == [200, 200, 404]
            assert answers[0].json() == answers[1].json()


def test_adapters_are_listed_without_their_paths(scripted: Scripted) -> None:
    with scripted("one", engine=LOADED, served_model_name=("first", "second")) as (server, _):
        listed = server.get("/v1/models")
        assert [(card["id"], card["parent"]) for card in listed.json()["data"]] == [
            ("first", None),
            ("second", None),
            ("poet", "first"),
            ("clerk/v2", "first"),
        ]
        card = server.get("/v1/models/clerk/v2")
        assert (card.json()["id"], card.json()["max_model_len"]) == ("clerk/v2", 4096)
        about = server.get("/server_info")
        assert about.json()["models"] == ["first", "second", "poet", "clerk/v2"]
        assert server.get("/v1/models/clerk").status_code == 404
        for answer in (listed, card, about, server.get("/api/tags")):
            assert "/adapters" not in answer.text


def test_nothing_is_loaded_without_the_flag(scripted: Scripted, root: Path) -> None:
    with scripted("one") as (server, engine):
        for path in (LOAD, UNLOAD):
            refused = server.post(path, {"lora_name": "poet", "lora_path": str(root / "poet")})
            assert refused.status_code == 404
            assert f"There is no {path} on this server. Start it with --allowed-lora-path" in refused.text
            assert path not in server.get("/openapi.json").json()["paths"]
        assert not engine.adapters


def test_an_adapter_comes_and_goes(scripted: Scripted, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), scripted("one", allowed_lora_path=str(root)) as (server, engine):
        assert {LOAD, UNLOAD} <= set(server.get("/openapi.json").json()["paths"])
        assert server.post("/v1/completions", {**ASKS["/v1/completions"], "model": "poet"}).status_code == 404
        loaded = server.post(LOAD, {"lora_name": "poet", "lora_path": "poet"})
        assert loaded.text == "Success: LoRA adapter 'poet' added successfully."
        assert loaded.headers["content-type"].startswith("text/plain")
        assert load(server, "clerk", str(root / "team" / "clerk"))[0] == 200
        assert engine.adapters == {"poet": str(root / "poet"), "clerk": str(root / "team" / "clerk")}
        assert models(server) == ["tiny", "poet", "clerk"]
        assert server.post("/v1/completions", {"prompt": "one", "model": "clerk"}).json()["model"] == "clerk"

        status, words = load(server)
        assert (status, words.partition(".")[0]) == (400, "The adapter 'poet' is loaded already")
        (root / "poet").rename(root / "poet2")
        assert load(server, path="poet2", load_inplace=True)[0] == 200
        assert engine.adapters["poet"] == str(root / "poet2")

        unloaded = server.post(UNLOAD, {"lora_name": "poet", "lora_int_id": 5})
        assert unloaded.text == "Success: LoRA adapter 'poet' removed successfully."
        assert models(server) == ["tiny", "clerk"]
        gone = server.post(UNLOAD, {"lora_name": "poet"})
        assert gone.status_code == 404
        assert gone.json()["error"]["message"] == "There is no adapter 'poet'. Loaded: clerk."
        assert server.post("/v1/completions", {"prompt": "one", "model": "poet"}).status_code == 404
    assert [line for line in caplog.messages if "poet is" in line][-1] == "The adapter poet is unloaded."


def test_what_the_engine_refuses_is_said_in_the_clients_words(scripted: Scripted, root: Path) -> None:
    with scripted("one", allowed_lora_path=str(root)) as (server, engine):
        engine.cannot_load = f"{root}/team/clerk has rank 64, but at most 16 are possible (--max-lora-rank)."
        status, words = load(server, path="team/clerk")
        assert (status, words) == (400, "team/clerk has rank 64, but at most 16 are possible (--max-lora-rank).")
        engine.cannot_load = None
        assert load(server)[0] == 200
        engine.cannot_load = "There is no room (--max-loras)."
        words = "There is no room (--max-loras)."
        assert load(server, load_inplace=True) == (400, words)
        assert models(server) == ["tiny", "poet"], "the one that was to be replaced is still there"


def test_an_answer_that_runs_is_finished_without_its_adapter(scripted: Scripted, root: Path) -> None:
    ask = {"prompt": "x", "max_tokens": 50, "model": "poet"}
    slowly = scripted([281] * 100, engine={"seconds_per_turn": 0.01}, allowed_lora_path=str(root))
    with slowly as (server, engine), ThreadPoolExecutor(2) as threads:
        assert load(server)[0] == 200
        running = [
            threads.submit(server.post, "/v1/completions", {**ask, "stream": stream}) for stream in (False, True)
        ]
        wait_until(lambda: len(engine.submitted) == 2)
        assert server.post(UNLOAD, {"lora_name": "poet"}).status_code == 200
        assert not any(answer.done() for answer in running)
        assert server.post("/v1/completions", ask).status_code == 404
        whole, stream = (answer.result() for answer in running)
        assert whole.json()["usage"]["completion_tokens"] == 50
        assert whole.json()["model"] == "poet"
        assert '"finish_reason":"length"' in stream.text
        assert not engine.cancelled


ELSEWHERE = [
    "",
    ".",
    "..",
    "/",
    "../elsewhere",
    "poet/../../elsewhere",
    "team/../..",
    "../adapters",
    "out",
    "out/../poet/../../elsewhere",
    "inner/out",
    "leaky",
    "poet\0",
    "\0",
    "\udcff",
    "x" * 5000,
    "poet/" * 5000,
    "../" * 1000 + "etc",
    "~",
    "~root",
    "owner/name",
    "file:///etc",
    "hf://owner/name",
    "https://example.com/poet",
    "poet/adapter_config.json",
    "/etc",
    "/etc/passwd",
    "/proc/self/root/etc",
    "{root}/../elsewhere",
    "{root}elsewhere",
    "{root}",
    "{root}/none",
    "loop",
]


def test_paths_that_lead_elsewhere(scripted: Scripted, root: Path) -> None:
    (root / "out").symlink_to(root.parent / "elsewhere")
    (root / "inner").mkdir()
    (root / "inner" / "out").symlink_to("/etc")
    (root / "loop").symlink_to("loop")
    (root / "leaky").mkdir()
    (root / "leaky" / "adapter_config.json").symlink_to("/etc/passwd")
    Path(f"{root}elsewhere").mkdir()
    with scripted("one", allowed_lora_path=str(root)) as (server, engine), server.client() as client:
        for path in ELSEWHERE:
            body = json.dumps({"lora_name": "poet", "lora_path": path.replace("{root}", str(root))})
            answer = client.post(LOAD, content=body)
            assert answer.status_code in (400, 404), (path, answer.text)
            assert str(root) not in answer.text or "{root}" in path
            assert not engine.adapters, path
        assert load(server)[0] == 200, "the server goes on"


def test_links_inside_lead_to_folders(root: Path) -> None:
    (root / "link").symlink_to("team/clerk")
    assert find_folder("link", root) == str(root / "team" / "clerk")
    assert find_folder(str(root / "poet") + "/", root) == str(root / "poet")
    (root.parent / "way").symlink_to(root)
    assert find_folder("poet", root.parent / "way") == str(root / "poet")
    assert find_folder(str(root.parent / "way" / "poet"), root) == str(root / "poet")


def test_what_lies_elsewhere_is_refused_alike_whether_it_is_there_or_not(root: Path) -> None:
    words = set()
    for path in ("../elsewhere", "../nowhere", "/etc/passwd", "/nowhere", "", "poet/..", str(root)):
        with pytest.raises(RequestError) as caught:
            find_folder(path, root)
        words.add(str(caught.value))
    assert len(words) == 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "lora_name"),
        ({"lora_name": "poet"}, 400, "lora_path"),
        ({"lora_path": "poet"}, 400, "lora_name"),
        ({"lora_name": "", "lora_path": "poet"}, 400, "lora_name"),
        ({"lora_name": "tiny", "lora_path": "poet"}, 400, "lora_name"),
        ({"lora_name": "alias", "lora_path": "poet"}, 400, "lora_name"),
        ({"lora_name": "a b", "lora_path": "poet"}, 400, "lora_name"),
        ({"lora_name": "a\nforged line", "lora_path": "poet"}, 400, "lora_name"),
        ({"lora_name": "a" * 257, "lora_path": "poet"}, 400, "lora_name"),
        ({"lora_name": "poet", "lora_path": 5}, 400, "lora_path"),
        ({"lora_name": ["poet"], "lora_path": "poet"}, 400, "lora_name"),
        ({"lora_name": "poet", "lora_path": "poet", "load_inplace": "perhaps"}, 400, "load_inplace"),
        ([], 400, None),
    ],
    ids=str,
)
def test_refused_loads(scripted: Scripted, root: Path, body: Any, status: int, param: str | None) -> None:
    with scripted("one", served_model_name=("tiny", "alias"), allowed_lora_path=str(root)) as (server, engine):
        refused = server.post(LOAD, body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
        assert not engine.adapters
        assert server.post(UNLOAD, {"lora_name": ""}).json()["error"]["param"] == "lora_name"
        assert server.post(UNLOAD, {"lora_name": "tiny"}).status_code == 404, "the model stays"


def test_both_need_the_key(scripted: Scripted, root: Path) -> None:
    asks = ((LOAD, {"lora_name": "poet", "lora_path": "poet"}), (UNLOAD, {"lora_name": "poet"}))
    with scripted("one", allowed_lora_path=str(root), api_key=("key",)) as (server, engine):
        for path, body in asks:
            assert server.post(path, body).status_code == 401
            assert server.post(path, body, headers={"authorization": "Bearer kez"}).status_code == 401
        assert not engine.adapters
        for path, body in asks:
            assert server.post(path, body, headers={"authorization": "Bearer key"}).status_code == 200


def test_a_model_that_sleeps_loads_nothing(scripted: Scripted, root: Path) -> None:
    with scripted("one", allowed_lora_path=str(root), enable_sleep_mode=True) as (server, engine):
        assert load(server)[0] == 200
        assert server.post("/sleep", {}).status_code == 200
        assert load(server, "other")[0] == 503
        assert server.post(UNLOAD, {"lora_name": "poet"}).status_code == 503
        assert set(engine.adapters) == {"poet"}
        assert server.post("/wake_up", {}).status_code == 200
        assert load(server, "other")[0] == 200


class SlowBridge(SimpleNamespace):
    """A bridge whose engine answers when it is told to."""

    def __init__(self) -> None:
        super().__init__(takes_requests=True, adapters=(), told=[])
        self.adapter_states: asyncio.Queue[AdapterState | EngineDeadError] = asyncio.Queue()

    def load_adapter(self, source: AdapterSource) -> None:
        self.told.append(source.name)

    def answer(self, *names: str, error: str | None = None) -> None:
        self.adapters = names
        self.adapter_states.put_nowait(AdapterState(tuple(AdapterInfo(name, "", "") for name in names), error))


def test_adapters_are_loaded_one_after_the_other() -> None:
    """So each load hears of its own outcome, and a name is given once."""

    async def run() -> None:
        bridge: Any = SlowBridge()
        loading = AdapterLoading(bridge)
        loads = [
            asyncio.create_task(loading.load(AdapterSource(name, name), replaces=False))
            for name in ("a", "b", "a", "c")
        ]
        await asyncio.sleep(0.05)
        assert bridge.told == ["a"]
        bridge.answer("a")
        await asyncio.sleep(0.05)
        assert bridge.told == ["a", "b"]
        bridge.answer("a", error="no b")
        await asyncio.sleep(0.05)
        assert bridge.told == ["a", "b", "c"], "there is an adapter a"
        bridge.answer("a", "c")
        outcomes = await asyncio.gather(*loads, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), HttpError, RequestError, type(None)]
        assert str(outcomes[1]) == "no b"

    asyncio.run(run())


def test_an_engine_that_dies_is_not_waited_for(scripted: Scripted, root: Path) -> None:
    async def run() -> None:
        bridge: Any = SlowBridge()
        bridge.adapter_states.put_nowait(EngineDeadError("The engine stopped."))
        with pytest.raises(EngineDeadError):
            await AdapterLoading(bridge).load(AdapterSource("a", "a"), replaces=False)

    asyncio.run(run())
    with scripted("one", allowed_lora_path=str(root)) as (server, engine):
        engine.load_adapter = lambda source: engine.die()  # type: ignore[method-assign]
        assert load(server)[0] == 503


def test_a_request_that_comes_too_late_is_refused(scripted: Scripted) -> None:
    """The adapter was unloaded between the server's look at its name and the engine's."""
    with scripted("one", engine=LOADED) as (server, engine):
        engine.adapters.clear()
        refused = server.post("/v1/chat/completions", {"messages": TALK, "model": "poet"})
        assert (refused.status_code, refused.json()["error"]["message"]) == (400, "It is gone.")


def test_the_log_names_the_adapter(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), scripted("one", engine=LOADED, enable_log_requests=True) as (server, _):
        for name in ("poet", "tiny"):
            assert server.post("/v1/chat/completions", {"messages": TALK, "model": name}).status_code == 200
    with_adapter, without = (line for line in caplog.messages if line.startswith("chatcmpl"))
    assert with_adapter.endswith(" s, with poet")
    assert without.endswith(" s")


def checked(**settings: Any) -> Callable[[], None]:
    return lambda: check_adapters(ServerConfig(**{"model": "m", **settings}))


def test_flags_that_go_together(root: Path) -> None:
    checked(lora_modules=("a=/x", '{"name": "b", "path": "/y"}'))()
    checked(lora_modules=("a=/x",), data_parallel_size=2)()
    checked(lora_modules=("m=/x",), served_model_name=("n",))()
    checked(allowed_lora_path=str(root))()
    checked(allowed_lora_path=str(root), data_parallel_size=2)()
    checked(allowed_lora_path="", data_parallel_backend="ray")()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lora_modules": ("m=/x",)}, "'m' is a name of the model"),
        ({"lora_modules": ("a=/x", "n=/y"), "served_model_name": ("k", "n")}, "'n' is a name of the model"),
        ({"lora_modules": ("a=/x", "a=/y")}, "names 'a' twice"),
        ({"lora_modules": ("a",)}, "names no path"),
        ({"allowed_lora_path": "nowhere"}, "--allowed-lora-path nowhere is no folder"),
        ({"allowed_lora_path": __file__}, "is no folder"),
        ({"allowed_lora_path": "/tmp", "data_parallel_backend": "ray"}, "each replica would load by itself"),
    ],
    ids=str,
)
def test_flags_that_do_not(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        checked(**settings)()
