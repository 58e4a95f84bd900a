"""Translates `functions` and `function_call`, which chat completions had before tools, to tools and back.

A function has no call id: a result belongs to the call before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from facet.errors import RequestError
from facet.server.protocol.chat import ChatRequest


def refuse_mixture(fields: ChatRequest) -> None:
    for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
        if getattr(fields, old) is not None and (fields.tools is not None or fields.tool_choice is not None):
            raise RequestError(f"{old} is the older form of {new}. Send only one form.", field=old)
    if fields.function_call is not None and not fields.functions:
        raise RequestError("function_call needs functions. Send functions with it.", field="function_call")


def as_tools(functions: Sequence[Any]) -> list[Any]:
    return [{"type": "function", "function": function} for function in functions]


def as_tool_choice(function_call: object) -> object:
    """The choice of a function as one of tools: a word, or {"name": ...}."""
    if isinstance(function_call, Mapping):
        return {"type": "function", "function": function_call}
    return function_call


def as_tool_messages(messages: Sequence[Any]) -> list[Any]:
    """Messages in which calls and results of functions are those of tools. What is wrong is left for others to see."""
    translated: list[Any] = []
    call_id = ""
    for index, message in enumerate(messages):
        if isinstance(message, Mapping) and message.get("function_call") is not None and not message.get("tool_calls"):
            call_id = f"call_{index}"
            call = {"id": call_id, "type": "function", "function": message["function_call"]}
            message = {**message, "function_call": None, "tool_calls": [call]}
        elif isinstance(message, Mapping) and message.get("role") == "function":
            message = {**message, "role": "tool", "tool_call_id": call_id}
        translated.append(message)
    return translated
