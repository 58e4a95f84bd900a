"""Renders messages as text with the Jinja template that comes with the checkpoint.

A template is untrusted code. It runs in Jinja's sandbox, sees only the values it is given, and cannot
change them. It is given what templates on the Hugging Face Hub expect to find: the same
variables, functions, filters and whitespace rules.

What a client sent is shown to the template in a way that tells it apart from the template's own words wherever it
ends up (outside_text.py, tracing.py), so that only the latter can become control tokens. That takes time, and most
conversations hold nothing a control token could be made of: those are rendered plainly.

This file does not know any model's format: that is what the template is for.
"""

import functools
import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from facet.chat.json_tools import with_tools_as_json
from facet.chat.messages import ROLES
from facet.chat.outside_text import from_outside, unshifted, without_shifted
from facet.chat.template_values import shortened, strings
from facet.chat.tracing import TracingEnvironment
from facet.errors import CheckpointError, RequestError
from facet.tokens import Tokenizer
from facet.tokens.files import read_tokenizer_config
from facet.tokens.prompt_text import PromptText
from facet.tokens.text_limit import TextLimit

Message = Mapping[str, Any]

# Names a list of templates may use: the one for conversations with tools, and the one for all others.
_TOOL_TEMPLATE = "tool_use"
_DEFAULT_TEMPLATE = "default"
# In characters: from here on a conversation is rendered twice, the first time to see whether it is too long. That
# costs little beside encoding it.
LONG_CONVERSATION = 1 << 16


class ChatTemplate:
    """A checkpoint's compiled chat template; immutable, threads may share it."""

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        special_tokens: Mapping[str, str] | None = None,
        control_texts: Collection[str] | None = None,
        origin: str = "the chat template",
        called: str = "The model's chat template",
    ) -> None:
        """Compiles one template, or several by name, of which each rendering uses one.

        `special_tokens` are variables every rendering sees, as in {"bos_token": "<bos>"}. `control_texts` are how the
        control tokens are written; where they are not known, every rendering is traced. `origin` says in error
        messages where the template was found, and `called` is its name in those about a conversation.
        """
        sources = {_DEFAULT_TEMPLATE: source} if isinstance(source, str) else source
        if _DEFAULT_TEMPLATE not in sources:
            raise CheckpointError(
                f"{origin} holds the templates {', '.join(map(repr, sources))} and none named "
                f"{_DEFAULT_TEMPLATE!r}. Name the one for ordinary conversations {_DEFAULT_TEMPLATE!r}."
            )
        self._special_tokens = dict(special_tokens or {})
        self._sources, self._origin, self._called = sources, origin, called
        environment = _equip(ImmutableSandboxedEnvironment(**_OPTIONS))
        environment.filters["tojson"] = _to_json
        self._templates = {name: _compile(environment, text, origin) for name, text in sources.items()}
        parsed = {name: environment.parse(text) for name, text in sources.items()}
        self.shows_tools = _TOOL_TEMPLATE in sources or any(map(_uses_tools, parsed.values()))
        self._starts = frozenset(text[0] for text in control_texts or ())
        self._writes_whole_markers = {
            name: control_texts is not None and _writes_whole_markers(template, control_texts)
            for name, template in parsed.items()
        }

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer | None = None) -> Self | None:
        """The template of a checkpoint: chat_template.jinja, else the one in tokenizer_config.json.

        None where there is neither, as with models that were not trained to chat.
        """
        tokens: dict[str, Any] = {}
        if tokenizer is not None:
            tokens = {"special_tokens": tokenizer.special_tokens, "control_texts": tokenizer.control_tokens.id_of}
        path = folder / "chat_template.jinja"
        try:
            source = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}. Download the file again.") from error
        else:
            return cls(source, origin=str(path), **tokens)
        entry = read_tokenizer_config(folder).get("chat_template")
        if entry is None:
            return None
        origin = f"chat_template in {folder / 'tokenizer_config.json'}"
        return cls(_check_entry(entry, origin), origin=origin, **tokens)

    @property
    def source(self) -> str:
        """The template for ordinary conversations."""
        return self._sources[_DEFAULT_TEMPLATE]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tools_as_json: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
        limit: TextLimit | None = None,
    ) -> PromptText:
        """The text of a conversation, ready for `Tokenizer.encode_prompt`.

        `add_generation_prompt` ends it with the opening of the model's reply. `variables` reach the template
        as they are, for instance {"enable_thinking": True}. A conversation that exceeds the `limit`
        is refused before all of it is rendered. With `tools_as_json`, for models that have no tokens for calls, tools
        that the template does not show are written into the messages.
        """
        if tools_as_json and not self.shows_tools:
            messages, tools = with_tools_as_json(messages, tools or ()), None
        elif tools and not self.shows_tools:
            raise RequestError(
                f"{self._called} does not show tools to the model. Leave them out, or give the model a template that "
                "does (--chat-template).",
                field="tools",
            )
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
        values = {**variables, **arguments}
        if limit is not None and sum(map(len, strings(values))) > LONG_CONVERSATION:
            limit.check(self._render_beginning(name, values, limit.max_characters))
        if self._writes_whole_markers[name] and not self._has_start_of_marker(values):
            return PromptText(self._render(self._templates[name], values))
        rendered = self._render(self._tracing_templates[name], _from_outside(values))
        return PromptText(unshifted(rendered), own_text=without_shifted(rendered))

    def _render_beginning(self, name: str, values: Mapping[str, Any], max_characters: int | None) -> str:
        """The text, or more than `max_characters` of it for little work and memory."""
        if max_characters is not None:
            values = shortened(values, max_characters)
        return self._render(self._templates[name], values, max_characters)

    def _render(self, template: jinja2.Template, values: Mapping[str, Any], max_characters: int | None = None) -> str:
        return _render(template, {**self._special_tokens, **values}, self._called, max_characters)

    @functools.cached_property
    def _tracing_templates(self) -> dict[str, jinja2.Template]:
        # Compiled when the first conversation needs them: a server must not start later for it.
        environment = _equip(TracingEnvironment(**_OPTIONS))
        return {name: _compile(environment, text, self._origin) for name, text in self._sources.items()}

    def _has_start_of_marker(self, values: object) -> bool:
        return any(start in text for text in strings(values) for start in self._starts)


def _render(template: jinja2.Template, values: Mapping[str, Any], called: str, max_characters: int | None) -> str:
    """The text; of a longer one no more than its beginning, which is longer than `max_characters`, too."""
    try:
        if max_characters is None:
            return template.render(values)
        parts, num_characters = [], 0
        for part in template.generate(values):
            parts.append(part)
            num_characters += len(part)
            if num_characters > max_characters:
                break
        return "".join(parts)
    except Exception as error:
        # A template indexes, adds and calls what the client sent: any kind of error can come out of it.
        if isinstance(error, _RaisedByTemplateError):
            fault = f"refuses this conversation: {error}"
        elif isinstance(error, jinja2.exceptions.SecurityError):
            fault = f"tried something a template may not do: {error}"
        else:
            kind = type(error).__name__
            fault = f"cannot render this conversation ({kind}: {error}). Check the roles and the shape of each message."
        raise RequestError(f"{called} {unshifted(fault)}", field="messages") from error


def _from_outside(values: Mapping[str, Any]) -> dict[str, Any]:
    outside = {name: from_outside(value) for name, value in values.items()}
    for shown, sent in zip(outside["messages"], values["messages"], strict=True):
        if isinstance(sent, Mapping) and sent.get("role") in ROLES:
            # One of a few words of our own. Some templates make a marker of it.
            shown["role"] = sent["role"]
    return outside


def _uses_tools(template: nodes.Template) -> bool:
    return any(name.name == "tools" and name.ctx == "load" for name in template.find_all(nodes.Name))


def _writes_whole_markers(template: nodes.Template, control_texts: Collection[str]) -> bool:
    """Whether the texts in a template hold no more of a control token's beginning than whole control tokens.

    If so, and if what a client sent holds no such beginning either, then every control token in the rendered text was
    written by the template: its first character can have come from nowhere else.
    """
    texts = sorted(control_texts)
    if any(longer.startswith(text) for text, longer in itertools.pairwise(texts)):
        return False  # what follows the shorter one might make it the longer one
    whole = re.compile("|".join(map(re.escape, sorted(control_texts, key=len, reverse=True))) or r"(?!)")
    starts = {text[0] for text in control_texts}
    constants = [node.value for node in template.find_all(nodes.Const) if isinstance(node.value, str)]
    constants += [node.data for node in template.find_all(nodes.TemplateData)]
    return starts.isdisjoint("".join(whole.sub("", constant) for constant in constants))


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


_OPTIONS: Mapping[str, Any] = {
    "trim_blocks": True,
    "lstrip_blocks": True,
    "extensions": (LoopControlExtension, _GenerationTag),
}


def _equip(environment: ImmutableSandboxedEnvironment) -> ImmutableSandboxedEnvironment:
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
