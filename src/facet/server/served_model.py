"""The model as the server offers it: its names, its tokenizer and template, its defaults. Frozen."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from facet.chat.template import ChatTemplate
from facet.config import ServerConfig
from facet.engine.messages import EngineInfo
from facet.errors import ConfigError, RequestError
from facet.model.generation_config import GenerationConfig, read_generation_config
from facet.sampling_params import SamplingParams
from facet.server.errors import HttpError
from facet.tokens import Tokenizer

_OVERRIDABLE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    names: tuple[str, ...]
    root: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_default: int | None = None  # for requests that name no max_tokens
    max_logprobs: int = 20
    allows_auto_tool_choice: bool = True
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        return self.names[0]

    def check_name(self, asked: str | None) -> None:
        """No name means this model: there is no other."""
        if asked is not None and asked not in self.names:
            raise HttpError(
                404, f"The model {asked!r} does not exist. This server has {', '.join(self.names)}.", param="model"
            )

    def check_logprobs(self, asked: int | None, field: str) -> None:
        if asked is not None and self.max_logprobs >= 0 and not 0 <= asked <= self.max_logprobs:
            raise RequestError(
                f"{field} is {asked}, but must be from 0 to {self.max_logprobs}, the limit of this server "
                "(--max-logprobs).",
                field=field,
            )

    def require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                "This server was started with --skip-tokenizer-init and knows token ids alone. Send prompt as a list "
                "of token ids to /v1/completions.",
                field="prompt",
            )
        return self.tokenizer

    def require_template(self) -> ChatTemplate:
        self.require_tokenizer()
        if self.template is None:
            raise RequestError(
                "This model has no chat template. Use /v1/completions, or start the server with --chat-template.",
                field="messages",
            )
        return self.template


def make_served_model(config: ServerConfig, info: EngineInfo) -> ServedModel:
    """Read what lies beside the weights, and refuse flags that do not fit it."""
    folder = Path(info.folder)
    tokenizer = None if config.skip_tokenizer_init else Tokenizer.from_folder(folder)
    generation = _generation_config(config, folder)
    overrides = dict(config.override_generation_config or {})
    max_tokens = overrides.pop("max_new_tokens", overrides.pop("max_tokens", None))
    if unknown := sorted(set(overrides) - set(_OVERRIDABLE)):
        raise ConfigError(
            f"--override-generation-config names {unknown[0]!r}. Known: {', '.join((*_OVERRIDABLE, 'max_new_tokens'))}."
        )
    defaults = {**generation.sampling_defaults(), **overrides}
    try:
        SamplingParams(**defaults, max_tokens=max_tokens)
    except RequestError as error:
        raise ConfigError(f"The generation defaults cannot be used: {error}") from None
    return ServedModel(
        names=config.served_model_name or (config.model,),
        root=config.model,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        eos_token_ids=generation.eos_token_ids or info.eos_token_ids,
        tokenizer=tokenizer,
        template=None if tokenizer is None else _template(config, folder, tokenizer),
        template_variables=config.default_chat_template_kwargs or {},
        sampling_defaults=defaults,
        max_tokens_default=max_tokens,
        max_logprobs=config.max_logprobs,
        allows_auto_tool_choice=config.enable_auto_tool_choice,
    )


def _generation_config(config: ServerConfig, folder: Path) -> GenerationConfig:
    if config.generation_config == "auto":
        return read_generation_config(folder)
    if config.generation_config == "vllm":
        # Neutral sampling; which tokens end an answer is a fact about the model all the same.
        return GenerationConfig(eos_token_ids=read_generation_config(folder).eos_token_ids)
    path = Path(config.generation_config)
    if not path.is_dir():
        raise ConfigError(f"--generation-config {config.generation_config} is neither auto, vllm nor a folder.")
    return read_generation_config(path)


def _template(config: ServerConfig, folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    if config.chat_template is None:
        return ChatTemplate.from_folder(folder, special_tokens=tokenizer.special_tokens)
    source, origin = config.chat_template, "--chat-template"
    if not any(mark in source for mark in "{}\n"):  # a template has some of these, and a path hardly any
        try:
            source, origin = Path(source).expanduser().read_text(encoding="utf-8"), source
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--chat-template {config.chat_template} cannot be read: {error}.") from None
    return ChatTemplate(source, special_tokens=tokenizer.special_tokens, origin=origin)
