"""Converts what may be given to `generate` and `chat` in several forms, and refuses what is none of them, by name."""

import operator
from array import array
from collections.abc import Mapping
from typing import Any

from facet.errors import RequestError
from facet.offline.given_values import as_list, is_named, require_bool, require_mapping, shown
from facet.sampling_params import SamplingParams

_TOKENIZATION = "tokenization_kwargs"
_CONTENT_FORMATS = ("auto", "string", "openai")


def one_each(given: object, count: int) -> list[SamplingParams] | None:
    """Sampling settings for each question; None where none were given."""
    if given is None:
        return None
    if isinstance(given, SamplingParams):
        return [given] * count
    settings = as_list(given)
    if settings is None:
        raise _not_settings(f"is {shown(given)}")
    for each in settings:
        if not isinstance(each, SamplingParams):
            raise _not_settings(f"holds {shown(each)}")
    if len(settings) != count:
        raise RequestError(f"{len(settings)} sampling settings for {count} prompts.", field="sampling_params")
    return settings


def as_priorities(given: object, count: int) -> list[int]:
    if given is None:
        return [0] * count
    priorities = as_list(given)
    if priorities is None:
        raise RequestError(
            f"priority is {shown(given)}, but must be a list with an integer for each prompt.", field="priority"
        )
    if len(priorities) != count:
        raise RequestError(f"{len(priorities)} priorities for {count} prompts.", field="priority")
    return [_as_priority(priority) for priority in priorities]


def as_conversations(given: object) -> list[list[Any]]:
    """One conversation or several, as lists of messages. What is in these is checked as a server checks it."""
    conversations = as_list(given)
    if conversations is None:
        advice = " Put the message into a list." if isinstance(given, Mapping) else ""
        raise RequestError(
            f"messages is {shown(given)}, but must be a list of messages, or a list of such lists.{advice}",
            field="messages",
        )
    if not conversations or isinstance(conversations[0], Mapping):
        return [conversations]
    return [_as_messages(one, f"messages[{index}]") for index, one in enumerate(conversations)]


def as_documents(given: object) -> list[Mapping[str, Any]] | None:
    if given is None:
        return None
    documents = as_list(given)
    if documents is None or not all(map(is_named, documents)):
        raise RequestError(
            f'documents is {shown(given)}, but must be a list of mappings such as {{"text": "..."}}.', field="documents"
        )
    return documents


def adds_special_tokens(tokenization_kwargs: Mapping[str, Any] | None) -> bool | None:
    """Whether special tokens are to be added. None: the argument does not say."""
    require_mapping(tokenization_kwargs, _TOKENIZATION, '{"add_special_tokens": False}')
    given = dict(tokenization_kwargs or {})
    adds: bool | None = given.pop("add_special_tokens", None)
    if given:
        raise RequestError(
            f"{_TOKENIZATION} holds {shown(next(iter(given)))}, but may hold add_special_tokens alone. Prompts are cut "
            "with SamplingParams(truncate_prompt_tokens=...).",
            field=_TOKENIZATION,
        )
    if adds is not None:
        require_bool(adds, "add_special_tokens")
    return adds


def check_content_format(given: object) -> None:
    """Checks a content format. It changes nothing: contents are given to a template as it expects them."""
    if given not in _CONTENT_FORMATS:
        raise RequestError(
            f"chat_template_content_format is {shown(given)}, but must be one of {', '.join(_CONTENT_FORMATS)}.",
            field="chat_template_content_format",
        )


def _not_settings(what: str) -> RequestError:
    return RequestError(
        f"sampling_params {what}, but must be a SamplingParams, or a list with one for each prompt.",
        field="sampling_params",
    )


def _as_priority(given: Any) -> int:
    """The engine may be in another process, and messages to it hold integers of 64 bits."""
    try:
        if not isinstance(given, bool):
            return array("q", [operator.index(given)])[0]
    except (TypeError, OverflowError):
        pass
    raise RequestError(
        f"priority holds {shown(given)}, but a priority is an integer of at most 64 bits.", field="priority"
    )


def _as_messages(given: object, where: str) -> list[Any]:
    messages = as_list(given)
    if messages is None:
        raise RequestError(f"{where} is {shown(given)}, but must be a message or a list of messages.", field="messages")
    return messages
