"""Budgets of thoughts over HTTP: the names they go by, what is counted, and the real engine behind a stream."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from facet.config import PromptConfig
from facet.errors import ConfigError
from facet.prompts import make_asked_model, read_prompt_files
from facet.tokens import Tokenizer
from tests.prompts.doors import write_model_folder
from tests.server.conftest import Scripted
from tests.server.running import RunningServer
from tests.server.test_chat import ASK, THOUGHT, ask, stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OPENED = "<|turn>model\n<|channel>"


def num_between_markers(tokenizer: Tokenizer, text: str) -> int:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    return len(token_ids) - 2  # without the tokens that open and close


def test_thoughts_are_counted(scripted: Scripted, tokenizer: Tokenizer) -> None:
    expected = num_between_markers(tokenizer, THOUGHT)
    with scripted(THOUGHT + "It is clear.", engine={"tokens_per_turn": 3}) as (server, _):
        assert ask(server, n=2, temperature=1)["usage"]["completion_tokens_details"] == {
            "reasoning_tokens": 2 * expected
        }
        chunks = stream(server, stream_options={"include_usage": True, "continuous_usage_stats": True})
        hidden = ask(server, include_reasoning=False)
        text = server.post(COMPLETIONS, {"prompt": "one", "max_tokens": 40}).json()
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, expected)
    for answer in (hidden, text):
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": expected}


def test_the_names_of_a_budget(scripted: Scripted) -> None:
    asked: list[tuple[dict[str, Any], int | None]] = [
        ({}, 50),
        ({"thinking_token_budget": 9}, 9),
        ({"reasoning": {"max_tokens": 9}}, 9),
        ({"reasoning": {"max_tokens": 9, "effort": "low"}, "thinking_token_budget": 9}, 9),
        ({"thinking_token_budget": 0, "reasoning_effort": "high"}, 0),
    ]
    with scripted("one", model={"sampling_defaults": {"thinking_token_budget": 50}}) as (server, engine):
        for fields, _ in asked:
            ask(server, **fields)
    budgets = [request.sampling.thinking_token_budget for request in engine.submitted]
    assert budgets == [budget for _, budget in asked]
    prompts = [request.prompt_token_ids for request in engine.submitted]
    assert prompts[3] != prompts[0] == prompts[4], "an effort switches thinking on; a budget of 0 switches it off"


REFUSED: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "below nothing": (CHAT, {"thinking_token_budget": -1}, "thinking_token_budget", "0 (no thought) or more"),
    "above the context": (CHAT, {"thinking_token_budget": 4097}, "thinking_token_budget", "4096 tokens"),
    "of a text": (COMPLETIONS, {"thinking_token_budget": 4097}, "thinking_token_budget", "Lower it"),
    "under its other name": (CHAT, {"reasoning": {"max_tokens": -5}}, "reasoning.max_tokens", "0 (no thought) or more"),
    "two budgets": (
        CHAT,
        {"reasoning": {"max_tokens": 5}, "thinking_token_budget": 6},
        "reasoning.max_tokens",
        "Send one of them",
    ),
    "two efforts": (
        CHAT,
        {"reasoning": {"effort": "low"}, "reasoning_effort": "high"},
        "reasoning.effort",
        "Send one of them",
    ),
    "a budget in words": (CHAT, {"thinking_token_budget": "few"}, "thinking_token_budget", "int"),
}


@pytest.mark.parametrize(("path", "fields", "field", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(path: str, fields: dict[str, Any], field: str, words: str, scripted: Scripted) -> None:
    body = {"messages": ASK, **fields} if path == CHAT else {"prompt": "one", **fields}
    with scripted("one") as (server, engine):
        response = server.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert words in response.json()["error"]["message"]
    assert not engine.submitted


def test_a_model_without_thoughts(scripted: Scripted) -> None:
    plain = Tokenizer(tokenizers.Tokenizer(tokenizers.models.WordLevel({"one": 0, "<unk>": 1}, unk_token="<unk>")))
    with scripted([0], model={"tokenizer": plain}) as (server, _):
        response = server.post(COMPLETIONS, {"prompt": "one", "thinking_token_budget": 3})
        counted = server.post(COMPLETIONS, {"prompt": "one", "max_tokens": 1}).json()
    assert (response.status_code, response.json()["error"]["param"]) == (400, "thinking_token_budget")
    assert counted["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize("budget", [-1, 300])
def test_a_default_that_cannot_be(budget: int, tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path)
    config = PromptConfig(model=str(folder), default_thinking_token_budget=budget)
    with pytest.raises(ConfigError, match="thinking_token_budget"):
        make_asked_model(config, read_prompt_files(config), max_model_len=256, eos_token_ids=(1,))


@pytest.mark.parametrize("budget", [0, 1, 13])
def test_the_real_engine_closes_a_thought(budget: int, real_server: RunningServer, tokenizer: Tokenizer) -> None:
    close_id = tokenizer.token_to_id("<channel|>")
    ends = [tokenizer.token_to_id(text) for text in ("<turn|>", "<|turn>", "<eos>")]
    body = {
        "prompt": OPENED,
        "max_tokens": 20,
        "n": 3,
        "temperature": 1,
        "seed": 5,
        "thinking_token_budget": budget,
        "logit_bias": {str(token_id): -100 for token_id in (close_id, *ends)},
        "return_token_ids": True,
    }
    whole = real_server.post(COMPLETIONS, body).json()
    for choice in whole["choices"]:
        assert choice["token_ids"].index(close_id) == budget
        assert choice["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3 * budget}
    *events, _ = real_server.chunks(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    streamed: list[list[int]] = [[], [], []]
    usage = None
    for event in map(json.loads, events):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["token_ids"]
        usage = event.get("usage", usage)
    assert streamed == [choice["token_ids"] for choice in whole["choices"]]
    assert usage == whole["usage"]
