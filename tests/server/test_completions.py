"""/v1/completions with chosen answers: every shape of prompt and of answer."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from facet.tokens import Tokenizer
from tests.server.conftest import END, Scripted
from tests.server.running import RunningServer
from tests.server.scripted_engine import ScriptedEngine
from tests.tokens.gemma_like import build_gemma_like

TEXT = "The weather in Paris is clear"


@pytest.fixture(scope="module")
def with_defaults(scripted: Scripted) -> Iterator[tuple[RunningServer, ScriptedEngine]]:
    with scripted(TEXT, model={"sampling_defaults": {"top_k": 64}}) as pair:
        yield pair


def ask(server: Any, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/completions", {"model": "tiny", "prompt": "one two", "max_tokens": 64, **body})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_an_answer_and_what_it_cost(scripted: Scripted, tokenizer: Tokenizer) -> None:
    with scripted(TEXT) as (server, engine):
        answer = ask(server)
    num_prompt, num_answer = len(tokenizer.encode("one two")), len(tokenizer.encode(TEXT)) + 1
    assert answer["object"] == "text_completion"
    assert answer["model"] == "tiny"
    assert answer["choices"][0] == {
        "index": 0,
        "text": TEXT,
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "prompt_logprobs": None,
        "token_ids": None,
        "prompt_token_ids": None,
    }
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_answer,
        "total_tokens": num_prompt + num_answer,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert engine.submitted[0].prompt_token_ids == tuple(tokenizer.encode("one two"))


def test_prompts_of_every_shape(scripted: Scripted, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two")
    with scripted(TEXT) as (server, engine):
        for prompt, count in (("one two", 1), (["one two", "one two"], 2), (ids, 1), ([ids, ids, ids], 3)):
            answer = ask(server, prompt=prompt)
            assert [choice["index"] for choice in answer["choices"]] == list(range(count))
            assert {choice["text"] for choice in answer["choices"]} == {TEXT}
    assert {request.prompt_token_ids for request in engine.submitted} == {tuple(ids)}
    assert len({request.request_id for request in engine.submitted}) == 7


def test_no_second_bos(scripted: Scripted) -> None:
    """Templates write <bos> themselves, and their output is sent as it is."""
    bos_first = Tokenizer(build_gemma_like(adds_bos=True))
    one = bos_first.encode("one", add_special_tokens=False)
    with scripted(TEXT, model={"tokenizer": bos_first}) as (server, engine):
        for path in ("/v1/completions", "/tokenize"):
            for fields, expected in (
                ({"prompt": "one"}, [2, *one]),
                ({"prompt": "<bos>one"}, [2, *one]),
                ({"prompt": "<bos>one", "add_special_tokens": True}, [2, 2, *one]),
                ({"prompt": "one", "add_special_tokens": False}, one),
            ):
                answer = server.post(path, fields).json()
                found = answer["tokens"] if path == "/tokenize" else engine.submitted[-1].prompt_token_ids
                assert list(found) == expected, (path, fields)
        ask(server, prompt="<bos>one", split_special_tokens=True)
        assert engine.submitted[-1].prompt_token_ids[:2] != (2, 2)


def test_several_answers_are_several_requests_with_their_own_seeds(scripted: Scripted) -> None:
    with scripted(TEXT) as (server, engine):
        answer = ask(server, n=3, seed=5, prompt=["one", "two"], temperature=1)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [request.sampling.seed for request in engine.submitted] == [5, 6, 7, 5, 6, 7]
    assert answer["usage"]["completion_tokens"] == 6 * len(engine.script(engine.submitted[0]))


def test_a_stream_says_the_same_in_parts(scripted: Scripted) -> None:
    body = {"prompt": ["one", "two"], "max_tokens": 64, "stream_options": {"include_usage": True}}
    with scripted(TEXT) as (server, _):
        *events, done = server.chunks("/v1/completions", body)
        whole = ask(server, prompt=["one", "two"])
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all("usage" not in chunk for chunk in chunks[:-1])
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == TEXT
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == "stop"


def test_a_stop_string_ends_text_and_request(scripted: Scripted) -> None:
    with scripted([*range(280, 300)] * 20, engine={"seconds_per_turn": 0.005}) as (server, engine):
        whole = ask(server, max_tokens=20)["choices"][0]["text"]
        stop = whole[9:14]
        for stream in (False, True):
            engine.cancelled.clear()
            if stream:
                *events, _ = server.chunks("/v1/completions", {"prompt": "one", "max_tokens": 300, "stop": [stop]})
                choices = [json.loads(event)["choices"][0] for event in events]
                choice = {**choices[-1], "text": "".join(choice["text"] for choice in choices)}
            else:
                choice = ask(server, max_tokens=300, stop=[stop])["choices"][0]
            expected = (whole[: whole.index(stop)], "stop", stop)
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == expected
            assert len(engine.cancelled) == 1
        kept = ask(server, max_tokens=300, stop=stop, include_stop_str_in_output=True)["choices"][0]["text"]
    assert kept == whole[: whole.index(stop)] + stop


def test_stop_tokens_are_named(scripted: Scripted) -> None:
    with scripted([281, 282, 283, 284]) as (server, _):
        answer = ask(server, stop_token_ids=[283], return_token_ids=True)["choices"][0]
    assert (answer["stop_reason"], answer["finish_reason"], answer["token_ids"]) == (283, "stop", [281, 282, 283])


def test_a_server_may_name_tokens_by_their_ids(scripted: Scripted) -> None:
    chat = {"messages": [{"role": "user", "content": "one"}], "logprobs": True}
    with scripted([281, END], return_tokens_as_token_ids=True) as (server, _):
        assert ask(server, logprobs=0)["choices"][0]["logprobs"]["tokens"] == ["token_id:281", f"token_id:{END}"]
        asked_otherwise = ask(server, logprobs=0, return_tokens_as_token_ids=False)
        (content, _) = server.post("/v1/chat/completions", chat).json()["choices"][0]["logprobs"]["content"]
    assert "token_id:281" not in asked_otherwise["choices"][0]["logprobs"]["tokens"]
    assert content["token"] == "token_id:281"


def test_log_probabilities(scripted: Scripted, tokenizer: Tokenizer) -> None:
    with scripted(TEXT) as (server, _):
        whole = ask(server, logprobs=2)["choices"][0]["logprobs"]
        *events, _ = server.chunks("/v1/completions", {"prompt": "one two", "max_tokens": 64, "logprobs": 2})
        named = ask(server, logprobs=0, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    ids = [*tokenizer.encode(TEXT), END]
    texts = [tokenizer.decode_continuation([token_id]) for token_id in ids]
    assert whole["tokens"] == texts
    assert whole["token_logprobs"] == [-0.5] * len(ids)
    assert [len(top) for top in whole["top_logprobs"]] == [3] * len(ids)
    assert whole["text_offset"] == [sum(map(len, texts[:index])) for index in range(len(ids))]
    streamed: dict[str, list[Any]] = {name: [] for name in whole}
    for event in events:
        for name, values in json.loads(event)["choices"][0]["logprobs"].items():
            streamed[name] += values
    assert streamed == whole
    assert named["tokens"] == [f"token_id:{token_id}" for token_id in ids]
    assert named["top_logprobs"][0] == {f"token_id:{ids[0]}": -0.5}


def test_echo(scripted: Scripted, tokenizer: Tokenizer) -> None:
    with scripted(TEXT) as (server, _):
        assert ask(server, echo=True)["choices"][0]["text"] == "one two" + TEXT
        assert ask(server, echo=True, prompt=tokenizer.encode("one two"))["choices"][0]["text"] == "one two" + TEXT
        *events, _ = server.chunks("/v1/completions", {"prompt": "one two", "max_tokens": 64, "echo": True})
        nothing = ask(server, echo=True, max_tokens=0)
        named = ask(server, echo=True, logprob_token_ids=[5, 6])["choices"][0]["logprobs"]
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == "one two" + TEXT
    assert named["text_offset"][0] == 0
    assert (named["token_logprobs"][0], len(named["top_logprobs"][-1])) == (None, 3)
    assert nothing["choices"][0]["text"] == "one two"
    assert nothing["usage"]["completion_tokens"] == 0


MIXED = "Été 😀 你好 naïve"  # most of it in tokens of single bytes


@pytest.mark.parametrize(
    ("prompt", "echoed"),
    [
        ("one two", "one two"),
        (MIXED, MIXED),
        ("<bos>one<turn|>\ntwo", "<bos>one<turn|>\ntwo"),
        ([2, 15, 281, 16, 281], None),  # <bos>, <|turn>, ..., <turn|>, ...
    ],
    ids=str,
)
@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize(
    "body", [{}, {"stop": "weather we"}, {"stop": "r in"}, {"return_tokens_as_token_ids": True}], ids=str
)
def test_offsets_are_places_in_the_text(
    scripted: Scripted, prompt: Any, echoed: str | None, adds_bos: bool, body: dict[str, Any]
) -> None:
    """Of held-back text, of characters in several tokens, of tokens that do not show."""
    tokenizer = Tokenizer(build_gemma_like(adds_bos=adds_bos))
    if echoed is None:
        echoed = tokenizer.decode(prompt)
        assert "<bos>" not in echoed
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 99, "return_token_ids": True, **body}
    with scripted("The weather " + MIXED + " in Paris", model={"tokenizer": tokenizer}) as (server, _):
        choice = ask(server, **body)["choices"][0]
        *events, _ = server.chunks("/v1/completions", body)
    text, offsets = choice["text"], choice["logprobs"]["text_offset"]
    assert text.startswith(echoed)
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    assert len(offsets) == len(ids)
    assert offsets == sorted(offsets)
    assert offsets[len(choice["prompt_token_ids"])] == len(echoed)
    num_whole = 0
    for token_id, offset in zip(ids, offsets, strict=True):
        shown = tokenizer.decode_continuation([token_id])
        is_hidden = shown == "\ufffd" or (token_id in tokenizer.special_ids and shown not in text)
        if not is_hidden and offset + len(shown) <= len(text):
            assert text[offset : offset + len(shown)] == shown
            num_whole += 1
    assert num_whole >= 5
    streamed = [offset for event in events for offset in json.loads(event)["choices"][0]["logprobs"]["text_offset"]]
    assert streamed == offsets


def test_offsets_behind_text_that_is_held_back(scripted: Scripted, tokenizer: Tokenizer) -> None:
    """It may be the beginning of a stop string, and here it never is."""
    with scripted(TEXT) as (server, _):
        plain, held = (
            ask(server, logprobs=0, **body)["choices"][0] for body in ({}, {"stop": ["e weatherman", "ris i!"]})
        )
    assert held["text"] == TEXT
    assert held["logprobs"]["text_offset"] == plain["logprobs"]["text_offset"]


def test_token_ids_come_back(scripted: Scripted, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode(TEXT), END]
    with scripted(TEXT) as (server, _):
        choice = ask(server, return_token_ids=True)["choices"][0]
        body = {"prompt": "one two", "max_tokens": 64, "return_token_ids": True}
        *events, _ = server.chunks("/v1/completions", body)
    choices = [json.loads(event)["choices"][0] for event in events]
    assert choice["prompt_token_ids"] == choices[0]["prompt_token_ids"] == tokenizer.encode("one two")
    assert choice["token_ids"] == [token for choice in choices for token in choice["token_ids"]] == ids


def test_a_server_without_a_tokenizer_speaks_ids(scripted: Scripted) -> None:
    with scripted([281, 282], model={"tokenizer": None, "template": None}) as (server, _):
        assert ask(server, prompt=[5, 6])["choices"][0]["token_ids"] == [281, 282]
        refused = server.post("/v1/completions", {"prompt": "one"})
    assert refused.status_code == 400
    assert "--skip-tokenizer-init" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        ({"temperature": 0.25}, "temperature", 0.25),
        ({"temperature": 0}, "temperature", 0.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": 7}, "top_k", 7),
        ({"top_k": -1}, "top_k", 0),
        ({}, "top_k", 64),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"presence_penalty": 1}, "presence_penalty", 1.0),
        ({"frequency_penalty": -1}, "frequency_penalty", -1.0),
        ({"repetition_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"logit_bias": {"5": 3, "7": -2.5}}, "logit_bias", ((5, 3.0), (7, -2.5))),
        ({"bad_words": ["one"]}, "bad_words", ("one",)),
        ({"allowed_token_ids": [5, 6]}, "allowed_token_ids", (5, 6)),
        ({"min_tokens": 3}, "min_tokens", 3),
        ({"max_tokens": 3}, "max_tokens", 3),
        ({}, "max_tokens", 16),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop_token_ids": [9]}, "stop_token_ids", (9,)),
        ({"seed": 11}, "seed", 11),
        ({"seed": None}, "seed", None),
        ({"logprobs": 3}, "logprobs", 3),
        ({"prompt_logprobs": 1}, "prompt_logprobs", 1),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens", False),
        ({"truncate_prompt_tokens": 2}, "truncate_prompt_tokens", 2),
    ],
    ids=str,
)
def test_every_setting_reaches_the_engine(
    with_defaults: tuple[RunningServer, ScriptedEngine], body: dict[str, Any], field: str, value: Any
) -> None:
    server, engine = with_defaults
    response = server.post("/v1/completions", {"prompt": "one two three four", **body})
    assert response.status_code == 200, response.text
    request = engine.submitted[-1]
    assert getattr(request.sampling, field) == value
    if field == "bad_words":
        assert request.sampling.bad_words_token_ids
    if field == "truncate_prompt_tokens":
        assert len(request.prompt_token_ids) == 2


def test_priority_and_salt_reach_the_engine(scripted: Scripted) -> None:
    with scripted(TEXT) as (server, engine):
        ask(server, priority=-3, cache_salt="mine", request_id="abc")
    assert (engine.submitted[0].priority, engine.submitted[0].cache_salt) == (-3, "mine")
    assert engine.submitted[0].request_id.startswith("cmpl-abc-")
