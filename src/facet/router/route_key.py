"""Summarises a request body by what a route is chosen by: the links of its prefix, its session, its pin.

A replica's cache shares the tokens of two prompts up to the first that differs. The router sees bodies before they are
rendered and tokenized, so it compares their bytes instead, in the order in which a chat template writes them: model and
template settings, tools, system prompt, then messages, prompt or input. Two bodies with the same link agree on all
bytes up to its end, and so on all tokens up to about there. Where the two differ, only a route is less good:

- The same JSON written with other blanks, or with keys in another order, is another prefix here and none to the cache.
- The same conversation through another API is another prefix here.
- Requests of different owners (API keys) never share a prefix here, although they share the cache unless their
  `cache_salt` differs.
- A template that drops thoughts from earlier replies ends what the cache shares there, unseen by the router.
- Links are further apart than the cache's, and the further into the body the more, so that a body of any length has few
  of them: what the last link leaves out is at most an eighth, or 256 bytes.

Links are values of Python's `hash`, which is keyed by a secret of the process: strangers cannot make two bodies
collide, and a key means nothing to another process.
"""

import hashlib
import re
from bisect import bisect_right
from dataclasses import dataclass

import msgspec

_SHORTEST_LINK = 256
_LONGEST_BODY = 1 << 30
# Breakpoints of Anthropic's clients move from message to message with every turn, and the cache does not see them.
_BREAKPOINT = re.compile(rb'(?:,\s*)?"cache_control"\s*:\s*\{[^{}]*\}')


@dataclass(frozen=True, slots=True)
class RouteKey:
    links: tuple[int, ...] = ()  # of the prefixes that end at LINK_ENDS, the shortest first
    num_bytes: int = 0  # of what becomes the prompt
    session: int | None = None  # requests of a session stay together while there is room
    pin: int | None = None  # something that only one replica has, such as a stored response

    def bytes_up_to(self, num_links: int) -> int:
        """How much of the prompt that many links cover."""
        return LINK_ENDS[num_links - 1] if num_links else 0


def make_route_key(
    path: str, body: bytes | bytearray, *, owner: bytes = b"", session: str | None = None, pin: str | None = None
) -> RouteKey:
    """`owner` tells the holders of API keys apart. A body that is not a JSON object has no prefix."""
    session_digest = _digest_of_name(b"session", owner, session)
    try:
        fields = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return RouteKey(session=session_digest, pin=make_pin(owner, pin))
    head = b"\n".join((fields.model, fields.chat_template, fields.chat_template_kwargs, fields.reasoning_effort,
                       fields.thinking, fields.think, fields.tools, fields.system, fields.instructions))  # fmt: skip
    prompt = b"\n".join((head, fields.messages, fields.prompt, fields.input))
    if b'"cache_control"' in prompt:
        prompt = _BREAKPOINT.sub(b"", prompt)
    link = hash((owner, path, bytes(fields.cache_salt)))
    links = []
    start = 0
    for end in LINK_ENDS[: bisect_right(LINK_ENDS, len(prompt))]:
        link = hash((link, prompt[start:end]))
        links.append(link)
        start = end
    return RouteKey(tuple(links), len(prompt), session_digest, make_pin(owner, pin or fields.previous_response_id))


def make_pin(owner: bytes, name: str | None) -> int | None:
    return _digest_of_name(b"pin", owner, name)


def stable_digest(data: bytes) -> int:
    """64 bits that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest())


def _digest_of_name(kind: bytes, owner: bytes, name: str | None) -> int | None:
    return stable_digest(b"%b\0%b\0%b" % (kind, owner, name.encode("utf-8", "surrogatepass"))) if name else None


class _Fields(msgspec.Struct):
    """What of a body reaches the prompt, as it is written there."""

    model: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    chat_template: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    reasoning_effort: msgspec.Raw = msgspec.Raw()
    thinking: msgspec.Raw = msgspec.Raw()
    think: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    previous_response_id: str | None = None


_DECODER = msgspec.json.Decoder(_Fields)


def _link_ends() -> tuple[int, ...]:
    ends = [_SHORTEST_LINK]
    while ends[-1] < _LONGEST_BODY:
        ends.append(ends[-1] + max(_SHORTEST_LINK, ends[-1] // 8))
    return tuple(ends)


LINK_ENDS = _link_ends()
