"""Checks chat messages as clients send them and converts them to the form that templates expect.

Everything is checked, and only what is known is passed on: a template sees roles, text, calls with arguments as
mappings, results and thoughts, all as new plain values. A mistake is a RequestError that says where it is, as in
messages[2].tool_calls[0].

Knows neither any model's format (the template's business) nor the rest of a request (tool_choice.py).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from facet.chat.custom_tools import ARGUMENT
from facet.chat.media_parts import MEDIA_TYPES, MediaParts
from facet.chat.result_names import name_results
from facet.chat.result_order import in_order_of_calls
from facet.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_DIGITS = 4300  # of an integer that Python converts
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}

# Takes a part that is no text, and where it is; returns the type under which a template knows it.
TakeMedia = Callable[[Mapping[Any, Any], str], str]


def normalize_messages(messages: object, take_media: TakeMedia | None = None) -> list[dict[str, Any]]:
    """The conversation, ready for `ChatTemplate.render`.

    Parts that are pictures, sound or video go to `take_media`; without it they are refused. They go there in the order
    in which a template sees them.
    """
    take_media = take_media or MediaParts().take
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        _refuse("messages", f"must be a list of messages, not {_kind(messages)}")
    normalized = [_message(message, f"messages[{i}]", take_media) for i, message in in_order_of_calls(messages)]
    if not normalized:
        raise RequestError("messages is empty. Send at least one message.", field="messages")
    name_results(normalized)
    return normalized


def _message(message: object, where: str, take_media: TakeMedia) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse(where, f'must be an object such as {{"role": "user", "content": "..."}}, not {_kind(message)}')
    role = message.get("role")
    if role not in ROLES:
        given = "has no role" if role is None else f"has the role {role!r}"
        _refuse(where, f"{given}. A role is one of {', '.join(ROLES)}")
    normalized: dict[str, Any] = {"role": role}
    name = _optional_string(message, "name", where)
    if name is not None:
        normalized["name"] = name
    if role == "assistant":
        normalized |= _assistant_fields(message, where, take_media)
    else:
        content = message.get("content")
        if content is None and role == "tool":
            content = ""  # of a tool that returned nothing
        if content is None:
            _refuse(where, "has no content. Give it a text, or leave the message out")
        normalized["content"] = _content(content, f"{where}.content", take_media)
    if role == "tool":
        normalized |= _tool_fields(message, where)
    return normalized


def _assistant_fields(message: Mapping[Any, Any], where: str, take_media: TakeMedia) -> dict[str, Any]:
    for retired in ("function_call", "audio"):
        if message.get(retired) is not None:
            advice = "Send tool_calls instead" if retired == "function_call" else "Send the text as content"
            _refuse(where, f"has {retired}, which is not supported. {advice}")
    fields: dict[str, Any] = {}
    reasoning = _optional_string(message, "reasoning", where)
    reasoning_content = _optional_string(message, "reasoning_content", where)
    thought = reasoning if reasoning is not None else reasoning_content
    if thought is not None:
        # Templates look under either name.
        fields["reasoning"] = fields["reasoning_content"] = thought
    tool_calls = message.get("tool_calls")
    if tool_calls is not None and not isinstance(tool_calls, list | tuple):
        _refuse(f"{where}.tool_calls", f"must be a list, not {_kind(tool_calls)}")
    if tool_calls:
        fields["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{j}]") for j, call in enumerate(tool_calls)]
    content = message.get("content")
    if content is None:
        content = _optional_string(message, "refusal", where)
    # None, as of a reply that was nothing but a thought. Templates ask whether content is a string.
    fields["content"] = "" if content is None else _content(content, f"{where}.content", take_media)
    return fields


def _tool_fields(message: Mapping[Any, Any], where: str) -> dict[str, Any]:
    call_id = _optional_string(message, "tool_call_id", where)
    if call_id is None and not message.get("name"):
        _refuse(where, "has no tool_call_id. Give the id of the call this is the result of")
    return {} if call_id is None else {"tool_call_id": call_id}


def _tool_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        _refuse(where, f"must be an object, not {_kind(call)}")
    kind = call.get("type") or "function"
    if kind not in ("function", "custom"):
        _refuse(where, f"has the type {kind!r}. Only 'function' and 'custom' are supported")
    called = call.get(kind)
    if not isinstance(called, Mapping):
        _refuse(f"{where}.{kind}", f"must be an object, not {_kind(called)}")
    name = called.get("name")
    if not isinstance(name, str) or not name:
        _refuse(f"{where}.{kind}.name", f"must be a name, not {_kind(name)}")
    if kind == "custom":
        text = called.get(ARGUMENT)
        if not isinstance(text, str):
            _refuse(f"{where}.custom.{ARGUMENT}", f"must be a string, not {_kind(text)}")
        arguments: dict[str, Any] = {ARGUMENT: text}
    else:
        arguments = _arguments(called.get("arguments"), f"{where}.function.arguments")
    normalized: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    call_id = _optional_string(call, "id", where)
    if call_id is not None:
        normalized["id"] = call_id
    return normalized


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    if isinstance(arguments, Mapping):
        try:  # a copy of our own, in which nothing but JSON is left
            arguments = json.dumps(dict(arguments), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            _refuse(where, f"cannot be written as JSON: {error}")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if not isinstance(arguments, str):
        _refuse(where, f"must be a string that holds a JSON object, not {_kind(arguments)}")
    try:
        parsed = json.loads(arguments, parse_float=_FloatAsWritten, parse_int=_integer, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        _refuse(where, f"is not valid JSON ({reason}). Send the whole call, or leave it and its result out")
    if not isinstance(parsed, dict):
        _refuse(where, f"must hold a JSON object, not {_kind(parsed)}")
    if "\\u" in arguments:
        try:
            json.dumps(parsed, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = ord(error.object[error.start])
            _refuse(where, f"holds \\u{half:04x}, half of a surrogate pair, which is not a character")
    return parsed


def _content(content: object, where: str, take_media: TakeMedia) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        _refuse(where, f"must be a string or a list of parts, not {_kind(content)}")
    return [_part(part, f"{where}[{k}]", take_media) for k, part in enumerate(content)]


def _part(part: object, where: str, take_media: TakeMedia) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        _refuse(where, f'must be an object such as {{"type": "text", "text": "..."}}, not {_kind(part)}')
    kind = part.get("type")
    if kind is None:  # what it holds says as much
        kind = next((name for name in ("text", *sorted(MEDIA_TYPES)) if name in part), None)
        part = {**part, "type": kind}
    if isinstance(kind, str) and kind in MEDIA_TYPES:
        return {"type": take_media(part, where)}
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        given = "has no type" if kind is None else f"has the type {kind!r}"
        _refuse(where, f"{given}. A part is of type text, image_url, input_audio, video_url or file")
    field = _TEXT_PARTS[kind]
    text = part.get(field)
    if not isinstance(text, str):
        _refuse(f"{where}.{field}", f"must be a string, not {_kind(text)}")
    return {"type": "text", "text": text}


class _FloatAsWritten(float):
    """A number a template writes as the model had written it, so that a replayed call is the same tokens again."""

    def __new__(cls, text: str) -> "_FloatAsWritten":
        number = super().__new__(cls, text)
        number._text = text
        return number

    _text: str

    def __str__(self) -> str:
        return self._text


def _integer(text: str) -> int | _FloatAsWritten:
    return int(text) if len(text) <= _MOST_DIGITS else _FloatAsWritten(text)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _optional_string(message: Mapping[Any, Any], field: str, where: str) -> str | None:
    value = message.get(field)
    if value is not None and not isinstance(value, str):
        _refuse(f"{where}.{field}", f"must be a string, not {_kind(value)}")
    return value


def _kind(value: object) -> str:
    """What a client would call this value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case "":
            return "an empty string"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _refuse(where: str, fault: str) -> NoReturn:
    raise RequestError(f"{where} {fault}.", field="messages")
