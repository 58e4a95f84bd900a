"""Makes the grammar of tool calls, in the syntax in which Gemma 4 and FunctionGemma write them.

    <|tool_call>call:NAME{key:value,...}<tool_call|>
    <start_function_call>call:NAME{key:value,...}<end_function_call>

The markers are tokens, and so are the delimiters of strings: the grammar names them by id, so no text can imitate one.
gemma_reply.py parses the calls.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from facet.chat.custom_tools import ARGUMENT, renamed_lark
from facet.chat.formats import ReplyMarkers
from facet.chat.grammar_rules import GrammarRules, literal, one_of, token
from facet.chat.schema_rules import SchemaRules
from facet.chat.tool_choice import ToolChoice, ToolUse
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.thoughts import ThoughtTokens

_TOOL_NAME = re.compile(r"[\w.:/-]+")
# The parameters of a tool that declares none: it takes none.
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_call_grammar(
    use: ToolUse,
    markers: ReplyMarkers,
    *,
    parallel: bool = True,
    thinking: bool = False,
    starts_in_thought: bool = False,
) -> GrammarSpec | None:
    """What calls of these tools must look like. None: there are none to call.

    auto: text is free, and a call is bound from the token that opens it to the one that closes it. required: the answer
    is one call or more, and nothing else. named: likewise, all calls being of that tool. Without `parallel` there is at
    most one call. With `thinking` a thought may come before all that; `starts_in_thought` says that the prompt has
    already opened it.
    """
    choice = use.choice
    functions = [_function(tool) for tool in use.callable_tools]
    if choice.mode == "named":
        functions = [function for function in functions if function["name"] == choice.name]
    if choice.mode == "none" or not functions:
        return None
    is_free = choice.mode == "auto"
    return GrammarSpec(
        kind="tool_calls",
        sources=(_grammar(functions, use.custom, markers, is_repeated=parallel and not is_free),),
        trigger_token_id=markers.opens_call if is_free else None,
        may_trigger_again=parallel,
        # Where text is free so are thoughts, and what looks like a call inside one is none.
        thought=thought_tokens(markers, thinking=thinking or is_free, starts_in_thought=starts_in_thought),
        field="tools",
    )


def call_or_answer_grammar(
    use: ToolUse, markers: ReplyMarkers, answer: GrammarSpec, *, parallel: bool = True
) -> GrammarSpec:
    """Calls of these tools, one or more, or else the JSON that `answer` describes, and nothing beside either."""
    calls = tool_call_grammar(replace(use, choice=ToolChoice("required")), markers, parallel=parallel)
    return (
        answer if calls is None else replace(answer, kind="tool_calls_or_json", sources=calls.sources + answer.sources)
    )


def thought_tokens(
    markers: ReplyMarkers | None, *, thinking: bool, starts_in_thought: bool = False
) -> ThoughtTokens | None:
    """The thought of a `GrammarSpec`: the tokens of a thought that may come before the answer. None: none may."""
    if markers is None or markers.opens_channel is None or markers.closes_channel is None:
        return None
    if not (thinking or starts_in_thought):
        return None
    return ThoughtTokens(open_id=markers.opens_channel, close_id=markers.closes_channel, is_open=starts_in_thought)


def _grammar(
    functions: Sequence[Mapping[str, Any]],
    custom: Mapping[str, str | None],
    markers: ReplyMarkers,
    *,
    is_repeated: bool,
) -> str:
    rules = GrammarRules(markers.string_delimiter)
    calls: list[str] = []
    for function in functions:
        name, schema = function["name"], function.get("parameters") or _NO_PARAMETERS
        if (grammar := custom.get(name)) is None:
            arguments = SchemaRules(schema, rules, name=name, field="tools").root()
        else:
            included, start = renamed_lark(grammar, f"custom{len(calls)}", name)
            rules.include(included)
            arguments = f"{literal(f'{{{ARGUMENT}:')} {rules.quote} {start} {rules.quote} {literal('}')}"
        calls.append(f"{literal(f'call:{name}')} {arguments}")
    call = rules.add(f"{token(markers.opens_call)} {one_of(calls)} {token(markers.closes_call)}")
    return rules.text(f"{call}+" if is_repeated else call)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function: Mapping[str, Any] = tool["function"]
    if not _TOOL_NAME.fullmatch(function["name"]):
        raise RequestError(
            f"The tool {function['name']!r} cannot be called: a name has letters, digits, _ . : / or -.", field="tools"
        )
    return function
