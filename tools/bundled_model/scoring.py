"""Scores one reply: its calls, their syntax, the shape of its thought, what it tells. Pure functions.

Replies are read by Facet's own parser, which is lenient; syntax is therefore judged by writing the calls again and
comparing them with what the model wrote.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from facet.chat.call_syntax import NumberText, render_call_arguments
from facet.chat.deltas import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from facet.chat.replies import make_reply_parser
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer
from tools.bundled_model.dialogues.conversation import Call

_OPENS_THOUGHT = "<|channel>thought\n"
_CLOSES_THOUGHT = "\n<channel|>"
_OPENS_CALL = "<|tool_call>"
_ENDS_OF_TEXT = ("<turn|>", "<eos>")
_END_OF_CALLS = "<|tool_response>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    text: str  # as the model wrote it, control tokens included, also the thought's opening if the prompt wrote that
    content: str
    thought: str
    calls: tuple[tuple[str, str], ...]  # names and arguments, these as JSON


def read_reply(
    tokenizer: Tokenizer, token_ids: Sequence[int], *, is_complete: bool, has_tools: bool, starts_in_thought: bool
) -> Reply:
    """As the server reads it. `is_complete`: the model ended the reply, and its last token is what ended it."""
    parser = make_reply_parser(
        tokenizer,
        SamplingParams(max_tokens=None),
        tools_enabled=has_tools,
        starts_in_thought=starts_in_thought,
    )
    deltas = [delta for token_id in token_ids[: -1 if is_complete else None] for delta in parser.push(token_id)]
    deltas += parser.finish(is_complete=is_complete)
    content = thought = ""
    names: list[str] = []
    arguments: list[str] = []
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content += text
            case ReasoningDelta(text):
                thought += text
            case ToolCallStart(name=name):
                names.append(name)
                arguments.append("")
            case ToolCallArguments(index, fragment):
                arguments[index] += fragment
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    return Reply(
        text=_OPENS_THOUGHT + text if starts_in_thought else text,
        content=content,
        thought=thought,
        calls=tuple(zip(names, arguments, strict=True)),
    )


def calls_are_right(reply: Reply, expected: Sequence[Call]) -> bool:
    """The same tools in the same order with the same arguments; 1, 1.0 and true are three different values."""
    if len(reply.calls) != len(expected):
        return False
    for (name, arguments), call in zip(reply.calls, expected, strict=True):
        try:
            given = json.loads(arguments)
        except json.JSONDecodeError:
            return False
        if name != call.tool_name or _canonical(given) != _canonical(call.arguments_as_json()):
            return False
    return True


def attempts_call(reply: Reply) -> bool:
    return _OPENS_CALL in reply.text


def syntax_is_valid(reply: Reply) -> bool:
    """Whether the reply is, apart from its thought, nothing but well-written calls and what ends them."""
    _, _, after_thought = reply.text.rpartition("<channel|>")
    try:
        written = [
            f"{_OPENS_CALL}call:{name}{render_call_arguments(_as_written(arguments))}<tool_call|>"
            for name, arguments in reply.calls
        ]
    except json.JSONDecodeError:
        return False
    return bool(written) and after_thought == "".join(written) + _END_OF_CALLS


def thought_is_well_formed(reply: Reply) -> bool:
    """One thought that says something, in front, closed, and an answer or a call after it."""
    thought, closing, rest = reply.text.partition(_CLOSES_THOUGHT)
    return (
        thought.startswith(_OPENS_THOUGHT)
        and bool(thought.removeprefix(_OPENS_THOUGHT).strip())
        and bool(closing)
        and "<|channel>" not in thought.removeprefix(_OPENS_THOUGHT) + rest
        and "<channel|>" not in rest
        and (rest.startswith(_OPENS_CALL) or (rest.endswith(_ENDS_OF_TEXT) and bool(reply.content.strip())))
    )


def declines(reply: Reply) -> bool:
    """Whether the reply has words and no call."""
    return not attempts_call(reply) and reply.text.endswith(_ENDS_OF_TEXT) and bool(reply.content.strip())


def tells(reply: Reply, facts: Sequence[str]) -> bool:
    """Whether the reply is an answer in words with every fact."""
    return declines(reply) and all(fact in reply.content for fact in facts)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _as_written(arguments: str) -> object:
    return json.loads(arguments, parse_int=NumberText, parse_float=NumberText)
