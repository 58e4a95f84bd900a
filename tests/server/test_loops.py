"""Answers that the loop guard ended, as clients and operators see them."""

from typing import Any

import pytest

from facet.tokens import Tokenizer
from tests.chat.conversations import WEATHER_TOOL
from tests.server.conftest import Scripted
from tests.server.test_chat import CALL, ask, put_together, stream
from tests.server.test_metrics import metrics_of

REPEATED = "one repetition " * 9
THOUGHT = "<|channel>thought\n" + REPEATED
SAID: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "content": (REPEATED, {}, {"content": REPEATED}),
    "a thought": (THOUGHT, {}, {"reasoning": REPEATED.rstrip("\n")}),
    "calls": (CALL * 9, {"tools": [WEATHER_TOOL]}, {}),
    "a stop string that never came": (REPEATED, {"stop": "repetitions"}, {"content": REPEATED}),
}


@pytest.mark.parametrize(("said", "fields", "expected"), SAID.values(), ids=SAID)
def test_a_chat(
    said: str, fields: dict[str, Any], expected: dict[str, Any], scripted: Scripted, tokenizer: Tokenizer
) -> None:
    """No text is lost, and calls of an endless row are not to be carried out."""
    token_ids = tokenizer.encode(said, add_special_tokens=False)
    with scripted(token_ids, engine={"last_reason": "repetition", "tokens_per_turn": 3}) as (server, _):
        answer = ask(server, n=2, temperature=1, **fields)
        chunks = stream(server, **fields)
        metrics = metrics_of(server)
    for choice in answer["choices"]:
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "repetition")
        assert {name: choice["message"][name] for name in expected} == expected
    assert {name: put_together(chunks)[name] for name in expected} == expected
    last = next(choice for chunk in reversed(chunks) for choice in chunk["choices"])
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "repetition")
    labels = 'engine="0",model_name="tiny"'
    assert metrics[f"facet:loop_guard_stops_total{{{labels}}}"] == 3
    assert metrics['vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"}'] == 3


def test_a_completion(scripted: Scripted, tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(REPEATED, add_special_tokens=False)
    with scripted(token_ids, engine={"last_reason": "repetition"}) as (server, _):
        body = {"prompt": "one", "max_tokens": 200}
        looped = server.post("/v1/completions", body).json()["choices"][0]
        stopped = server.post("/v1/completions", {**body, "stop": "repetition"}).json()["choices"][0]
        metrics = metrics_of(server)
    assert (looped["text"], looped["finish_reason"], looped["stop_reason"]) == (REPEATED, "stop", "repetition")
    assert (stopped["text"], stopped["finish_reason"], stopped["stop_reason"]) == ("one ", "stop", "repetition")
    assert metrics['facet:loop_guard_stops_total{engine="0",model_name="tiny"}'] == 1


def test_the_servers_default_and_the_requests_own(scripted: Scripted) -> None:
    for loop_guard in (True, False):
        model = {} if loop_guard else {"model": {"sampling_defaults": {"loop_guard": False}}}
        with scripted("one", **model) as (server, engine):
            for fields in ({}, {"loop_guard": True}, {"loop_guard": False}, {"ignore_eos": True}):
                ask(server, max_tokens=3, **fields)
        rules = [request.sampling.loop_rule is not None for request in engine.submitted]
        assert rules == [loop_guard, True, False, False]
