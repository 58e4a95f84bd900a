"""Converts the forms in which a prompt may be given into one."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from facet.errors import RequestError


class TokensPrompt(TypedDict):
    """A prompt that is already encoded."""

    prompt_token_ids: Sequence[int]


class TextPrompt(TypedDict):
    prompt: str


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
        if unknown := set(prompt) - {"prompt", "prompt_token_ids"}:
            raise RequestError(
                f"A prompt may hold 'prompt' or 'prompt_token_ids', not {sorted(unknown)}.", field=sorted(unknown)[0]
            )
        if "prompt_token_ids" in prompt:
            return list(prompt["prompt_token_ids"])  # type: ignore[typeddict-item]
        if "prompt" in prompt and isinstance(prompt["prompt"], str):
            return prompt["prompt"]
        raise RequestError("A prompt given as a mapping needs 'prompt' or 'prompt_token_ids'.", field="prompt")
    return list(prompt)
