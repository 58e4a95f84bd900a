"""Translates a request of the Messages API into a question."""

import itertools
from collections.abc import Sequence
from typing import Any

from facet.chat.tool_choice import check_function
from facet.errors import RequestError
from facet.prompts import AskedModel, ChatQuestion
from facet.server.anthropic.wire import (
    UNSUPPORTED_FIELDS,
    CountTokensRequest,
    DocumentBlock,
    ImageBlock,
    InputMessage,
    MessagesRequest,
    OutputConfig,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from facet.server.conversation import Conversation, image_at, image_of, text_part
from facet.server.protocol.sampling_fields import answer_settings, media_settings, refuse_unsupported

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def make_question(fields: CountTokensRequest, model: AskedModel) -> ChatQuestion:
    refuse_unsupported(fields)
    refuse_unsupported(fields, UNSUPPORTED_FIELDS)
    given = _sampling(fields) if isinstance(fields, MessagesRequest) else {}
    thinking, choice = fields.thinking, fields.tool_choice
    if thinking is not None and thinking.type == "enabled":
        if thinking.budget_tokens is None or thinking.budget_tokens < 1:
            raise RequestError(
                "thinking.budget_tokens is missing or less than 1. Say how many tokens a thought may have, or set "
                "thinking.type to adaptive or disabled.",
                field="thinking",
            )
        given["thinking_token_budget"] = thinking.budget_tokens
    output_format = (fields.output_config or OutputConfig()).format or fields.output_format
    return ChatQuestion(
        messages=_messages(fields, reads_images="image" in model.media.kinds),
        sampling=model.sampling(given, max_tokens=None),
        is_max_tokens_default=not isinstance(fields, MessagesRequest),
        response_format=None
        if output_format is None
        else {"type": "json_schema", "json_schema": {"schema": output_format.schema}},
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(fields.tools or ())],
        tool_choice=None if choice is None else _tool_choice(choice, has_tools=bool(fields.tools)),
        parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
        chat_template_kwargs=fields.chat_template_kwargs
        if thinking is None
        else {**(fields.chat_template_kwargs or {}), "enable_thinking": thinking.type != "disabled"},
        mm_processor_kwargs=media_settings(fields.mm_processor_kwargs, fields.media_io_kwargs),
        priority=fields.priority or 0,
        cache_salt=fields.cache_salt,
        continue_final_message=bool(fields.messages) and fields.messages[-1].role == "assistant",
    )


def _sampling(fields: MessagesRequest) -> dict[str, Any]:
    given = answer_settings(fields)
    if fields.stop_sequences is not None:
        given["stop"] = fields.stop_sequences
    return given


def _messages(fields: CountTokensRequest, *, reads_images: bool) -> list[dict[str, Any]]:
    conversation = Conversation()
    if fields.system:
        # One text: some templates read only the first part of a system message.
        parts = [fields.system] if isinstance(fields.system, str) else [block.text for block in fields.system]
        conversation.say("system", "\n\n".join(parts))
    numbered = ((f"messages[{index}]", message) for index, message in enumerate(fields.messages))
    # Messages of one role in a row are one turn.
    for role, turn in itertools.groupby(numbered, key=lambda item: item[1].role):
        if role == "assistant":
            for where, message in turn:
                _add_reply(message, where, conversation)
        else:
            _add_turn(role, list(turn), conversation, reads_images=reads_images)
    return conversation.messages


def _add_turn(
    role: str, turn: Sequence[tuple[str, InputMessage]], conversation: Conversation, *, reads_images: bool
) -> None:
    """Adds a turn. Results of tools come first, whatever their place among the blocks."""
    parts: list[dict[str, Any]] = []
    for where, message in turn:
        for index, block in enumerate(message.blocks):
            if isinstance(block, TextBlock):
                parts.append(text_part(block.text))
            elif isinstance(block, ImageBlock) and role == "user" and reads_images:
                parts.append(_image(block, f"{where}.content[{index}]"))
            elif isinstance(block, ToolResultBlock) and role == "user":
                result = _result(block, f"{where}.content[{index}]", reads_images=reads_images)
                conversation.result(block.tool_use_id, result)
            else:
                _refuse(block, f"{where}.content[{index}]", role)
    if len(parts) == 1 and "text" in parts[0]:
        conversation.say(role, parts[0]["text"])
    elif parts:
        conversation.say(role, parts)


def _image(block: ImageBlock, where: str) -> dict[str, Any]:
    source = block.source
    if isinstance(source, UrlSource):
        return image_at(source.url, where, ".source.url")
    return image_of(source.data, where, ".source.data")


def _add_reply(message: InputMessage, where: str, conversation: Conversation) -> None:
    for index, block in enumerate(message.blocks):
        if isinstance(block, TextBlock):
            conversation.reply(block.text)
        elif isinstance(block, ThinkingBlock):
            conversation.think(block.thinking)
        elif isinstance(block, ToolUseBlock):
            arguments = bytes(block.input).decode()
            if not arguments.startswith("{"):
                raise RequestError(f"{where}.content[{index}].input must be an object.", field="messages")
            conversation.call(block.id, block.name, arguments)
        else:
            _refuse(block, f"{where}.content[{index}]", "assistant")


def _result(block: ToolResultBlock, where: str, *, reads_images: bool) -> str | list[dict[str, Any]]:
    """The result of a tool: one text, and the images behind it."""
    content, images = block.content or "", []
    if not isinstance(content, str):
        texts = []
        for index, part in enumerate(content):
            if isinstance(part, TextBlock):
                texts.append(part.text)
            elif isinstance(part, ImageBlock) and reads_images:
                images.append(_image(part, f"{where}.content[{index}]"))
            else:
                _refuse(part, f"{where}.content[{index}]", "tool")
        content = "\n".join(texts)
    text = f"Error: {content}" if block.is_error else content
    return [text_part(text), *images] if images else text


def _refuse(block: object, where: str, role: str) -> None:
    match block:
        case ImageBlock():
            fault = f"is an image, which this model cannot read in a message of the role {role}. Send text instead"
        case DocumentBlock():
            fault = "is a document, which this server does not read. Send its text"
        case RedactedThinkingBlock():
            fault = "is a thought that only another server can read. Leave it out"
        case _:
            fault = f"has a type that a message of the role {role} cannot have"
    raise RequestError(f"{where} {fault}.", field="messages")


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise RequestError(
            f"{where} has the type {tool.type!r}, which this server cannot run. Offer tools of your own.", field="tools"
        )
    for name in ("input_examples", "defer_loading"):
        if getattr(tool, name):
            raise RequestError(f"{where}.{name} is not supported. Leave it out.", field="tools")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    check_function(function, where)
    return {"type": "function", "function": {**function, "strict": tool.strict}}


def _tool_choice(choice: ToolChoice, *, has_tools: bool) -> object:
    if choice.type in ("any", "tool") and not has_tools:
        raise RequestError(
            f"tool_choice is of type {choice.type}, but there are no tools. Send tools with it.", field="tool_choice"
        )
    if choice.type == "tool" and not choice.name:
        raise RequestError(
            'tool_choice has no name. Name a tool, as in {"type": "tool", "name": "..."}, or set its type to any.',
            field="tool_choice",
        )
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]
