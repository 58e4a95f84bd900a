"""Prompts that are only counted: in every API the same number, however long they are and however busy the server is."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.server.conftest import Scripted
from tests.server.running import RunningServer

ASK = [{"role": "user", "content": "one"}]
BEGUN = [*ASK, {"role": "assistant", "content": "two"}]
LONG = "one two " * 5000


@pytest.fixture(scope="module")
def busy(scripted: Scripted) -> Iterator[RunningServer]:
    """One request is being answered, and no other has room."""
    with scripted("one", max_num_seqs=1, max_waiting_requests=0) as (server, engine), ThreadPoolExecutor() as pool:
        engine.gate.clear()
        answer = pool.submit(server.post, "/v1/completions", {"prompt": "one"})
        while not engine.submitted:
            pass
        yield server
        engine.gate.set()
        assert answer.result().status_code == 200


def counts(server: RunningServer, text: str) -> list[int]:
    messages = [{"role": "user", "content": text}]
    return [
        server.post("/tokenize", {"messages": messages}).json()["count"],
        server.post("/v1/messages/count_tokens", {"messages": messages}).json()["input_tokens"],
        server.post("/v1/responses/input_tokens", {"input": text}).json()["input_tokens"],
    ]


def test_by_a_busy_server(busy: RunningServer) -> None:
    assert busy.post("/v1/completions", {"prompt": "one"}).status_code == 503
    assert len(set(counts(busy, "one two three"))) == 1


def test_beyond_the_context(busy: RunningServer) -> None:
    (count,) = set(counts(busy, LONG))
    assert count > 4096
    for path, body in (
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG * 8}]}),
        ("/v1/responses/input_tokens", {"input": LONG * 8}),
    ):
        refused = busy.post(path, body)
        assert refused.status_code == 400
        assert "at most 8 times that is allowed" in refused.text


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False},
        {"messages": BEGUN, "continue_final_message": True},
        {"messages": BEGUN, "add_generation_prompt": False},
        {"messages": ASK, "chat_template_kwargs": {"enable_thinking": True}},
    ],
    ids=str,
)
def test_tokens_are_those_of_a_chat(scripted: Scripted, fields: dict[str, Any]) -> None:
    with scripted("one") as (server, engine):
        shown = server.post("/tokenize", fields).json()["tokens"]
        assert server.post("/v1/chat/completions", fields).status_code == 200
    assert shown == list(engine.submitted[0].prompt_token_ids)


def test_an_end_that_contradicts_itself_is_refused(busy: RunningServer) -> None:
    fields = {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True}
    refused = busy.post("/tokenize", fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "continue_final_message")
