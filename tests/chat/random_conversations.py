"""Conversations made at random, every text of which is chosen by the caller: for roles, fields, tools and documents."""

import random
from collections.abc import Callable, Mapping
from typing import Any

TextOf = Callable[[str], str]  # a field's name -> the text to put there

# Every field in which a client's text reaches a template.
FIELDS = (
    *("system.content", "developer.content", "user.content", "user.name", "user.part", "assistant.content"),
    *("assistant.part", "assistant.reasoning", "call.id", "call.name", "call.key", "call.value", "tool.content"),
    *("tool.name", "tool.part", "declared.name", "declared.description", "declared.property"),
    *("declared.property_description", "declared.enum", "declared.type", "declared.extra", "document.key"),
    *("document.value", "variable"),
)


def make_conversation(rng: random.Random, text_of: TextOf, *, has_tools: bool) -> tuple[list[Any], dict[str, Any]]:
    """Messages as templates are given them, and the other arguments of `ChatTemplate.render`."""
    messages = []
    if rng.random() < 0.6:
        role = rng.choice(("system", "developer")) if has_tools else "system"
        messages.append({"role": role, "content": text_of(f"{role}.content")})
    for _ in range(rng.randint(1, 3)):
        messages.append(_user(rng, text_of))
        messages += _reply(rng, text_of, has_tools)
    messages.append(_user(rng, text_of))
    arguments: dict[str, Any] = {"add_generation_prompt": rng.random() < 0.8}
    if has_tools and rng.random() < 0.7:
        arguments["tools"] = [_tool(rng, text_of) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.3:
        arguments["documents"] = [{text_of("document.key"): text_of("document.value")}]
    arguments["variables"] = {
        "enable_thinking": rng.random() < 0.5,
        "preserve_thinking": rng.random() < 0.5,
        "remark": text_of("variable"),
    }
    return messages, arguments


def _user(rng: random.Random, text_of: TextOf) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "user", "content": text_of("user.content")}
    if rng.random() < 0.3:
        message["content"] = [{"type": "text", "text": text_of("user.part")} for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.3:
        message["name"] = text_of("user.name")
    return message


def _reply(rng: random.Random, text_of: TextOf, has_tools: bool) -> list[dict[str, Any]]:
    """An assistant's turn, and results where it has called tools."""
    message: dict[str, Any] = {"role": "assistant", "content": text_of("assistant.content")}
    if rng.random() < 0.2:
        message["content"] = [{"type": "text", "text": text_of("assistant.part")}]
    if rng.random() < 0.4:
        message["reasoning"] = message["reasoning_content"] = text_of("assistant.reasoning")
    if not has_tools or rng.random() < 0.5:
        return [message]
    calls = [
        {
            "id": text_of("call.id"),
            "type": "function",
            "function": {"name": text_of("call.name"), "arguments": _arguments(rng, text_of)},
        }
        for _ in range(rng.randint(1, 2))
    ]
    message["tool_calls"] = calls
    return [message, *(_result(rng, text_of, call["id"]) for call in calls)]


def _arguments(rng: random.Random, text_of: TextOf) -> dict[str, Any]:
    arguments: dict[str, Any] = {f"{text_of('call.key')}{index}": text_of("call.value") for index in range(2)}
    arguments["list"] = [text_of("call.value"), rng.randint(-5, 5), None, {text_of("call.key"): True}]
    return arguments


def _result(rng: random.Random, text_of: TextOf, call_id: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "tool", "tool_call_id": call_id, "content": text_of("tool.content")}
    if rng.random() < 0.3:
        message["content"] = [{"type": "text", "text": text_of("tool.part")}]
    if rng.random() < 0.5:
        message |= {"name": text_of("tool.name"), "tool_call_id": "another"}
    return message


def _tool(rng: random.Random, text_of: TextOf) -> Mapping[str, Any]:
    described = {"type": "string", "description": text_of("declared.property_description")}
    properties = {
        text_of("declared.property"): described,
        "choice": {"type": "string", "enum": [text_of("declared.enum"), "b"]},
        "many": {"type": "array", "items": {"type": text_of("declared.type"), "extra": text_of("declared.extra")}},
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {
        "name": text_of("declared.name"),
        "description": text_of("declared.description"),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}
