"""The page without a browser: its files and their headers, and the endpoint that feeds its live view."""

import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from facet.adapter import AdapterSource
from facet.server.page_routes import INDEX, PageFile, page_files
from tests.server.conftest import Scripted
from tests.server.running import PATIENCE, RunningServer, wait_until

FILES = {file.name: file for file in page_files()}
SCRIPTS = [name for name in FILES if name.endswith(".js")]
LIVE, CHAT = "/engine/live", "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "one"}]}


def text_of(name: str) -> str:
    return FILES[name].content.decode()


def test_what_is_served(scripted: Scripted) -> None:
    with scripted("one") as (server, _):
        for file in FILES.values():
            answer = server.get(file.path)
            assert (answer.status_code, answer.content) == (200, file.content)
            assert answer.headers["content-type"] == file.headers()["content-type"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert "unsafe" not in answer.headers["content-security-policy"]
        assert server.get("/page/nothing.js").status_code == 404
        assert server.get("/page/index.html").status_code == 404, "it has one address"
        assert server.post("/", {}).status_code == 405


def test_head_and_caching(scripted: Scripted) -> None:
    with scripted("one") as (server, _), server.client() as client:
        whole, head = client.get("/"), client.head("/")
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers["content-length"] == str(len(whole.content))
        assert whole.headers["cache-control"] == "no-cache"
        tag = whole.headers["etag"]
        for asked, status in ((tag, 304), (f'"other", W/{tag}', 304), ('"other"', 200)):
            again = client.get("/", headers={"if-none-match": asked})
            assert (again.status_code, again.headers["etag"]) == (status, tag)
            assert bool(again.content) == (status == 200)
    assert PageFile(INDEX, b"other").headers()["etag"] != tag, "a new version is a new tag"


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+[^\s\"'`)]*", text_of(name)))
    assert addresses <= {"http://www.w3.org/2000/svg"}, "a name for a format, never asked for"


def test_links_lead_somewhere() -> None:
    """Relative, so that a prefix that a proxy puts before them does not matter."""
    paths = {file.path for file in FILES.values()} | {"/docs"}
    linked = {f"/{address}" for address in re.findall(r'(?:src|href)="([^"]+)"', text_of(INDEX))}
    assert linked <= paths
    for script in SCRIPTS:
        assert {f"{name}.js" for name in re.findall(r'from "\./(\w+)\.js"', text_of(script))} <= set(FILES)


def test_scripts_ask_for_elements_that_exist() -> None:
    ids = re.findall(r'\bid="([^"]+)"', text_of(INDEX))
    assert len(ids) == len(set(ids))
    asked = {name for script in SCRIPTS for name in re.findall(r'(?:byId|clone)\("([^"]+)"\)', text_of(script))}
    assert len(asked) > 20
    assert asked <= set(ids)
    fields = set(re.findall(r'for="([^"]+)"', text_of(INDEX)))
    assert fields <= set(ids), "a label names its field"


def test_the_policy_is_kept_and_text_stays_text() -> None:
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text_of(INDEX))
    for script in SCRIPTS:
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|DOMParser", text_of(script)
        )


def live(server: RunningServer) -> dict[str, Any]:
    response = server.get(LIVE)
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    answer: dict[str, Any] = response.json()
    return answer


def live_when(server: RunningServer, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while not condition(answer := live(server)):
        assert time.monotonic() < deadline, f"it did not happen: {answer}"
        time.sleep(0.05)
    return answer


def pages_of(answer: dict[str, Any]) -> dict[str, int]:
    return {pages["kind"]: pages["num_pages"] for pages in answer["arena"]["kinds"]}


def test_the_live_view_of_the_real_engine(real_server: RunningServer) -> None:
    before = live(real_server)
    assert before["model"]["name"] == "tiny"
    assert before["model"]["sampling_defaults"]["top_k"] == 64
    body = {**ASK, "max_tokens": 120, "ignore_eos": True, "stream": True}
    with real_server.client() as client, client.stream("POST", CHAT, json=body) as response:
        lines = response.iter_lines()
        next(lines)
        during = live(real_server)
        for _ in lines:
            pass
    after = live_when(
        real_server, lambda now: now["seconds"] > during["seconds"] and not now["requests"]["num_running"]
    )
    assert before["seconds"] <= during["seconds"] < after["seconds"]
    assert after["work"]["num_sampled_tokens"] == before["work"]["num_sampled_tokens"] + 120
    assert after["work"]["num_steps"] > before["work"]["num_steps"]
    assert 0 < after["work"]["busy_seconds"] - before["work"]["busy_seconds"] < after["seconds"] - before["seconds"]
    assert set(pages_of(after)) == {"sliding", "global", "cached"}
    assert pages_of(after)["sliding"] == pages_of(after)["global"] == 0
    assert pages_of(after)["cached"] > 0
    arena = after["arena"]
    num_cells = -(-arena["num_pages"] // arena["pages_per_cell"])
    assert num_cells <= 512
    for pages in arena["kinds"]:
        assert (len(pages["cells"]), sum(pages["cells"])) == (num_cells, pages["num_pages"])


def test_the_live_view_while_a_request_runs(real_server: RunningServer) -> None:
    num_left = live(real_server)["model"]["max_model_len"] - 50
    body = {**ASK, "max_tokens": num_left, "ignore_eos": True, "stream": True}
    with real_server.client() as client, client.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200, response.read()
        during = live_when(real_server, lambda now: now["requests"]["num_running"])
    assert during["requests"] == {"num_running": 1, "num_waiting": 0, "num_preemptions": 0}
    assert pages_of(during)["sliding"] > 0
    assert pages_of(during)["global"] > 0


def test_the_engine_works_for_it_only_when_asked_and_once_for_all(scripted: Scripted) -> None:
    with scripted("one two three") as (server, engine):
        server.post(CHAT, ASK)
        server.get("/metrics")
        assert engine.num_live_views == 0
        watchers = [threading.Thread(target=live, args=(server,)) for _ in range(12)]
        for watcher in watchers:
            watcher.start()
        for watcher in watchers:
            watcher.join()
        assert 1 <= engine.num_live_views <= 3


def test_the_live_view_names_the_adapters_there_are(scripted: Scripted) -> None:
    def adapters() -> Any:
        return live(server)["model"]["adapters"]

    with scripted("one", engine={"adapters": {"poet": "/adapters/poet"}}) as (server, engine):
        assert adapters() == ["poet"]
        assert "/adapters" not in server.get(LIVE).text, "where they lie is nobody's business"
        engine.load_adapter(AdapterSource("clerk", "/adapters/clerk"))
        wait_until(lambda: adapters() == ["poet", "clerk"])
        for name in ("poet", "clerk"):
            engine.unload_adapter(name)
        wait_until(lambda: adapters() == [])


def test_the_live_view_of_a_dead_engine(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    with scripted("one") as (server, engine):
        work = live(server)["work"]
        assert (work["num_drafts"], work["num_accepted_drafts"]) == (10, 4)
        engine.die()
        wait_until(lambda: server.get("/health").status_code == 503)
        refused = server.get(LIVE)
        assert refused.status_code == 503
        assert "it was told to" in refused.json()["error"]["message"]
        assert server.get("/").status_code == 200


def test_the_page_needs_no_key_and_what_it_asks_does(scripted: Scripted) -> None:
    with scripted("one", api_key=("right",)) as (server, _):
        for file in FILES.values():
            assert server.get(file.path).status_code == 200
        assert server.get(LIVE).status_code == server.get("/page/nothing").status_code == 401
        assert server.get(LIVE, headers={"authorization": "Bearer right"}).status_code == 200


def test_it_is_in_the_document(scripted: Scripted) -> None:
    with scripted("one") as (server, _):
        assert {"/", LIVE} <= set(json.loads(server.get("/openapi.json").text)["paths"])
