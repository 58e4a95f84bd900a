"""Writes tools, calls and results into the messages as JSON, for models that have no tokens for them.

Gemma 3 and 3n are told in words what functions there are and how to call one, as Google documents it under "Function
calling with Gemma". Their templates know turns of user and model, which alternate, and nothing else:

    the first turn of the user begins with the functions and the form of a call
    {"name":"get_weather","parameters":{"city":"Paris"}}      a call, as a turn of the model; several are a list
    {"name":"get_weather","response":"clear"}                 a result, in the next turn of the user

A result is JSON, too, so that no text in it can pass for a second result or for words of the user.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Content = str | list[dict[str, Any]]

_INSTRUCTIONS = (
    "You can call functions. To call one, reply with a JSON object of this form and no other text:\n"
    '{"name": the name of the function, "parameters": an object with its arguments}\n'
    "To call several at once, reply with a list of such objects. Their results come in the next message. Reply in "
    "words if no function is needed.\n\n"
    "These are the functions, with JSON schemas of their parameters:\n"
)
_DECLARED = ("name", "description", "parameters")


def with_tools_as_json(messages: Iterable[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """New messages of system, user and assistant, in which text stands for everything about tools."""
    written: list[dict[str, Any]] = []
    ends_in_results = False
    for message in messages:
        role = message["role"]
        if role == "assistant" and message.get("tool_calls"):
            turn = {name: value for name, value in message.items() if name != "tool_calls"}
            written.append({**turn, "content": _joined(message["content"], _calls(message["tool_calls"]), "\n")})
        elif role == "tool" or (role == "user" and ends_in_results):
            content = _result(message) if role == "tool" else message["content"]
            if ends_in_results:
                written[-1]["content"] = _joined(written[-1]["content"], content)
            else:
                written.append({"role": "user", "content": content})
        else:
            written.append(dict(message))
        ends_in_results = role == "tool"
    if tools:
        _declare(tools, written)
    return written


def _declare(tools: Sequence[Mapping[str, Any]], written: list[dict[str, Any]]) -> None:
    functions = (tool["function"] for tool in tools)
    lines = (_json({name: function[name] for name in _DECLARED if name in function}) for function in functions)
    declared = _INSTRUCTIONS + "\n".join(lines)
    first = next((message for message in written if message["role"] == "user"), None)
    if first is None:
        place = next((place for place, message in enumerate(written) if message["role"] == "assistant"), len(written))
        written.insert(place, {"role": "user", "content": declared})
    else:
        first["content"] = _joined(declared, first["content"])


def _calls(tool_calls: Sequence[Mapping[str, Any]]) -> str:
    functions = [call["function"] for call in tool_calls]
    calls = [{"name": function["name"], "parameters": function["arguments"]} for function in functions]
    return _json(calls[0] if len(calls) == 1 else calls)


def _result(message: Message) -> Content:
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    name = f'"name":{_json(message["name"])},' if message.get("name") else ""
    result = f'{{{name}"response":{text if _is_structured(text) else _json(text)}}}'
    media = [part for part in parts if part["type"] != "text"]
    return _joined(result, media) if media else result


def _is_structured(text: str) -> bool:
    """Whether it is a JSON object or list already, which then stays as it is."""
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _joined(first: Content, second: Content, separator: str = "\n\n") -> Content:
    """One content after the other. Templates trim every text part, so two in a row become one."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return first + separator + second
    before, after = _parts(first), _parts(second)
    if before[-1]["type"] == after[0]["type"] == "text":
        text = before.pop()["text"] + separator + after.pop(0)["text"]
        before.append({"type": "text", "text": text})
    return before + after


def _parts(content: Content) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
