"""Renders messages as text with the Jinja template that comes with the checkpoint.

A template is untrusted code. It runs in Jinja's sandbox, sees only the values it is given, and cannot
change them. It is given what templates on the Hugging Face Hub expect to find: the same
variables, functions, filters and whitespace rules.

This file does not know any model's format: that is what the template is for.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from facet.errors import CheckpointError, RequestError
from facet.tokens.files import read_tokenizer_config

Message = Mapping[str, Any]

# Names a list of templates may use: the one for conversations with tools, and the one for all others.
_TOOL_TEMPLATE = "tool_use"
_DEFAULT_TEMPLATE = "default"


class ChatTemplate:
    """A checkpoint's compiled chat template; immutable, threads may share it."""

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        origin: str = "the chat template",
    ) -> None:
        """Compiles one template, or several by name, of which each rendering uses one.

        `special_tokens` are variables every rendering sees, as in {"bos_token": "<bos>"}. `origin` says in
        error messages where the template was found.
        """
        sources = {_DEFAULT_TEMPLATE: source} if isinstance(source, str) else source
        if _DEFAULT_TEMPLATE not in sources:
            raise CheckpointError(
                f"{origin} holds the templates {', '.join(map(repr, sources))} and none named "
                f"{_DEFAULT_TEMPLATE!r}. Name the one for ordinary conversations {_DEFAULT_TEMPLATE!r}."
            )
        self._special_tokens = dict(special_tokens or {})
        environment = _make_environment()
        self._templates = {name: _compile(environment, text, origin) for name, text in sources.items()}

    @classmethod
    def from_folder(cls, folder: Path, *, special_tokens: Mapping[str, str] | None = None) -> Self | None:
        """The template of a checkpoint: chat_template.jinja, else the one in tokenizer_config.json.

        None where there is neither, as with models that were not trained to chat.
        """
        path = folder / "chat_template.jinja"
        try:
            source = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}. Download the file again.") from error
        else:
            return cls(source, special_tokens=special_tokens, origin=str(path))
        entry = read_tokenizer_config(folder).get("chat_template")
        if entry is None:
            return None
        origin = f"chat_template in {folder / 'tokenizer_config.json'}"
        return cls(_check_entry(entry, origin), special_tokens=special_tokens, origin=origin)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation, ready for `Tokenizer.encode(..., add_special_tokens=False)`.

        `add_generation_prompt` ends it with the opening of the model's reply. `variables` reach the template
        as they are, for instance {"enable_thinking": True}.
        """
        arguments = {
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        variables = variables or {}
        if taken := sorted(arguments.keys() & variables.keys()):
            raise RequestError(
                f"A template variable cannot be called {taken[0]!r}: the conversation itself has that name. "
                "Rename it, or use the request's own field.",
                field="chat_template_kwargs",
            )
        name = _TOOL_TEMPLATE if tools is not None and _TOOL_TEMPLATE in self._templates else _DEFAULT_TEMPLATE
        values = {**self._special_tokens, **variables, **arguments}
        try:
            return self._templates[name].render(values)
        except _RaisedByTemplateError as error:
            raise RequestError(
                f"The model's chat template refuses this conversation: {error}", field="messages"
            ) from error
        except jinja2.exceptions.SecurityError as error:
            raise RequestError(
                f"The model's chat template tried something a template may not do: {error}", field="messages"
            ) from error
        except Exception as error:
            # A template indexes, adds and calls what the client sent: any kind of error can come out of it.
            raise RequestError(
                "The model's chat template cannot render this conversation "
                f"({type(error).__name__}: {error}). Check the roles and the shape of each message.",
                field="messages",
            ) from error


class _RaisedByTemplateError(jinja2.TemplateError):
    """The template called raise_exception; the message is its own words."""


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks replies for training. To rendering it means nothing."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope, as where templates come from: a variable set inside is not seen outside.
        return nodes.Scope(body).set_lineno(line)


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Jinja's own filter escapes "<" and "&" for web pages, which a model must not see."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _RaisedByTemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _compile(environment: ImmutableSandboxedEnvironment, source: str, origin: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(
            f"{origin} is not a valid template: {error.message} (line {error.lineno}). Download the file again."
        ) from error


def _check_entry(entry: object, origin: str) -> str | Mapping[str, str]:
    """One template as a string, or a list of {"name": ..., "template": ...}."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        named = {
            item["name"]: item["template"]
            for item in entry
            if isinstance(item, dict) and isinstance(item.get("name"), str) and isinstance(item.get("template"), str)
        }
        if named and len(named) == len(entry):
            return named
    raise CheckpointError(
        f"{origin} is neither a template nor a list of templates, each with its own name. Download the file again."
    )
