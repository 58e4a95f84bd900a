"""Gives results of tools the names of the functions that they come from.

Clients pair results with calls by id, and seldom send a name. Some templates write the name and do not look it up:
FunctionGemma's refuses a result without one.
"""

from collections.abc import Iterable
from typing import Any


def name_results(messages: Iterable[dict[str, Any]]) -> None:
    """Adds the missing names to messages that are already checked. Results of no call known stay without."""
    names: dict[str, str] = {}  # of functions, by the id of their last call
    for message in messages:
        for call in message.get("tool_calls", ()):
            if "id" in call:
                names[call["id"]] = call["function"]["name"]
        call_id = message.get("tool_call_id")
        if message["role"] == "tool" and not message.get("name") and call_id in names:
            message["name"] = names[call_id]
