"""Prompts that cannot fit are refused soon and for little, whatever their size and their number."""

import copy
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tokenizers

from facet.prompts import preparing
from facet.tokens import control_tokens, text_length, tokenizer
from facet.tokens.encoding import encode_texts
from tests.server.conftest import Scripted
from tests.server.running import RunningServer

NUM_CHARACTERS = 6_000_000
# Without and with the beginning of a control token, which makes rendering slow; words, and one endless one.
TEXTS = {"words": "one two ", "markers": "one <turn|> ", "no blanks": "abcdefgh", "not ASCII": "ça va "}


@pytest.fixture(scope="module")
def server(scripted: Scripted) -> Iterator[RunningServer]:
    with scripted("one two three") as (server, _):
        yield server


@pytest.fixture
def num_encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters that were encoded, one number for each call."""
    counted: list[int] = []

    def count(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        counted.append(sum(map(len, texts)))
        return encode_texts(backend, texts)

    for module in (control_tokens, text_length, tokenizer):
        monkeypatch.setattr(module, "encode_texts", count)
    return counted


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_refused_before_they_are_encoded(server: RunningServer, num_encoded: list[int], text: str) -> None:
    long = text * (NUM_CHARACTERS // len(text))
    for path, fields in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]}),
        ("/v1/completions", {"prompt": long}),
        ("/tokenize", {"prompt": long}),
        ("/tokenize", {"messages": [{"role": "user", "content": long}]}),
    ):
        response = server.post(path, fields)
        assert response.status_code == 400, path
        assert "more than" in response.json()["error"]["message"]
    assert sum(num_encoded) < NUM_CHARACTERS // 4


ITEMS: dict[str, Any] = {
    "messages": {"messages": [{"role": "user", "content": "a"}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    "tools": {
        "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "a"}}],
    },
}


@pytest.mark.parametrize("kind", ITEMS)
@pytest.mark.parametrize(("path", "num_contexts"), [("/v1/chat/completions", 1), ("/tokenize", 8)])
def test_many_small_things_are_counted_before_they_are_read(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, path: str, num_contexts: int, kind: str
) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("they were read")

    monkeypatch.setattr(preparing, "normalize_messages", refuse)
    fields = copy.deepcopy(ITEMS[kind])
    items = fields["messages"][0]["content"] if kind == "parts" else fields[kind]
    items *= 4096 * num_contexts + 1
    error = server.post(path, fields).json()["error"]
    assert (error["code"], error["param"]) == (400, "messages")
    assert "messages, parts of messages and tools and therefore more than" in error["message"]


def test_a_long_prompt_that_may_be_cut_is_answered(server: RunningServer, num_encoded: list[int]) -> None:
    fields = {"prompt": "one two " * (NUM_CHARACTERS // 8), "truncate_prompt_tokens": 20, "max_tokens": 2}
    assert server.post("/v1/completions", fields).json()["usage"]["prompt_tokens"] == 20
    assert sum(num_encoded) < NUM_CHARACTERS // 4


def test_others_are_served_meanwhile(server: RunningServer) -> None:
    long = {"messages": [{"role": "user", "content": "one <turn|> " * (NUM_CHARACTERS // 12)}]}
    short = {"messages": [{"role": "user", "content": "one"}], "max_tokens": 3}
    done = threading.Event()
    with ThreadPoolExecutor(5) as pool:
        refused = [pool.submit(server.post, "/v1/chat/completions", long) for _ in range(4)]
        served = 0
        while not done.is_set():
            assert server.post("/v1/chat/completions", short).status_code == 200
            served += 1
            if all(future.done() for future in refused):
                done.set()
        assert [future.result().status_code for future in refused] == [400] * 4
    assert served >= 2
