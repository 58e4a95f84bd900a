"""Settings of an answer mean the same in every API, and none is passed over in silence."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Scripted
from tests.server.running import RunningServer
from tests.server.scripted_engine import ScriptedEngine

ASK = [{"role": "user", "content": "one"}]
APIS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 50},
    "/v1/responses": {"input": "one", "max_output_tokens": 50},
    "/v1/messages": {"messages": ASK, "max_tokens": 50},
    "/v1/completions": {"prompt": "one", "max_tokens": 50},
}
CONVERSATIONS = list(APIS)[:3]
SETTINGS = {
    "temperature": 0.5,
    "top_p": 0.7,
    "top_k": 7,
    "min_p": 0.125,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.5,
    "logit_bias": {"5": 2.0},
    "bad_words": ["two"],
    "allowed_token_ids": [5, 6, 7],
    "min_tokens": 2,
    "ignore_eos": True,
    "stop": ["three"],
    "stop_token_ids": [9],
    "include_stop_str_in_output": True,
    "seed": 4,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "loop_guard": False,
    "repetition_detection": {"max_pattern_size": 8, "min_pattern_size": 2, "min_count": 3},
    "priority": 3,
    "cache_salt": "a tenant",
}


@pytest.fixture(scope="module")
def both(scripted: Scripted) -> Iterator[tuple[RunningServer, ScriptedEngine]]:
    with scripted("one") as pair:
        yield pair


def test_they_reach_the_engine(both: tuple[RunningServer, ScriptedEngine]) -> None:
    server, engine = both
    for path, question in APIS.items():
        assert server.post(path, {**question, **SETTINGS}).status_code == 200, path
    chat, *others = engine.submitted[-len(APIS) :]
    usual = type(chat.sampling)(max_tokens=50)
    same = {"spaces_between_special_tokens", "repetition_detection", "priority", "cache_salt"}
    for name in set(SETTINGS) - same:
        assert getattr(chat.sampling, name) != getattr(usual, name), name
    assert (chat.priority, chat.cache_salt) == (3, "a tenant")
    assert chat.sampling.repetition_detection is not None
    for request in others:
        assert (request.sampling, request.priority, request.cache_salt) == (chat.sampling, 3, "a tenant")


@pytest.mark.parametrize(
    ("constraint", "kind"),
    [
        ({"structured_outputs": {"choice": ["one", "two"]}}, "choice"),
        ({"structured_outputs": {"json": {"type": "integer"}, "disable_any_whitespace": True}}, "json_schema"),
        ({"guided_choice": ["one", "two"]}, "choice"),
        ({"guided_json": {"type": "integer"}, "guided_regex": ""}, "json_schema"),
        ({"guided_regex": "[a-z]+"}, "regex"),
        ({"guided_grammar": 'root ::= "one"'}, "ebnf"),
    ],
    ids=str,
)
def test_constraints(both: tuple[RunningServer, ScriptedEngine], constraint: dict[str, Any], kind: str) -> None:
    server, engine = both
    for path, question in APIS.items():
        assert server.post(path, {**question, **constraint}).status_code == 200, path
        grammar = engine.submitted[-1].grammar
        assert grammar is not None
        assert (grammar.kind, grammar.any_whitespace) == (kind, False)


def test_a_template_is_told(both: tuple[RunningServer, ScriptedEngine]) -> None:
    server, engine = both
    prompts = set()
    for path in CONVERSATIONS:
        for thinks in (True, False):
            told = {"chat_template_kwargs": {"enable_thinking": thinks}}
            assert server.post(path, {**APIS[path], **told}).status_code == 200
            prompts.add((thinks, engine.submitted[-1].prompt_token_ids))
    assert len(prompts) == 2


def test_thoughts_are_left_out(scripted: Scripted) -> None:
    with scripted("<|channel>thought\nsix<channel|>one") as (server, _):
        for wants in (True, False):
            output = server.post("/v1/responses", {"input": "one", "include_reasoning": wants}).json()["output"]
            assert [item["type"] for item in output] == ["reasoning", "message"][not wants :]


@pytest.mark.parametrize(
    "fields",
    [
        {"vllm_xargs": {"a": 1}},
        {"kv_transfer_params": {"a": 1}},
        {"use_beam_search": True},
        {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
        {"guided_json": {"type": "integer"}, "guided_regex": "a"},
        {"media_io_kwargs": {"video": {"fps": 2}}},
        {"truncation_side": "right"},
    ],
    ids=str,
)
def test_what_is_not_there_is_refused_by_name(
    both: tuple[RunningServer, ScriptedEngine], fields: dict[str, Any]
) -> None:
    server, _ = both
    name = next(iter(fields))
    paths = {"media_io_kwargs": CONVERSATIONS, "truncation_side": ["/v1/chat/completions", "/v1/completions"]}
    for path in paths.get(name, list(APIS)):
        refused = server.post(path, {**APIS[path], **fields})
        assert refused.status_code == 400, path
        assert name in refused.text


LOOSE = {"temperature": "0.5", "top_k": 7.0, "seed": "4", "ignore_eos": "true", "stream": "false", "stop": "3"}


def test_numbers_and_truth_values_may_be_texts(both: tuple[RunningServer, ScriptedEngine]) -> None:
    server, engine = both
    for path, question in APIS.items():
        response = server.post(path, {**question, **LOOSE})
        assert response.headers["content-type"] == "application/json"
        assert response.status_code == 200, path
        sampling = engine.submitted[-1].sampling
        assert (sampling.temperature, sampling.top_k, sampling.seed, sampling.ignore_eos) == (0.5, 7, 4, True)
        assert tuple(sampling.stop) == ("3",)


@pytest.mark.parametrize(
    "fields", [{"temperature": "hot"}, {"temperature": "nan"}, {"logit_bias": {"5": "inf"}}, {"top_k": 1.5}], ids=str
)
def test_other_texts_may_not(both: tuple[RunningServer, ScriptedEngine], fields: dict[str, Any]) -> None:
    for path, question in APIS.items():
        refused = both[0].post(path, {**question, **fields})
        assert refused.status_code == 400, path
        assert next(iter(fields)) in refused.text
