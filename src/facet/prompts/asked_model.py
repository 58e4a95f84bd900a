"""Describes the model as callers see it: its tokenizer, chat template, defaults and limits. Frozen."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from facet.chat.formats import answer_ends, find_thought
from facet.chat.media_parts import MediaParts
from facet.chat.request_template import RequestTemplate
from facet.chat.template import ChatTemplate
from facet.config import PromptConfig
from facet.errors import ConfigError, RequestError
from facet.media.options import MediaOptions, check_options, read_processor_kwargs
from facet.media.spec import MediaSpec
from facet.media.spec_file import read_media_spec
from facet.media_span import MediaKind
from facet.prompts.prompt_files import PromptFiles
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer
from facet.tokens.text_limit import TextLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedModel:
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    trusts_request_templates: bool = False  # a question may bring a template of its own
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    any_whitespace: bool = False  # in JSON that follows a schema, unless a question says otherwise
    max_tokens_default: int | None = None  # for questions that name no max_tokens
    max_tokens_limit: int | None = None  # of every answer, whatever its question says
    media: MediaSpec = field(default_factory=MediaSpec)  # what it reads besides text
    media_options: MediaOptions = field(default_factory=MediaOptions)  # where a question says nothing
    max_media: Mapping[MediaKind, int] = field(default_factory=dict)  # of a kind in one prompt; no limit if not named
    adapter: str | None = None  # that changes its answers; the rest is the same with any

    def with_adapter(self, name: str | None) -> "AskedModel":
        """The same model with an adapter. None: the model itself."""
        return replace(self, adapter=name)

    def sampling(self, given: Mapping[str, Any], *, max_tokens: int | None) -> SamplingParams:
        """The given settings over the model's defaults; `max_tokens` applies if neither has one."""
        default = max_tokens if self.max_tokens_default is None else self.max_tokens_default
        params = SamplingParams(**{**self.sampling_defaults, "max_tokens": default, **given})
        limit = self.max_tokens_limit
        if limit is None or (params.max_tokens is not None and params.max_tokens <= limit):
            return params
        return replace(params, max_tokens=limit, min_tokens=min(params.min_tokens, limit))

    def media_parts(self, *, takes_values: bool = True) -> MediaParts:
        """Parts to be filled with the media of one conversation."""
        return MediaParts(kinds=self.media.kinds, most=self.max_media, takes_values=takes_values)

    def require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                "No tokenizer was loaded (--skip-tokenizer-init), so only token ids are understood. Send the prompt as "
                "a list of token ids.",
                field="prompt",
            )
        return self.tokenizer

    def adds_special_tokens(
        self, prompt: str | Sequence[int], *, wanted: bool | None, split_special_tokens: bool
    ) -> bool:
        """Whether <bos> is put before a prompt where nobody says so: not twice, since templates write it themselves."""
        if wanted is not None or split_special_tokens or self.tokenizer is None or not isinstance(prompt, str):
            return wanted is not False
        return not self.tokenizer.brings_special_tokens(prompt)

    def text_limit(self, *, num_contexts: int = 1) -> TextLimit:
        """What a prompt's text is held against before it is encoded."""
        return TextLimit(self.require_tokenizer(), self.max_model_len, num_contexts)

    def template_for(self, source: str | None) -> ChatTemplate | RequestTemplate:
        """The template that came with a question, if one did and if it may; else the model's."""
        if source is None:
            return self.require_template()
        if not self.trusts_request_templates:
            raise RequestError(
                "chat_template is not accepted, because a template decides what becomes a control token. Leave it out, "
                "or start the server with --trust-request-chat-template, or with --chat-template for all requests.",
                field="chat_template",
            )
        return RequestTemplate(source, self.require_tokenizer().special_tokens)

    def require_template(self) -> ChatTemplate:
        self.require_tokenizer()
        if self.template is None:
            raise RequestError(
                "This model has no chat template. Send a prompt in the model's own format to be continued, or give the "
                "model a template (--chat-template).",
                field="messages",
            )
        return self.template


def check_thinking_token_budget(budget: int, *, has_thoughts: bool, max_model_len: int) -> None:
    if not has_thoughts:
        raise RequestError(
            f"thinking_token_budget is {budget}, but this model marks no thoughts in its answers, so they cannot be "
            "counted. Leave it out.",
            field="thinking_token_budget",
        )
    if budget > max_model_len:
        raise RequestError(
            f"thinking_token_budget is {budget}, but the context has only {max_model_len} tokens, prompt and answer "
            "together. Lower it, or leave it out to set no limit.",
            field="thinking_token_budget",
        )


def make_asked_model(
    config: PromptConfig,
    files: PromptFiles,
    *,
    max_model_len: int,
    eos_token_ids: tuple[int, ...],
    media_kinds: Collection[MediaKind] = (),
) -> AskedModel:
    """Joins what the files say with what the engine knows, and refuses settings that do not fit the model.

    The ends of an answer are those of generation_config.json; `eos_token_ids` are the engine's, where it names none.
    `media_kinds` are those that the engine has towers for.
    """
    media = _read_media(config, files.folder, media_kinds)
    budget = config.default_thinking_token_budget
    try:
        if budget is not None:
            has_thoughts = files.tokenizer is not None and find_thought(files.tokenizer, ()) is not None
            check_thinking_token_budget(budget, has_thoughts=has_thoughts, max_model_len=max_model_len)
    except RequestError as error:
        raise ConfigError(f"The generation defaults cannot be used: {error}") from None
    ends = files.defaults.eos_token_ids or eos_token_ids
    return AskedModel(
        max_model_len=max_model_len,
        eos_token_ids=ends if files.tokenizer is None else answer_ends(files.tokenizer, ends),
        tokenizer=files.tokenizer,
        template=files.template,
        template_variables=config.default_chat_template_kwargs or {},
        trusts_request_templates=config.trust_request_chat_template,
        sampling_defaults=files.defaults.sampling,
        any_whitespace=files.any_whitespace,
        max_tokens_default=files.defaults.max_tokens,
        max_tokens_limit=files.defaults.max_tokens_limit,
        media=media,
        media_options=_media_options(config, media),
        max_media=files.max_media,
    )


def _media_options(config: PromptConfig, media: MediaSpec) -> MediaOptions:
    try:
        options = read_processor_kwargs(config.mm_processor_kwargs, "--mm-processor-kwargs")
        if media.kinds:
            check_options(options, media, "--mm-processor-kwargs")
    except RequestError as error:
        raise ConfigError(str(error)) from None
    return options


def _read_media(config: PromptConfig, folder: Path, kinds: Collection[MediaKind]) -> MediaSpec:
    if not kinds:
        return MediaSpec()
    try:
        return read_media_spec(folder, config.hf_overrides).only(kinds)
    except ConfigError as error:
        raise ConfigError(f"{error} To serve the model for text alone, use --language-model-only.") from error
