"""Prepares a question: makes the requests for the engine, and says how their answers are to be read.

Rendering and encoding take time, so the server calls this in a thread.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from facet.chat.formats import ReplyMarkers, find_thought
from facet.chat.media_parts import MediaParts
from facet.chat.messages import normalize_messages
from facet.chat.tool_choice import ToolUse, normalize_tools, template_variables
from facet.errors import RequestError
from facet.grammar_spec import GrammarSpec
from facet.media_span import MediaKind
from facet.prepared_media import PreparedMedia
from facet.prompts.asked_model import AskedModel, check_thinking_token_budget
from facet.prompts.continuing import cut_at, mark_end
from facet.prompts.expanding import ExpandedPrompt, Item, expand
from facet.prompts.grammars import answer_grammar, chat_grammar
from facet.prompts.questions import ChatQuestion, Question, TextQuestion
from facet.prompts.reading import ReplyFormat
from facet.request import Request
from facet.sampling_params import MODEL_CONTEXT, SamplingParams
from facet.thoughts import ThoughtTokens
from facet.tokens.bad_words import bad_words_token_ids
from facet.tokens.prompt_text import PromptText

# What may be counted though it fits into no prompt: texts of several contexts, to be cut by whoever asks.
TOKENIZED_CONTEXTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedQuestion:
    prompt_text: str | None  # as it was given or rendered; None where token ids were given
    requests: tuple[Request, ...]  # one for each of the n answers
    reply_format: ReplyFormat | None  # None: an answer is text and nothing else
    media: tuple[PreparedMedia, ...] = ()  # in the order of the requests' spans, which are the same for all

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        return self.requests[0].prompt_token_ids

    @property
    def num_media_tokens(self) -> dict[MediaKind, int]:
        """The number of the prompt's tokens that are media, by kind."""
        counts: dict[MediaKind, int] = {}
        for span in self.requests[0].media:
            counts[span.kind] = counts.get(span.kind, 0) + span.length
        return counts


def prepare(
    question: TextQuestion | ChatQuestion,
    model: AskedModel,
    request_ids: Sequence[str],
    media: Sequence[tuple[PreparedMedia, ...]] = (),
) -> PreparedQuestion:
    """Check, render, encode. `request_ids` are for the n answers; `media` is what `find_media` found, prepared."""
    if isinstance(question, ChatQuestion):
        return _prepare_chat(question, model, request_ids, media)
    prompt: PromptText | Sequence[int]
    if not isinstance(question.prompt, str):
        prompt = question.prompt
    elif question.split_special_tokens:
        prompt = PromptText.from_outside(question.prompt)
    else:
        prompt = PromptText(question.prompt)
    expanded = _expand(prompt, [Item(one[0].kind, one) for one in media], model, question)
    grammar = answer_grammar(question, any_whitespace=model.any_whitespace)
    thought = _thought(question, expanded.token_ids, model)
    if thought is not None and grammar is not None:
        # It binds a text from its first token on: to close a thought that the prompt left open would break its shape.
        thought = replace(thought, is_open=False)
    return PreparedQuestion(
        prompt_text=question.prompt if isinstance(question.prompt, str) else None,
        requests=_make_requests(question, expanded, grammar, thought, model, request_ids),
        reply_format=None,
        media=expanded.media,
    )


def tokenize_chat(
    question: ChatQuestion, model: AskedModel, media: Sequence[tuple[PreparedMedia, ...]] = ()
) -> ExpandedPrompt:
    """The prompt of a conversation that is only to be counted or looked at, so it need not fit into the context."""
    return _render(question, model, media, num_contexts=TOKENIZED_CONTEXTS).prompt


@dataclass(frozen=True, slots=True)
class _Rendered:
    """The prompt of a conversation, as text and as tokens."""

    text: str
    prompt: ExpandedPrompt
    tools: ToolUse
    may_think: bool


def _render(
    question: ChatQuestion,
    model: AskedModel,
    media: Sequence[tuple[PreparedMedia, ...]],
    *,
    num_contexts: int = 1,
) -> _Rendered:
    template = model.template_for(question.chat_template)
    limit = None if _is_cut(question) else model.text_limit(num_contexts=num_contexts)
    if limit is not None:
        limit.check_count(_num_items(question.messages, question.tools))
    parts = model.media_parts()
    messages = normalize_messages(question.messages, parts.take)
    items = _items(parts, media)
    tools = normalize_tools(question.tools, question.tool_choice)
    variables = template_variables(
        reasoning_effort=question.reasoning_effort,
        chat_template_kwargs=question.chat_template_kwargs,
        default_chat_template_kwargs=model.template_variables,
    )
    if question.sampling.thinking_token_budget == 0:
        variables["enable_thinking"] = False
    seam = mark_end(messages) if question.continue_final_message else None
    prompt = template.render(
        messages,
        tools=tools.for_template,
        tools_as_json=ReplyMarkers.find(model.require_tokenizer()) is None,
        documents=question.documents,
        add_generation_prompt=question.add_generation_prompt and seam is None,
        variables=variables,
        limit=limit,
    )
    if seam is not None:
        prompt = cut_at(seam, prompt)
    expanded = _expand(prompt, items, model, question, num_contexts=num_contexts)
    return _Rendered(prompt.text, expanded, tools, variables["enable_thinking"])


def _prepare_chat(
    question: ChatQuestion,
    model: AskedModel,
    request_ids: Sequence[str],
    media: Sequence[tuple[PreparedMedia, ...]],
) -> PreparedQuestion:
    rendered = _render(question, model, media)
    thought = _thought(question, rendered.prompt.token_ids, model)
    starts_in_thought = thought is not None and thought.is_open
    grammar = chat_grammar(
        question,
        rendered.tools,
        model.require_tokenizer(),
        may_think=rendered.may_think,
        starts_in_thought=starts_in_thought,
        any_whitespace=model.any_whitespace,
    )
    return PreparedQuestion(
        prompt_text=rendered.text,
        requests=_make_requests(question, rendered.prompt, grammar, thought, model, request_ids),
        reply_format=ReplyFormat(
            offers_tools=rendered.tools.choice.mode != "none",
            starts_in_thought=starts_in_thought,
            ends_after_one_call=not question.parallel_tool_calls,
            custom_tools=frozenset(rendered.tools.custom),
            tool_names=frozenset(tool["function"]["name"] for tool in rendered.tools.callable_tools),
            calls_come_first=rendered.tools.is_strict,
        ),
        media=rendered.prompt.media,
    )


def _items(parts: MediaParts, media: Sequence[tuple[PreparedMedia, ...]]) -> list[Item]:
    return [Item(part.kind, prepared) for part, prepared in zip(parts.found, media, strict=True)]


def _num_items(messages: object, tools: object) -> int:
    """How many messages, parts of messages and tools there are. Nothing is checked yet, so anything may be sent."""
    messages, tools = (value if isinstance(value, list | tuple) else () for value in (messages, tools))
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    return len(messages) + len(tools) + sum(len(content) for content in contents if isinstance(content, list | tuple))


def _is_cut(question: Question) -> bool:
    """Whether a prompt that is too long is cut instead of refused."""
    return question.sampling.truncate_prompt_tokens is not None


def _encode(
    prompt: PromptText | Sequence[int], model: AskedModel, question: TextQuestion | ChatQuestion, *, num_contexts: int
) -> tuple[int, ...]:
    """Token ids of the prompt, cut from the left where the question asks for that."""
    sampling = question.sampling
    limit = sampling.truncate_prompt_tokens
    if limit == MODEL_CONTEXT:
        limit = max(1, model.max_model_len - (sampling.max_tokens or 1))
    if not isinstance(prompt, PromptText):
        return tuple(prompt if limit is None else prompt[-limit:])
    if limit is None:
        model.text_limit(num_contexts=num_contexts).check(prompt.text)
    return tuple(
        model.require_tokenizer().encode_prompt(
            prompt, add_special_tokens=question.add_special_tokens, max_tokens=limit
        )
    )


def _expand(
    prompt: PromptText | Sequence[int],
    items: Sequence[Item],
    model: AskedModel,
    question: TextQuestion | ChatQuestion,
    *,
    num_contexts: int = 1,
) -> ExpandedPrompt:
    """Token ids of a prompt, with media in their places; refused where its text surely fills more contexts."""
    if not items:
        return ExpandedPrompt(token_ids=_encode(prompt, model, question, num_contexts=num_contexts))
    if not isinstance(prompt, PromptText):
        raise RequestError(
            "multi_modal_data needs a prompt with placeholders in words. Give text instead of token ids.",
            field="multi_modal_data",
        )
    if _is_cut(question):
        raise RequestError(
            "truncate_prompt_tokens is given, but a prompt with pictures, sound or video is not cut. Leave it out.",
            field="truncate_prompt_tokens",
        )
    model.text_limit(num_contexts=num_contexts).check(prompt.text)
    tokenizer = model.require_tokenizer()
    return expand(
        prompt,
        items,
        model.media,
        tokenizer,
        adds_special_tokens=question.add_special_tokens,
        is_rendered=isinstance(question, ChatQuestion),
    )


def _thought(question: Question, token_ids: Sequence[int], model: AskedModel) -> ThoughtTokens | None:
    """How the answer's thoughts are marked; refuses a budget for them that makes no sense."""
    thought = None if model.tokenizer is None else find_thought(model.tokenizer, token_ids, model.eos_token_ids)
    budget = question.sampling.thinking_token_budget
    if budget is not None:
        check_thinking_token_budget(budget, has_thoughts=thought is not None, max_model_len=model.max_model_len)
    return thought


def _make_requests(
    question: Question,
    prompt: ExpandedPrompt,
    grammar: GrammarSpec | None,
    thought: ThoughtTokens | None,
    model: AskedModel,
    request_ids: Sequence[str],
) -> tuple[Request, ...]:
    sampling = _settled(question, len(prompt.token_ids), model)
    arrival_time = time.monotonic()
    every_answer = isinstance(question, TextQuestion) and question.has_prompt_logprobs_in_every_answer
    contents = tuple({content.content_key: content for content in prompt.media}.values())
    requests = []
    for index, request_id in zip(range(sampling.n), request_ids, strict=True):
        settings = sampling.for_output(index)
        if index and settings.prompt_logprobs is not None and not every_answer:
            settings = replace(settings, prompt_logprobs=None)
        requests.append(
            Request(
                request_id=request_id,
                prompt_token_ids=prompt.token_ids,
                sampling=settings,
                eos_token_ids=model.eos_token_ids,
                priority=question.priority,
                arrival_time=arrival_time,
                cache_salt=question.cache_salt,
                grammar=grammar,
                thought=thought,
                media=prompt.spans,
                contents=contents,
                adapter=model.adapter,
            )
        )
    return tuple(requests)


def _settled(question: Question, num_prompt_tokens: int, model: AskedModel) -> SamplingParams:
    """The sampling settings with what depends on the model and on the prompt's length."""
    sampling = question.sampling
    changes: dict[str, Any] = {}
    if sampling.bad_words and not sampling.bad_words_token_ids:
        changes["bad_words_token_ids"] = bad_words_token_ids(sampling.bad_words, model.require_tokenizer())
    if sampling.structured_outputs is not None:
        changes["structured_outputs"] = None  # the grammar made of it is part of the request
    if question.is_max_tokens_default and sampling.max_tokens is not None:
        # A default must not refuse what its user never asked for: it ends where the context does.
        room = max(1, model.max_model_len - num_prompt_tokens)
        changes |= {"max_tokens": min(sampling.max_tokens, room), "min_tokens": min(sampling.min_tokens, room)}
    return replace(sampling, **changes) if changes else sampling
