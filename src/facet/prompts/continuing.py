"""Finds where the last message of a rendered conversation ends, for an answer that is to continue it."""

import secrets
from typing import Any

from facet.errors import RequestError
from facet.tokens.prompt_text import PromptText


def mark_end(messages: list[dict[str, Any]]) -> str:
    """Puts a mark behind the last message, which is to be continued, and returns the mark.

    Templates write something behind every message, and none says what. A random mark shows where that begins; no text
    can hold it by accident or on purpose.
    """
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise RequestError(
            "The last message is to be continued, but it is not a text of the assistant. End the conversation with the "
            "beginning of an answer, or ask for a new one.",
            field="continue_final_message",
        )
    mark = secrets.token_hex(16)
    if isinstance(last["content"], str):
        last["content"] += mark
    else:
        last["content"].append({"type": "text", "text": mark})
    return mark


def cut_at(mark: str, prompt: PromptText) -> PromptText:
    if prompt.text.count(mark) != 1:
        raise RequestError(
            "The model's chat template does not show the last message as it is, so it cannot be continued. Ask for a "
            "new answer instead.",
            field="continue_final_message",
        )
    return prompt.part(0, prompt.text.index(mark))
