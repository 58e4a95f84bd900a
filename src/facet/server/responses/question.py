"""Translates a request of the Responses API into a question."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from facet.chat.custom_tools import ARGUMENT
from facet.chat.json_text import is_json_object
from facet.chat.tool_choice import check_function
from facet.errors import RequestError
from facet.media_span import MediaKind
from facet.prompts import AskedModel, ChatQuestion
from facet.server.body import convert
from facet.server.conversation import Conversation, file_of, image_at, sound_of, text_part
from facet.server.protocol.sampling_fields import answer_settings, media_settings, refuse_unsupported
from facet.server.responses.wire import (
    UNSUPPORTED_FIELDS,
    Content,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputAudio,
    InputFile,
    InputImage,
    InputItem,
    InputMessage,
    ItemReference,
    ReasoningItem,
    Refusal,
    ResponsesRequest,
    TextFormat,
)

# By the id of an item of an earlier response: the item, or None where there is no such item.
FindItem = Callable[[str], dict[str, Any] | None]


def make_question(fields: ResponsesRequest, messages: list[dict[str, Any]], model: AskedModel) -> ChatQuestion:
    """`messages` are those of the conversation; the instructions come before them."""
    refuse_unsupported(fields)
    refuse_unsupported(fields, UNSUPPORTED_FIELDS)
    _refuse_settings(fields)
    given = answer_settings(fields)
    if fields.max_output_tokens is not None:
        given["max_tokens"] = fields.max_output_tokens
    if fields.reasoning is not None and fields.reasoning.max_tokens is not None:
        given["thinking_token_budget"] = fields.reasoning.max_tokens
    if fields.instructions is not None:
        messages = [{"role": "system", "content": fields.instructions}, *messages]
    text_format = None if fields.text is None else fields.text.format
    return ChatQuestion(
        messages=messages,
        sampling=model.sampling(given, max_tokens=None),
        is_max_tokens_default="max_tokens" not in given,
        response_format=None if text_format is None else _response_format(text_format),
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools or ())],
        tool_choice=_tool_choice(fields.tool_choice),
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        reasoning_effort=None if fields.reasoning is None else fields.reasoning.effort,
        chat_template_kwargs=fields.chat_template_kwargs,
        mm_processor_kwargs=media_settings(fields.mm_processor_kwargs, fields.media_io_kwargs),
        priority=fields.priority or 0,
        cache_salt=fields.cache_salt,
    )


def read_input(
    fields: ResponsesRequest, conversation: Conversation, find_item: FindItem, kinds: Sequence[MediaKind]
) -> None:
    """Adds the input to the conversation so far. `kinds`: what the model reads besides text."""
    if isinstance(fields.input, str):
        conversation.say("user", fields.input)
        return
    for index, item in enumerate(fields.input):
        decoded = _decode(item, f"input[{index}]")
        if isinstance(decoded, InputMessage) and decoded.role != "assistant":
            conversation.say(decoded.role, _content(decoded.content, f"input[{index}].content", kinds))
        else:
            _add(decoded, f"input[{index}]", conversation, find_item, kinds)


def _refuse_settings(fields: ResponsesRequest) -> None:
    """Refuses values of fields that are known otherwise."""
    if fields.truncation == "auto":
        raise RequestError("truncation is not supported. Shorten the input yourself.", field="truncation")
    if fields.text is not None and fields.text.verbosity not in (None, "medium"):
        raise RequestError("text.verbosity is not supported. Ask for it in the instructions.", field="text.verbosity")
    if "message.output_text.logprobs" in (fields.include or ()):
        raise RequestError(
            "include names message.output_text.logprobs, which is not supported. Ask /v1/chat/completions for "
            "log-probabilities.",
            field="include",
        )


def _decode(item: dict[str, Any], where: str) -> InputItem:
    """Decodes an item. Without a type it is a message, or a reference if it has nothing but an id."""
    if item.get("type") is None:
        item = {**item, "type": "item_reference" if "id" in item and "role" not in item else "message"}
    decoded: InputItem = convert(item, InputItem, where)
    return decoded


def _add(
    item: InputItem, where: str, conversation: Conversation, find_item: FindItem, kinds: Sequence[MediaKind]
) -> None:
    """Adds an item other than a message of the user, the system or the developer."""
    match item:
        case InputMessage():
            conversation.reply(_text(item.content, f"{where}.content"))
        case FunctionCall():
            _add_call(item, where, conversation)
        case CustomToolCall():
            conversation.call(item.call_id, item.name, {ARGUMENT: item.input})
        case FunctionCallOutput() | CustomToolCallOutput():
            conversation.result(item.call_id, _result(item.output, f"{where}.output", kinds))
        case ReasoningItem():
            _add_thought(item, where, conversation)
        case ItemReference():
            found = find_item(item.id)
            if found is None:
                raise RequestError(
                    f"{where} refers to {item.id!r}, which this server does not have, or no longer has. Send the item "
                    "itself.",
                    field="input",
                )
            _add(_decode(found, where), where, conversation, find_item, kinds)


def _add_call(item: FunctionCall, where: str, conversation: Conversation) -> None:
    """Adds a call. One that was cut off is left out, as it is behind `previous_response_id`."""
    if is_json_object(item.arguments.strip() or "{}"):
        conversation.call(item.call_id, item.name, item.arguments)
    elif item.status != "incomplete":
        raise RequestError(
            f"{where}.arguments is not the JSON of an object. Send the whole call, or leave it and its output out.",
            field="input",
        )


def _add_thought(item: ReasoningItem, where: str, conversation: Conversation) -> None:
    text = "\n".join(part.text for part in item.content or item.summary or ())
    if not text and item.encrypted_content:
        raise RequestError(f"{where} is a thought that only another server can read. Leave it out.", field="input")
    if text:
        conversation.think(text)


def _content(content: str | Sequence[Content], where: str, kinds: Sequence[MediaKind]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [
        _media_part(part, f"{where}[{index}]", kinds) or text_part(_part_text(part, f"{where}[{index}]"))
        for index, part in enumerate(content)
    ]


def _media_part(part: Content, where: str, kinds: Sequence[MediaKind]) -> dict[str, Any] | None:
    """A part of a message that is media. None: it is a text, or something that the model does not read."""
    match part:
        case InputImage(image_url=str(url)) if "image" in kinds:
            return image_at(url, where, ".image_url", part.detail)
        case InputAudio() if "audio" in kinds:
            return sound_of(part.input_audio.data, where, ".input_audio.data")
        case InputFile(file_data=str(data)) if kinds:
            return file_of(data, where, ".file_data")
        case InputImage(image_url=None) if "image" in kinds:
            raise _without_content(where, "image_url", part.file_id)
        case InputFile() if kinds:
            raise _without_content(where, "file_data", part.file_id)
    return None


def _without_content(where: str, field: str, file_id: object) -> RequestError:
    fault = f"has no {field}" if file_id is None else "has a file_id, but no files are kept here"
    return RequestError(f"{where} {fault}. Send the file itself as {field}.", field="input")


def _result(output: str | Sequence[Content], where: str, kinds: Sequence[MediaKind]) -> str | list[dict[str, Any]]:
    """The result of a call as one text, unless media are among its parts."""
    content = _content(output, where, kinds)
    if isinstance(content, str):
        return content
    return content if any("text" not in part for part in content) else "".join(part["text"] for part in content)


def _text(content: str | list[Any], where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Content, where: str) -> str:
    if isinstance(part, InputImage | InputFile | InputAudio):
        kind = {InputImage: "an image", InputFile: "a file", InputAudio: "audio"}[type(part)]
        raise RequestError(f"{where} is {kind}, which this model cannot read there. Send text instead.", field="input")
    return part.refusal if isinstance(part, Refusal) else part.text


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind == "custom":
        return dict(tool)
    if kind != "function":
        raise RequestError(
            f"{where} has the type {kind!r}, which this server cannot run. Offer tools of your own.", field="tools"
        )
    if "function" in tool and "name" not in tool:
        raise RequestError(
            f"{where} has its name in function, as in chat completions. Here name, description and parameters stand "
            "beside type.",
            field="tools",
        )
    check_function(tool, where)
    fields = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in fields if name in tool}}


def _tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """The form of chat completions, with the name one level deeper, is understood, too."""
    if isinstance(choice, dict):
        kind = choice.get("type")
        is_named = kind in ("function", "custom") and ("name" in choice or kind in choice)
        if not is_named and kind != "allowed_tools":
            raise RequestError(
                'tool_choice must look like {"type": "function", "name": "..."}.',
                field="tool_choice",
            )
    return choice


def _response_format(text_format: TextFormat) -> dict[str, Any]:
    if text_format.type != "json_schema":
        return {"type": text_format.type}
    if text_format.schema is None:
        raise RequestError(
            "text.format of type json_schema needs a schema, as in "
            '{"type": "json_schema", "name": "...", "schema": {...}}.',
            field="text.format",
        )
    return {"type": "json_schema", "json_schema": {"schema": text_format.schema}}
