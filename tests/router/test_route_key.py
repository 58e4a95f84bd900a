"""What two bodies share, as the router sees it."""

import json
from typing import Any

import pytest

from facet.router import RouteKey, make_route_key

CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are kind. " * 100}


def key_of(path: str = CHAT, *, owner: bytes = b"", **body: Any) -> RouteKey:
    return make_route_key(path, json.dumps(body).encode(), owner=owner)


def num_shared(one: RouteKey, other: RouteKey) -> int:
    same = [a == b for a, b in zip(one.links, other.links, strict=False)]
    assert same == sorted(same, reverse=True), "behind a link that differs all others do"
    return sum(same)


def turns(count: int) -> list[dict[str, Any]]:
    return [SYSTEM, *({"role": "user", "content": f"{turn} " * 300} for turn in range(count))]


def test_a_conversation_that_goes_on_begins_with_all_its_links() -> None:
    for count in range(1, 12):
        before, after = key_of(messages=turns(count)), key_of(messages=turns(count + 1), stream=True, seed=5)
        assert num_shared(before, after) >= len(before.links) - 1  # the last may end at the bracket behind
        assert before.bytes_up_to(len(before.links)) >= before.num_bytes * 8 / 9 - 256


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({}, 20, 20),
        ({"temperature": 0.5, "max_tokens": 7, "user": "me"}, 20, 20),
        ({"cache_salt": "a"}, 0, 0),
        ({"tools": [{"type": "function"}]}, 0, 0),
        ({"chat_template_kwargs": {"enable_thinking": True}}, 0, 0),
        ({"model": "another"}, 0, 0),
        ({"messages": [SYSTEM, {"role": "user", "content": "other"}]}, 4, 6),
    ],
)
def test_what_makes_another_prefix(fields: dict[str, Any], least: int, most: int) -> None:
    messages = turns(30)
    one, other = key_of(messages=messages), key_of(**{"messages": messages, **fields})
    assert least <= min(20, num_shared(one, other)) <= most


def test_owners_share_nothing_and_apis_are_apart() -> None:
    prompt = "word " * 1000
    one = key_of("/v1/completions", prompt=prompt, owner=b"a")
    assert num_shared(one, key_of("/v1/completions", prompt=prompt, owner=b"a")) == len(one.links) > 0
    assert num_shared(one, key_of("/v1/completions", prompt=prompt, owner=b"b")) == 0
    assert num_shared(one, key_of("/api/generate", prompt=prompt, owner=b"a")) == 0


def test_breakpoints_that_move_do_not_divide_a_conversation() -> None:
    def message(text: str, *, is_marked: bool) -> dict[str, Any]:
        mark = {"cache_control": {"type": "ephemeral"}} if is_marked else {}
        return {"role": "user", "content": [{"type": "text", "text": text * 200, **mark}]}

    first = key_of("/v1/messages", messages=[message("one ", is_marked=True)])
    second = key_of("/v1/messages", messages=[message("one ", is_marked=False), message("two ", is_marked=True)])
    assert num_shared(first, second) == len(first.links) == 3


def test_sessions_and_pins_are_those_of_an_owner() -> None:
    def session(owner: bytes, name: str) -> int | None:
        return make_route_key(CHAT, b"{}", owner=owner, session=name).session

    assert session(b"a", "s") == session(b"a", "s") != session(b"b", "s")
    assert session(b"a", "s") != make_route_key(CHAT, b"{}", owner=b"a", pin="s").pin
    assert make_route_key(CHAT, b"{}").session is None
    earlier = make_route_key("/v1/responses", b'{"input": "x", "previous_response_id": "resp_1"}')
    assert earlier.pin == make_route_key("/v1/responses/resp_1", b"", pin="resp_1").pin is not None


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"{", b'{"messages": ', b"\xff\xfe", b'{"previous_response_id": 5}', b"[" * 10_000]
)
def test_a_body_that_cannot_be_read_has_no_prefix(body: bytes) -> None:
    assert make_route_key(CHAT, body) == RouteKey()
