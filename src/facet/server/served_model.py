"""Describes the model as the server offers it: its names, the server's limits, and the model as callers see it."""

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from facet.config import ServerConfig
from facet.engine.messages import EngineInfo
from facet.errors import ConfigError, RequestError
from facet.prompts import AskedModel, PromptFiles, make_asked_model
from facet.server.errors import HttpError
from facet.server.logprobs import LogprobShapes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    names: tuple[str, ...]
    root: str
    vocab_size: int
    asked: AskedModel
    max_logprobs: int = 20
    names_tokens_by_id: bool = False  # in log-probabilities, where a request does not say
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def name(self) -> str:
        """What answers say that they are of."""
        return self.asked.adapter or self.names[0]

    @property
    def max_model_len(self) -> int:
        return self.asked.max_model_len

    def named(self, asked: str | None, adapters: Collection[str]) -> "ServedModel":
        """The model that a request names: this one, or this one with an adapter. No name means this one."""
        if asked is None or asked in self.names:
            return self
        if asked in adapters:
            return replace(self, asked=self.asked.with_adapter(asked))
        raise HttpError(
            404,
            f"The model {asked!r} does not exist. This server has {', '.join((*self.names, *adapters))}.",
            param="model",
        )

    def check_logprobs(self, asked: int | None, field: str) -> None:
        if asked is not None and self.max_logprobs >= 0 and not 0 <= asked <= self.max_logprobs:
            raise RequestError(
                f"{field} is {asked}, but must be from 0 to {self.max_logprobs}, the limit of this server "
                "(--max-logprobs).",
                field=field,
            )

    def logprob_shapes(self, as_token_ids: bool | None) -> LogprobShapes:
        """How a request gets log-probabilities that says so much about the names of tokens."""
        named_by_id = self.names_tokens_by_id if as_token_ids is None else as_token_ids
        return LogprobShapes(self.asked.tokenizer, as_token_ids=named_by_id)

    def check_num_named(self, token_ids: Sequence[int] | None) -> None:
        if token_ids is not None and 0 <= self.max_logprobs < len(token_ids):
            raise RequestError(
                f"logprob_token_ids names {len(token_ids)} tokens, but the limit of this server is {self.max_logprobs} "
                "(--max-logprobs).",
                field="logprob_token_ids",
            )


def names_of(config: ServerConfig) -> tuple[str, ...]:
    return config.served_model_name or (config.model,)


def check_adapter_names(adapters: Iterable[str], models: Collection[str]) -> None:
    """Refuses adapters that are called as the model is: requests name either in the same field."""
    for name in adapters:
        if name in models:
            raise ConfigError(f"{name!r} is a name of the model. Give the adapter another one.")


def make_served_model(config: ServerConfig, files: PromptFiles, info: EngineInfo) -> ServedModel:
    """Refuses flags that do not fit the model."""
    return ServedModel(
        names=names_of(config),
        root=config.model,
        vocab_size=info.vocab_size,
        asked=make_asked_model(
            config,
            files,
            max_model_len=info.max_model_len,
            eos_token_ids=info.eos_token_ids,
            media_kinds=info.media_kinds,
        ),
        max_logprobs=config.max_logprobs,
        names_tokens_by_id=config.return_tokens_as_token_ids,
    )
