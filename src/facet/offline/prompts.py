"""Converts the forms in which a prompt may be given into one."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from facet.errors import RequestError


class TokensPrompt(TypedDict):
    """A prompt that is already encoded."""

    prompt_token_ids: Sequence[int]


class TextPrompt(TypedDict):
    prompt: str
    # By kind, for the placeholders in the prompt: a path, a Pillow image, an array, or a list of them; sound and video
    # as arrays may have their rate beside them.
    multi_modal_data: NotRequired[Mapping[str, object]]
    mm_processor_kwargs: NotRequired[Mapping[str, Any]]


_MEDIA_FIELDS = ("multi_modal_data", "mm_processor_kwargs")

Prompt = str | Sequence[int] | TokensPrompt | TextPrompt


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several. A list of numbers is one prompt of token ids."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def text_or_ids(prompt: Prompt) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        if unknown := set(prompt) - {"prompt", "prompt_token_ids", *_MEDIA_FIELDS}:
            raise RequestError(
                f"A prompt may hold 'prompt' or 'prompt_token_ids', not {sorted(unknown)}.", field=sorted(unknown)[0]
            )
        if "prompt_token_ids" in prompt:
            return list(prompt["prompt_token_ids"])  # type: ignore[typeddict-item]
        if "prompt" in prompt and isinstance(prompt["prompt"], str):
            return prompt["prompt"]
        raise RequestError("A prompt given as a mapping needs 'prompt' or 'prompt_token_ids'.", field="prompt")
    return list(prompt)


def media_fields(prompt: Prompt) -> dict[str, Any]:
    """What stands beside a prompt's text, as fields of a question."""
    if not isinstance(prompt, Mapping):
        return {}
    fields = {name: prompt[name] for name in _MEDIA_FIELDS if name in prompt}  # type: ignore[literal-required]
    for name, value in fields.items():
        if value is not None and not isinstance(value, Mapping):
            raise RequestError(f'{name} must be a mapping, as in {{"image": picture}}.', field=name)
    return fields
