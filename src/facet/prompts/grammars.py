"""Makes the grammar that constrains an answer, from what a question asks for."""

import logging
from collections.abc import Mapping
from typing import Any

from facet.chat.answer_grammar import (
    choice_grammar,
    ebnf_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
)
from facet.chat.formats import ReplyMarkers
from facet.chat.json_call_grammar import json_call_grammar
from facet.chat.structural_tags import structural_tag_grammar
from facet.chat.tool_choice import ToolUse
from facet.chat.tool_grammar import call_or_answer_grammar, thought_tokens, tool_call_grammar
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.prompts.questions import ChatQuestion, Question
from facet.structured_outputs import StructuredOutputsParams
from facet.thoughts import ThoughtTokens
from facet.tokens import Tokenizer

logger = logging.getLogger(__name__)


def answer_grammar(
    question: Question, thought: ThoughtTokens | None = None, *, any_whitespace: bool
) -> GrammarSpec | None:
    """The grammar of `structured_outputs` or `response_format`. With `thought`, a thought may come first.

    `any_whitespace` says whether JSON may be spaced as the model likes, where the question does not say.
    """
    wanted = question.sampling.structured_outputs
    if wanted is not None and wanted.any_whitespace is not None:
        any_whitespace = wanted.any_whitespace
    bound = _response_format_grammar(question.response_format, thought, any_whitespace)
    if wanted is None:
        return bound
    if not wanted.is_constraint:
        if bound is None:
            raise RequestError(
                "structured_outputs.any_whitespace is about JSON, and nothing asks for JSON. Add json, json_object or "
                "response_format, or leave it out.",
                field="structured_outputs",
            )
        return bound
    if bound is not None:
        raise RequestError(
            "response_format and structured_outputs both constrain the answer. Send one of them.",
            field="structured_outputs",
        )
    return _structured_outputs_grammar(wanted, thought, any_whitespace)


def chat_grammar(
    question: ChatQuestion,
    use: ToolUse,
    tokenizer: Tokenizer,
    *,
    may_think: bool,
    starts_in_thought: bool,
    any_whitespace: bool,
) -> GrammarSpec | None:
    """The grammar that constrains the reply of a chat: of its tools, or of the requested format."""
    markers = ReplyMarkers.find(tokenizer)
    thought = thought_tokens(markers, thinking=may_think, starts_in_thought=starts_in_thought)
    bound = answer_grammar(question, thought, any_whitespace=any_whitespace)
    if use.choice.mode == "none":
        return bound
    is_auto = use.choice.mode == "auto"
    if bound is not None and is_auto and markers is not None and bound.kind in ("json_object", "json_schema"):
        return call_or_answer_grammar(use, markers, bound, parallel=question.parallel_tool_calls)
    # Where calls are all that may come, there is no text for a format to apply to.
    if bound is not None and (is_auto or bound.field != "response_format"):
        raise RequestError(
            f"{bound.field} constrains the whole answer, which leaves no room for tool calls. Set tool_choice to none, "
            f"or leave {bound.field} out.",
            field=bound.field,
        )
    if markers is None:
        return json_call_grammar(use, parallel=question.parallel_tool_calls, any_whitespace=any_whitespace)
    try:
        return tool_call_grammar(
            use,
            markers,
            parallel=question.parallel_tool_calls,
            thinking=may_think,
            starts_in_thought=starts_in_thought,
        )
    except RequestError as error:
        if use.is_strict:
            raise
        # Nothing was promised: calls are parsed as the model writes them, without a grammar.
        logger.warning("Tool calls are not constrained to their schemas: %s", error)
        return None


def _response_format_grammar(
    response_format: Mapping[str, Any] | None, thought: ThoughtTokens | None, any_whitespace: bool
) -> GrammarSpec | None:
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise RequestError(
            f'response_format must be an object such as {{"type": "json_object"}}, not {response_format!r}.',
            field="response_format",
        )
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return json_object_grammar(thought=thought, any_whitespace=any_whitespace)
    if kind == "json_schema":
        described = response_format.get("json_schema")
        if not isinstance(described, Mapping) or "schema" not in described:
            raise RequestError(
                'response_format of type json_schema needs {"json_schema": {"name": ..., "schema": {...}}}.',
                field="response_format",
            )
        return json_schema_grammar(described["schema"], thought=thought, any_whitespace=any_whitespace)
    if kind == "structural_tag":
        return structural_tag_grammar(
            response_format, thought=thought, any_whitespace=any_whitespace, field="response_format"
        )
    raise RequestError(
        f"response_format.type is {kind!r}, but must be text, json_object, json_schema or structural_tag.",
        field="response_format",
    )


def _structured_outputs_grammar(
    wanted: StructuredOutputsParams, thought: ThoughtTokens | None, any_whitespace: bool
) -> GrammarSpec:
    field = "structured_outputs"
    if wanted.json is not None:
        return json_schema_grammar(wanted.json, thought=thought, any_whitespace=any_whitespace, field=field)
    if wanted.regex is not None:
        return regex_grammar(wanted.regex, thought=thought, field=field)
    if wanted.choice is not None:
        return choice_grammar(wanted.choice, thought=thought, field=field)
    if wanted.grammar is not None:
        return ebnf_grammar(wanted.grammar, thought=thought, field=field)
    if wanted.structural_tag is not None:
        return structural_tag_grammar(
            wanted.structural_tag, thought=thought, any_whitespace=any_whitespace, field=field
        )
    return json_object_grammar(thought=thought, any_whitespace=any_whitespace, field=field)
