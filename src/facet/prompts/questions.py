"""Defines what a caller asks, in the caller's own terms. Nothing is checked yet; `prepare` does that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facet.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What both kinds of questions have in common."""

    sampling: SamplingParams  # the model's defaults are already in it, where the caller gave no value
    is_max_tokens_default: bool = False  # a default, so it is cut to the rest of the context
    response_format: Mapping[str, Any] | None = None  # OpenAI's
    priority: int = 0
    cache_salt: str | None = None
    mm_processor_kwargs: Mapping[str, Any] | None = None  # how media are prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuestion(Question):
    """A prompt to continue."""

    prompt: str | Sequence[int]
    add_special_tokens: bool = True
    split_special_tokens: bool = False  # read the text of a special token as text
    # Without it only the first of n answers computes them: they are the same for all.
    has_prompt_logprobs_in_every_answer: bool = False
    multi_modal_data: Mapping[str, object] | None = None  # by kind, one or several for the placeholders in the prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatQuestion(Question):
    """A conversation to answer. Fields are those of OpenAI's and vLLM's chat completions, as they were sent."""

    messages: object
    tools: object = None
    tool_choice: object = None
    parallel_tool_calls: bool = True
    reasoning_effort: object = None
    chat_template: str | None = None  # in place of the model's
    chat_template_kwargs: object = None
    documents: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False  # templates write them
