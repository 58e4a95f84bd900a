"""Converts the forms in which a prompt may be given into one."""

from array import array
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any, NotRequired, TypedDict

from facet.errors import RequestError
from facet.offline.given_values import as_list, require_mapping, shown


class TokensPrompt(TypedDict):
    """A prompt that is already encoded."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str]  # its text, which is not read
    cache_salt: NotRequired[str | None]  # cached prefixes are shared only with prompts that have the same


class TextPrompt(TypedDict):
    prompt: str
    # By kind, for the placeholders in the prompt: a path, a Pillow image, an array, or a list of them; sound and video
    # as arrays may have their rate beside them.
    multi_modal_data: NotRequired[Mapping[str, object] | None]
    mm_processor_kwargs: NotRequired[Mapping[str, Any] | None]
    multi_modal_uuids: NotRequired[Mapping[str, object] | None]  # vLLM's; unused: media are cached by content
    cache_salt: NotRequired[str | None]


_MEDIA_FIELDS = {"multi_modal_data": '{"image": picture}', "mm_processor_kwargs": '{"max_soft_tokens": 280}'}
_UUIDS, _SALT = "multi_modal_uuids", "cache_salt"
_KNOWN = {"prompt", "prompt_token_ids", _UUIDS, _SALT, *_MEDIA_FIELDS}

Prompt = str | Sequence[int] | TokensPrompt | TextPrompt


def find_prompts(given: object) -> dict[str, object]:
    """One prompt or several, each under its place in what was given. A list of numbers is one prompt of token ids."""
    if isinstance(given, str | Mapping):
        return {"prompts": given}
    prompts = as_list(given)
    if prompts is None:
        raise _is_no_prompt(given, "prompts")
    if prompts and isinstance(prompts[0], Number):
        return {"prompts": prompts}
    return {f"prompts[{index}]": prompt for index, prompt in enumerate(prompts)}


def text_or_ids(prompt: object, where: str) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        return _of_mapping(prompt, where)
    token_ids = as_list(prompt)
    if token_ids is None:
        raise _is_no_prompt(prompt, where)
    return _plain_ids(token_ids, where)


def fields_beside(prompt: object, mm_processor_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """What stands beside a prompt, as fields of a question. `mm_processor_kwargs` are those for all prompts."""
    require_mapping(mm_processor_kwargs, "mm_processor_kwargs", _MEDIA_FIELDS["mm_processor_kwargs"])
    fields: dict[str, Any] = {}
    if isinstance(prompt, Mapping):
        fields = {name: prompt[name] for name in _MEDIA_FIELDS if prompt.get(name) is not None}
        for name, value in fields.items():
            require_mapping(value, name, _MEDIA_FIELDS[name])
        require_mapping(prompt.get(_UUIDS), _UUIDS, '{"image": ["a"]}')
        salt = prompt.get(_SALT)
        if salt is not None and not isinstance(salt, str):
            raise RequestError(f"{_SALT} is {shown(salt)}, but must be a text.", field=_SALT)
        fields[_SALT] = salt
    if mm_processor_kwargs is not None:
        fields["mm_processor_kwargs"] = {**mm_processor_kwargs, **fields.get("mm_processor_kwargs", {})}
    return fields


def _of_mapping(prompt: Mapping[Any, Any], where: str) -> str | list[int]:
    if unknown := sorted(str(name) for name in set(prompt) - _KNOWN):
        raise RequestError(f"A prompt may hold 'prompt' or 'prompt_token_ids', not {unknown}.", field=unknown[0])
    text, given = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if given is not None:
        where = f"{where}.prompt_token_ids"
        token_ids = as_list(given)
        if token_ids is None:
            raise RequestError(f"{where} is {shown(given)}, but must be a list of token ids.", field="prompt_token_ids")
        return _plain_ids(token_ids, where)
    if isinstance(text, str):
        return text
    if text is not None:
        raise RequestError(f"{where}.prompt is {shown(text)}, but must be a text.", field="prompt")
    raise RequestError("A prompt given as a mapping needs 'prompt' or 'prompt_token_ids'.", field="prompt")


def _plain_ids(given: list[Any], where: str) -> list[int]:
    """Integers of any type as plain ones. A prompt may have 100,000, so no line of Python is run for each."""
    try:
        if bool not in set(map(type, given)):
            return array("q", given).tolist()
    except (TypeError, OverflowError):
        pass
    wrong = next(token_id for token_id in given if not _is_id(token_id))
    raise RequestError(
        f"{where} holds {shown(wrong)}, but a token id is an integer below the size of the vocabulary.",
        field="prompt_token_ids",
    )


def _is_id(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and len(array("q", [value])) == 1
    except (TypeError, OverflowError):
        return False


def _is_no_prompt(given: object, where: str) -> RequestError:
    return RequestError(
        f"{where} is {shown(given)}, but a prompt is a text, a list of token ids, or a mapping with 'prompt' or "
        "'prompt_token_ids'.",
        field="prompt",
    )
