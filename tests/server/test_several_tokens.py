"""Messages with several tokens: answers are those of messages with one, also where the answer ends in the middle."""

from typing import Any

import msgspec
import pytest

from facet.engine.messages import NewTokens
from facet.prompts.reading import AnswerTokens
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.server.protocol.shared import make_usage
from tests.chat.conversations import WEATHER_TOOL
from tests.server.conftest import Scripted
from tests.server.test_chat import ASK, CALL, THOUGHT, put_together, stream
from tests.server.test_completions import TEXT

COMPLETION = "/v1/completions"
CHAT = "/v1/chat/completions"
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    (COMPLETION, TEXT, {}),
    (COMPLETION, TEXT, {"max_tokens": 4, "return_token_ids": True}),
    (COMPLETION, TEXT, {"stop": ["er in", "Paris"], "return_token_ids": True, "logprobs": 1}),
    (COMPLETION, TEXT, {"stop": ["er in"], "include_stop_str_in_output": True, "logprobs": 2}),
    (COMPLETION, TEXT, {"echo": True, "logprobs": 1, "n": 2}),
    (CHAT, THOUGHT + "one two three four five" + CALL, {"tools": [WEATHER_TOOL], "return_token_ids": True}),
    (CHAT, THOUGHT + "one two three four five", {"stop": ["e fo"], "logprobs": True, "top_logprobs": 1}),
    (CHAT, CALL + CALL, {"tools": [WEATHER_TOOL], "parallel_tool_calls": False}),
    (CHAT, CALL, {"tools": [WEATHER_TOOL], "max_tokens": 12}),
]


@pytest.mark.parametrize(("path", "script", "fields"), ASKED)
def test_answers_do_not_depend_on_how_many_tokens_come_at_once(
    path: str, script: str, fields: dict[str, Any], scripted: Scripted
) -> None:
    body = {"model": "tiny", "prompt": "one", "max_tokens": 64, **fields}
    if path == CHAT:
        body = {"model": "tiny", "messages": ASK, "max_tokens": 200, **fields}
    answers = []
    for tokens_per_turn in (1, 3, 100):
        with scripted(script, engine={"tokens_per_turn": tokens_per_turn}) as (server, _):
            answer = server.post(path, body).json()
            streamed = put_together(stream(server, **body)) if path == CHAT else None
        answers.append((without_names(answer["choices"]), answer["usage"], without_names(streamed)))
    assert answers[0] == answers[1] == answers[2]


def without_names(value: Any) -> Any:
    """Without what is made up anew for every answer."""
    if isinstance(value, dict):
        return {key: without_names(item) for key, item in value.items() if key != "id"}
    return [without_names(item) for item in value] if isinstance(value, list) else value


def test_usage_says_what_became_of_drafts() -> None:
    tokens = AnswerTokens.of(Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams()))
    for new in (NewTokens("a", (1,)), NewTokens("a", (2, 3, 4), num_drafts=4), NewTokens("a", (5,), num_drafts=2)):
        list(tokens.take(new))
    assert (tokens.num_drafts, tokens.num_accepted) == (6, 2)
    usage = make_usage(1, 5, 0, 0, num_drafts=tokens.num_drafts, num_accepted=tokens.num_accepted)
    details = msgspec.to_builtins(usage.completion_tokens_details)
    assert details == {"reasoning_tokens": 0, "accepted_prediction_tokens": 2, "rejected_prediction_tokens": 4}
    without = msgspec.to_builtins(make_usage(1, 5, 0, 0, num_drafts=0, num_accepted=0))
    assert without["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_drafts_behind_the_end_of_an_answer_are_none_of_its_accepted_ones() -> None:
    tokens = AnswerTokens.of(Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams()))
    for token_id in tokens.take(NewTokens("a", (1, 2, 3, 4), num_drafts=3)):
        if token_id == 2:
            tokens.stop_at("two")
    assert tokens.token_ids == [1, 2]
    assert (tokens.num_drafts, tokens.num_accepted) == (3, 2)
