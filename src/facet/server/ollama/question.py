"""Translates requests of Ollama's API into questions."""

from typing import Any

from facet.errors import RequestError
from facet.prompts import AskedModel, ChatQuestion, TextQuestion
from facet.server.conversation import Conversation, file_of, text_part
from facet.server.ollama.wire import (
    UNSUPPORTED_FIELDS,
    UNSUPPORTED_IN_GENERATE,
    CommonRequest,
    GenerateRequest,
    InputMessage,
    OllamaChatRequest,
    Options,
)
from facet.server.protocol.sampling_fields import refuse_unsupported

_SAME_NAME = ("temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty")
# The values at which an option that is not supported does nothing.
_NEUTRAL = {"typical_p": (None, 0.0, 1.0), "tfs_z": (None, 0.0, 1.0), "mirostat": (None, 0)}


def chat_question(fields: OllamaChatRequest, model: AskedModel) -> ChatQuestion:
    refuse_unsupported(fields, UNSUPPORTED_FIELDS)
    conversation = Conversation()
    open_calls: list[tuple[str, str]] = []  # id and name of each, until its result comes
    for index, message in enumerate(fields.messages):
        if message.role == "assistant":
            _add_reply(message, f"messages[{index}]", conversation, open_calls)
        elif message.role == "tool":
            call_id, name = _call_of(message, f"messages[{index}]", open_calls)
            content = _content(message.content or "", message.images, f"messages[{index}].images", model)
            conversation.result(call_id, content, name)
        else:
            content = _content(message.content or "", message.images, f"messages[{index}].images", model)
            conversation.say(message.role, content)
    return _question(fields, model, conversation, tools=fields.tools)


def generate_question(fields: GenerateRequest, model: AskedModel) -> ChatQuestion | TextQuestion:
    refuse_unsupported(fields, UNSUPPORTED_FIELDS)
    refuse_unsupported(fields, UNSUPPORTED_IN_GENERATE)
    content = _content(fields.prompt, fields.images, "images", model)
    if fields.raw:
        if fields.system or fields.think or fields.images:
            raise RequestError(
                "A raw prompt is sent as it is, without system, think and images. Leave them out.", field="raw"
            )
        given = _sampling(fields.options)
        return TextQuestion(
            prompt=fields.prompt,
            sampling=model.sampling(given, max_tokens=None),
            is_max_tokens_default="max_tokens" not in given,
            response_format=_response_format(fields.format),
        )
    conversation = Conversation()
    if fields.system:
        conversation.say("system", fields.system)
    conversation.say("user", content)
    return _question(fields, model, conversation)


def _question(
    fields: CommonRequest, model: AskedModel, conversation: Conversation, tools: object = None
) -> ChatQuestion:
    given, think = _sampling(fields.options), None if fields.think == "" else fields.think
    return ChatQuestion(
        messages=conversation.messages,
        sampling=model.sampling(given, max_tokens=None),
        is_max_tokens_default="max_tokens" not in given,
        response_format=_response_format(fields.format),
        tools=tools,
        reasoning_effort=think if isinstance(think, str) else None,
        chat_template_kwargs={"enable_thinking": think} if isinstance(think, bool) else None,
    )


def _sampling(options: Options | None) -> dict[str, Any]:
    options = options or Options()
    for name, neutral in _NEUTRAL.items():
        if getattr(options, name) not in neutral:
            raise RequestError(f"options.{name} is not supported. Leave it out.", field="options")
    if options.repeat_last_n not in (None, -1) and options.repeat_penalty not in (None, 1.0):
        raise RequestError(
            "options.repeat_last_n is not supported: the penalty looks at the whole text. Leave it out, or set it to "
            "-1.",
            field="options",
        )
    given = {name: getattr(options, name) for name in _SAME_NAME}
    given["repetition_penalty"] = options.repeat_penalty
    if options.num_predict is not None and options.num_predict >= 0:  # below: as much as the context holds
        given["max_tokens"] = options.num_predict
    return {name: value for name, value in given.items() if value is not None}


def _response_format(wanted: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if not wanted:
        return None
    if isinstance(wanted, dict):
        return {"type": "json_schema", "json_schema": {"schema": wanted}}
    if wanted != "json":
        raise RequestError(f"format is {wanted!r}, but must be json or a JSON schema.", field="format")
    return {"type": "json_object"}


def _add_reply(
    message: InputMessage, where: str, conversation: Conversation, open_calls: list[tuple[str, str]]
) -> None:
    conversation.open_turn()
    if message.thinking:
        conversation.think(message.thinking)
    conversation.reply(message.content or "")
    open_calls.clear()
    for index, call in enumerate(message.tool_calls or ()):
        arguments = bytes(call.function.arguments).decode()
        if not arguments.startswith("{"):
            raise RequestError(f"{where}.tool_calls[{index}].function.arguments must be an object.", field="messages")
        call_id = call.id or f"call_{len(conversation.messages)}_{index}"
        conversation.call(call_id, call.function.name, arguments)
        open_calls.append((call_id, call.function.name))


def _call_of(message: InputMessage, where: str, open_calls: list[tuple[str, str]]) -> tuple[str, str]:
    """The call that a result belongs to: the one with its id, else the first of its tool without a result, else the
    first of all. Clients send ids that the calls before do not have."""
    name = message.tool_name or message.name
    with_id = [call for call in open_calls if call[0] == message.tool_call_id]
    with_name = [call for call in open_calls if name in (None, call[1])]
    for call in (*with_id, *with_name):
        open_calls.remove(call)
        return call
    raise RequestError(f"{where} is the result of a tool, but no such call is waiting for one.", field="messages")


def _content(text: str, images: list[str] | None, where: str, model: AskedModel) -> str | list[dict[str, Any]]:
    """Pictures come before the text, as with Ollama. Its clients also send sound and video as images."""
    if not images:
        return text
    if not model.media.kinds:
        raise RequestError(f"{where} cannot be read: this model reads text only. Leave them out.", field="images")
    return [*(file_of(image, f"{where}[{index}]") for index, image in enumerate(images)), text_part(text)]
