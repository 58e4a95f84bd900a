"""A chat request -> the prompt's token ids, what binds the reply, and the parser that will read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facet.chat.deltas import ReplyParser
from facet.chat.formats import ends_in_thought
from facet.chat.messages import normalize_messages
from facet.chat.replies import make_reply_parser
from facet.chat.tool_choice import normalize_tools, template_variables
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.sampling_params import SamplingParams
from facet.server.constraints import chat_grammar
from facet.server.engine_requests import encode_prompt
from facet.server.protocol.chat import ChatRequest
from facet.server.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    token_ids: Sequence[int]
    offers_tools: bool
    starts_in_thought: bool
    grammar: GrammarSpec | None


def make_chat_prompt(fields: ChatRequest, sampling: SamplingParams, model: ServedModel) -> ChatPrompt:
    """Checks what only a look at the whole request can tell, renders and encodes."""
    template, tokenizer = model.require_template(), model.require_tokenizer()
    messages = normalize_messages(fields.messages)
    use = normalize_tools(fields.tools, fields.tool_choice)
    if use.choice.mode == "auto" and not model.allows_auto_tool_choice:
        raise RequestError(
            "This server was started with --no-enable-auto-tool-choice. Set tool_choice to none, required, or a tool.",
            field="tool_choice",
        )
    variables = template_variables(
        reasoning_effort=fields.reasoning_effort,
        chat_template_kwargs=fields.chat_template_kwargs,
        default_chat_template_kwargs=model.template_variables,
    )
    adds_opening = fields.add_generation_prompt is not False
    if fields.continue_final_message:
        raise RequestError(
            "continue_final_message is not supported. Send the whole prompt to /v1/completions.",
            field="continue_final_message",
        )
    text = template.render(
        messages,
        tools=use.for_template,
        documents=fields.documents,
        add_generation_prompt=adds_opening,
        variables=variables,
    )
    token_ids = encode_prompt(text, model, sampling, add_special_tokens=bool(fields.add_special_tokens))
    starts_in_thought = ends_in_thought(tokenizer, token_ids)
    grammar = chat_grammar(
        fields,
        use,
        tokenizer,
        may_think=bool(variables["enable_thinking"]),
        starts_in_thought=starts_in_thought,
        parallel_calls=fields.parallel_tool_calls is not False,
    )
    return ChatPrompt(token_ids, use.choice.mode != "none", starts_in_thought, grammar)


def render_messages(
    model: ServedModel,
    messages: object,
    *,
    tools: object,
    add_generation_prompt: bool,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> str:
    """The text of a conversation alone, for those who want to see its tokens."""
    return model.require_template().render(
        normalize_messages(messages),
        tools=normalize_tools(tools).for_template,
        add_generation_prompt=add_generation_prompt,
        variables=template_variables(
            chat_template_kwargs=chat_template_kwargs, default_chat_template_kwargs=model.template_variables
        ),
    )


def make_parser(prompt: ChatPrompt, sampling: SamplingParams, model: ServedModel) -> ReplyParser:
    """A fresh one for each answer."""
    return make_reply_parser(
        model.require_tokenizer(),
        sampling,
        tools_enabled=prompt.offers_tools,
        reasoning_enabled=True,
        starts_in_thought=prompt.starts_in_thought,
    )
