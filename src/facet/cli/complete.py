"""`facet complete PROMPT`: prints one answer, for scripts. Only the answer goes to standard output."""

import argparse
import contextlib
import json
import sys
from dataclasses import dataclass
from typing import Any

from facet.chat import ContentDelta, ReasoningDelta
from facet.cli.answers import ChatAnswer
from facet.cli.any_text import printable_json, utf8_text
from facet.cli.asking import UNLISTED, Answerer, AskConfig, ask_config_from, open_answerer, read_json, read_tools
from facet.cli.attachments import content_of, read_attachment
from facet.cli.flags import add_common_flags, add_config_flags
from facet.cli.screen import without_controls
from facet.config import setting
from facet.errors import ConfigError, EngineError

_CHAT, _RAW = "/v1/chat/completions", "/v1/completions"
_STDIN = "-"
# For a text that is continued without --max-tokens: the API's default of 16 is too few, and few such texts end.
_DEFAULT_RAW_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteConfig(AskConfig):
    """The prompt, and the form of the answer."""

    prompt: str | None = setting(None, "prompt; - or none: read it from standard input")
    raw: bool = setting(
        False, "continue PROMPT as plain text instead of answering it; 128 tokens unless --max-tokens is given"
    )
    schema: str | None = setting(None, "file with a JSON schema; the answer is JSON that satisfies it")
    attach: tuple[str, ...] = setting((), "picture, sound or video to send with the prompt; may be given several times")
    stop: tuple[str, ...] = setting((), "text at which the answer stops; may be given several times")
    json: bool = setting(False, "print the whole response as JSON, in OpenAI's format")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("complete", help="answer one prompt and exit, for scripts")
    add_config_flags(parser, CompleteConfig, positional="prompt", one_at_a_time=("attach", "stop", "lora_modules"),
                     unlisted=UNLISTED)  # fmt: skip
    parser.add_argument(
        "--chat", dest="raw", action="store_false", help="answer PROMPT as a chat message (the default)"
    )
    add_common_flags(parser)
    parser.set_defaults(run=run, model=None)


def run(options: argparse.Namespace) -> int:
    config, name = ask_config_from(options, CompleteConfig)
    if config.raw:
        _refuse_with_raw(config)
    body = _body(config, _read_prompt(config.prompt))
    with open_answerer(config, name) as answerer:
        if not config.raw and not answerer.has_template:
            raise ConfigError(f"{name} has no chat template. Add --raw to continue a text instead.")
        body["model"] = answerer.model
        if config.json:
            response = answerer.client.post(_RAW if config.raw else _CHAT, body)
            print(printable_json(json.dumps(response, indent=2, ensure_ascii=False)))
            finish_reason = response["choices"][0]["finish_reason"]
        else:
            finish_reason = _print_raw(answerer, body) if config.raw else _print_chat(answerer, body)
    if finish_reason == "length":
        _on_length(config)
    return 0


def _refuse_with_raw(config: CompleteConfig) -> None:
    for flag, is_given in (
        ("--tools", config.tools),
        ("--system", config.system),
        ("--think", config.think),
        ("--attach", config.attach),
    ):
        if is_given:
            raise ConfigError(f"{flag} is for messages, but --raw continues a text as it is. Leave one of them out.")


def _read_prompt(prompt: str | None) -> str:
    if prompt is not None and prompt != _STDIN:
        text = utf8_text(prompt, "The prompt")
    elif prompt is None and sys.stdin.isatty():
        raise ConfigError('There is no prompt. Give one, as in facet complete "Name three rivers.", or pipe one in.')
    else:
        text = utf8_text(sys.stdin.read(), "The prompt")
    if not text.strip():
        raise ConfigError("The prompt is empty.")
    return text


def _body(config: CompleteConfig, prompt: str) -> dict[str, Any]:
    body: dict[str, Any] = config.answer_settings()
    if config.stop:
        body["stop"] = [utf8_text(text, "--stop") for text in config.stop]
    if config.schema is not None:
        schema = read_json(config.schema, "schema")
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    if config.raw:
        return {"prompt": prompt, "max_tokens": _DEFAULT_RAW_TOKENS, **body}
    opening = [{"role": "system", "content": config.system}] if config.system else []
    attached = [read_attachment(name) for name in config.attach]
    body["messages"] = [*opening, {"role": "user", "content": content_of(prompt, attached)}]
    if config.tools is not None:
        body["tools"] = read_tools(config.tools)
    if config.think:
        body["chat_template_kwargs"] = {"enable_thinking": True}
    return body


def _print_chat(answerer: Answerer, body: dict[str, Any]) -> str | None:
    """Prints the content as it arrives, then a line of JSON per tool call. Thoughts appear only on a terminal."""
    answer, is_json = ChatAnswer(), _is_json(body)
    with contextlib.closing(answerer.client.stream(_CHAT, body)) as events:
        for delta in answer.read(events):
            if isinstance(delta, ContentDelta):
                _print_part(delta.text, is_json)
            elif isinstance(delta, ReasoningDelta) and sys.stderr.isatty():
                print(without_controls(delta.text), end="", file=sys.stderr, flush=True)
    content = answer.reply.content
    if content and not content.endswith("\n"):
        print()
    for call in answer.calls_to_make:
        function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
        print(printable_json(json.dumps(function, ensure_ascii=False)))
    return answer.finish_reason


def _print_raw(answerer: Answerer, body: dict[str, Any]) -> str | None:
    finish_reason, last, is_json = None, "", _is_json(body)
    with contextlib.closing(answerer.client.stream(_RAW, body)) as events:
        for event in events:
            for choice in event["choices"]:
                if text := choice["text"]:
                    _print_part(text, is_json)
                    last = text
                finish_reason = choice["finish_reason"] or finish_reason
    if not last.endswith("\n"):
        print()
    return finish_reason


def _is_json(body: dict[str, Any]) -> bool:
    return "response_format" in body


def _print_part(text: str, is_json: bool) -> None:
    shown = printable_json(text) if is_json else text
    print(without_controls(shown) if sys.stdout.isatty() else shown, end="", flush=True)


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text  # a server that does not bind calls to their schema may send anything


def _on_length(config: CompleteConfig) -> None:
    if config.schema is not None:
        raise EngineError("The answer was cut off before its JSON was complete. Raise --max-tokens.")
    if sys.stderr.isatty():
        print("(cut off at the maximum number of tokens)", file=sys.stderr)
