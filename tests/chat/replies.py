"""Replies for the parser tests: text with control tokens -> token ids, and deltas put together again."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from facet.chat.deltas import ContentDelta, Delta, ReasoningDelta, ReplyParser, ToolCallArguments, ToolCallStart
from facet.chat.replies import make_reply_parser
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer


@dataclass
class Assembled:
    """A reply as a client would put it together."""

    reasoning: str = ""
    content: str = ""
    calls: list[list[str]] = field(default_factory=list)  # name and arguments
    call_ids: list[str] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> "Assembled":
        for delta in deltas:
            match delta:
                case ReasoningDelta(text):
                    assert text, "a delta says something"
                    self.reasoning += text
                case ContentDelta(text):
                    assert text, "a delta says something"
                    self.content += text
                case ToolCallStart(index, call_id, name):
                    assert index == len(self.calls), "calls count up"
                    self.calls.append([name, ""])
                    self.call_ids.append(call_id)
                case ToolCallArguments(index, fragment):
                    assert fragment
                    assert index == len(self.calls) - 1, "a call's arguments are not interrupted by another's"
                    self.calls[index][1] += fragment
        return self

    def is_prefix_of(self, other: "Assembled") -> bool:
        return (
            other.reasoning.startswith(self.reasoning)
            and other.content.startswith(self.content)
            and len(self.calls) <= len(other.calls)
            and all(
                mine[0] == theirs[0] and theirs[1].startswith(mine[1])
                for mine, theirs in zip(self.calls, other.calls, strict=False)
            )
        )


def encode_reply(tokenizer: Tokenizer, reply: str | Sequence[Any], *, by_character: bool = False) -> list[int]:
    """Control tokens in strings are tokens; a part {"text": ...} is text whatever it looks like."""
    parts = [reply] if isinstance(reply, str) else reply
    token_ids: list[int] = []
    for part in parts:
        if not isinstance(part, str):
            token_ids += encode_characters(tokenizer, part["text"])
        elif by_character:
            for token_id in tokenizer.encode(part, add_special_tokens=False):
                is_control = token_id in tokenizer.special_ids
                text = "" if is_control else tokenizer.decode_continuation([token_id])
                whole = is_control or "\ufffd" in text
                token_ids += [token_id] if whole else encode_characters(tokenizer, text)
        else:
            token_ids += tokenizer.encode(part, add_special_tokens=False)
    return token_ids


def encode_characters(tokenizer: Tokenizer, text: str) -> list[int]:
    return [token_id for character in text for token_id in tokenizer.encode(character, add_special_tokens=False)]


def make_parser(
    tokenizer: Tokenizer,
    *,
    tools_enabled: bool = True,
    starts_in_thought: bool = False,
    **sampling: Any,
) -> ReplyParser:
    numbers = iter(range(1_000_000))
    return make_reply_parser(
        tokenizer,
        SamplingParams(max_tokens=None, **sampling),
        tools_enabled=tools_enabled,
        starts_in_thought=starts_in_thought,
        new_call_id=lambda: f"call_{next(numbers)}",
    )


def read_reply(parser: ReplyParser, token_ids: Iterable[int], *, is_complete: bool) -> Assembled:
    assembled = Assembled()
    for token_id in token_ids:
        assembled.add(parser.push(token_id))
    return assembled.add(parser.finish(is_complete=is_complete))


def is_whole(arguments: str) -> bool:
    """Whether a client would take the call for a finished one."""
    try:
        return isinstance(json.loads(arguments), dict)
    except json.JSONDecodeError:
        return False


def is_half_a_string(arguments: str) -> bool:
    """Whether arguments stop inside a string."""
    try:
        json.loads(arguments)
    except json.JSONDecodeError as error:
        # The second: for an escape that nothing follows.
        return error.msg.startswith(("Unterminated string", "Invalid \\uXXXX escape"))
    return False
