"""Reads and checks the files beside a model's weights: tokenizer, chat template, generation defaults.

They are read before the weights are loaded, so that what is missing or wrong is said within a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from facet.chat.template import ChatTemplate
from facet.config import PromptConfig
from facet.errors import ConfigError, RequestError
from facet.media.options import read_processor_kwargs
from facet.media_span import MediaKind
from facet.model.hub import access_of, folder_of, local_folder
from facet.prompts.generation_defaults import GenerationDefaults, read_generation_defaults, read_overrides
from facet.tokens import Tokenizer

_TOKENIZER_FILES = ("tokenizer*", "special_tokens*", "*.jinja")
_BACKENDS = ("auto", "xgrammar", "guidance", "outlines", "lm-format-enforcer")  # one does the work of all


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFiles:
    """What a model's files and the settings say about prompts and answers, before there is an engine."""

    folder: Path  # of the model
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    defaults: GenerationDefaults
    any_whitespace: bool
    max_media: Mapping[MediaKind, int]


def read_prompt_files(config: PromptConfig) -> PromptFiles:
    """Finds the model, downloading it where it must, and reads its files. Refuses settings that cannot be used."""
    max_media = _max_media(config.limit_mm_per_prompt or {})
    any_whitespace = _any_whitespace(config)
    overrides = read_overrides(config)
    _check_processor_kwargs(config)
    folder = folder_of(config)
    defaults = read_generation_defaults(config, overrides, folder)
    tokenizer_folder = _tokenizer_folder(config, folder)
    tokenizer = None if config.skip_tokenizer_init else Tokenizer.from_folder(tokenizer_folder)
    return PromptFiles(
        folder=folder,
        tokenizer=tokenizer,
        template=None if tokenizer is None else _template(config, (tokenizer_folder, folder), tokenizer),
        defaults=defaults,
        any_whitespace=any_whitespace,
        max_media=max_media,
    )


def _tokenizer_folder(config: PromptConfig, folder: Path) -> Path:
    if config.tokenizer is None:
        return folder
    return local_folder(
        config.tokenizer,
        revision=config.tokenizer_revision,
        patterns=_TOKENIZER_FILES,
        access=access_of(config),
        needs_model=False,
    )


def _any_whitespace(config: PromptConfig) -> bool:
    """Whether JSON that follows a schema may have blanks anywhere, from our setting and vLLM's."""
    given = dict(config.structured_outputs_config or {})
    backend, is_disabled = given.pop("backend", "auto"), given.pop("disable_any_whitespace", None)
    given = {name: value for name, value in given.items() if value not in (False, None, "")}
    if given:
        name, value = next(iter(given.items()))
        raise ConfigError(
            f"--structured-outputs-config has {name!r}: {value!r}. It may hold backend and disable_any_whitespace."
        )
    if backend not in _BACKENDS:
        raise ConfigError(f"--structured-outputs-config: backend {backend!r} is unknown. Leave it out.")
    return config.structured_outputs_any_whitespace if is_disabled is None else not is_disabled


def _check_processor_kwargs(config: PromptConfig) -> None:
    try:
        read_processor_kwargs(config.mm_processor_kwargs, "--mm-processor-kwargs")
    except RequestError as error:
        raise ConfigError(str(error)) from None


def _max_media(given: Mapping[str, Any]) -> dict[MediaKind, int]:
    limits: dict[MediaKind, int] = {}
    for kind, value in given.items():
        count = value.get("count") if isinstance(value, Mapping) else value  # vLLM's longer way to write it
        if kind not in get_args(MediaKind) or type(count) is not int or count < 0:
            raise ConfigError(
                f"--limit-mm-per-prompt has {kind!r}: {value!r}. It maps {', '.join(get_args(MediaKind))} to numbers."
            )
        limits[cast(MediaKind, kind)] = count
    return limits


def _template(config: PromptConfig, folders: tuple[Path, Path], tokenizer: Tokenizer) -> ChatTemplate | None:
    """The template: the one given, else the tokenizer's, else the model's."""
    if config.chat_template is None:
        found = (ChatTemplate.from_folder(folder, tokenizer) for folder in folders)
        return next((template for template in found if template is not None), None)
    source, origin = config.chat_template, "--chat-template"
    if not any(mark in source for mark in "{}\n"):  # a template has some of these, and a path hardly any
        try:
            source, origin = Path(source).expanduser().read_text(encoding="utf-8"), source
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--chat-template {config.chat_template} cannot be read: {error}. Leave it out to use the model's own, "
                "which has tools and thoughts."
            ) from None
    return ChatTemplate(
        source,
        special_tokens=tokenizer.special_tokens,
        control_texts=tokenizer.control_tokens.id_of,
        origin=origin,
    )
