"""Checks a request's tools, tool_choice, reasoning_effort and chat_template_kwargs, and prepares them for the template.

Checks shapes and names; whether a tool's schema can be enforced is not known here.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from facet.chat.custom_tools import as_function
from facet.errors import RequestError

_TOOL_NAME = re.compile(r"[\w.:/-]{1,128}")
_MODES = ("none", "auto", "required")
# Whether each effort thinks at all. Gemma has one way of thinking, so the rest are alike.
_THINKS = {"none": False, "minimal": False, "low": True, "medium": True, "high": True, "xhigh": True, "max": True}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may, must or must not call, and which tool."""

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None  # of the tool, for "named"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request."""

    tools: tuple[dict[str, Any], ...]  # as they were declared; custom ones as functions
    choice: ToolChoice
    allowed: frozenset[str] | None = None  # names of those that may be called; None: all of them
    custom: Mapping[str, str | None] = field(default_factory=dict)  # names of custom ones, and their grammars

    @property
    def callable_tools(self) -> tuple[dict[str, Any], ...]:
        """The others are declared all the same, so that a choice of fewer tools does not change the prompt."""
        if self.allowed is None:
            return self.tools
        return tuple(tool for tool in self.tools if tool["function"]["name"] in self.allowed)

    @property
    def is_strict(self) -> bool:
        """Whether it was promised that no call breaks its schema, or is one of a tool that is not allowed."""
        if self.choice.mode in ("required", "named") or self.allowed is not None:
            return True
        return any(tool["function"].get("strict") for tool in self.tools)

    @property
    def for_template(self) -> list[dict[str, Any]] | None:
        """What the template declares to the model. A model that must not call is not told of tools."""
        return list(self.tools) if self.tools and self.choice.mode != "none" else None


def normalize_tools(tools: object, tool_choice: object = None) -> ToolUse:
    """Checks both against each other. Without a choice it is "auto" if there are tools, else "none"."""
    if tools is not None and not isinstance(tools, list | tuple):
        _refuse("tools", "must be a list.")
    custom: dict[str, str | None] = {}
    declared = tuple(_tool(tool, f"tools[{i}]", custom) for i, tool in enumerate(tools or ()))
    names = [tool["function"]["name"] for tool in declared]
    if repeated := next((name for i, name in enumerate(names) if name in names[:i]), None):
        _refuse("tools", f"declares {repeated!r} twice. Give every tool a name of its own.")
    if isinstance(tool_choice, Mapping) and tool_choice.get("type") == "allowed_tools":
        mode, allowed = _allowed(tool_choice, names)
        return ToolUse(declared, ToolChoice(mode), allowed, custom)
    return ToolUse(declared, _choice(tool_choice, names), custom=custom)


def check_function(function: Mapping[Any, Any], where: str) -> None:
    """Checks what describes a tool. Other APIs than chat completions have it at another place in the request."""
    name, parameters, description = function.get("name"), function.get("parameters"), function.get("description")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        _refuse(f"{where}.name", f"is {name!r}. A name has up to 128 letters, digits, _ . : / or -.")
    if parameters is not None and not isinstance(parameters, Mapping):
        _refuse(f"{where}.parameters", "must be a JSON schema: an object.")
    if description is not None and not isinstance(description, str):
        _refuse(f"{where}.description", "must be a string.")


def template_variables(
    *,
    reasoning_effort: object = None,
    chat_template_kwargs: object = None,
    default_chat_template_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The variables beside the conversation. The request's own kwargs win, then its effort, then the defaults."""
    if reasoning_effort is not None and (not isinstance(reasoning_effort, str) or reasoning_effort not in _THINKS):
        raise RequestError(
            f"reasoning_effort is {reasoning_effort!r}, but must be one of {', '.join(_THINKS)}.",
            field="reasoning_effort",
        )
    if chat_template_kwargs is None:
        chat_template_kwargs = {}
    if not isinstance(chat_template_kwargs, Mapping) or not all(isinstance(key, str) for key in chat_template_kwargs):
        raise RequestError(
            'chat_template_kwargs must be an object of template variables, such as {"enable_thinking": true}.',
            field="chat_template_kwargs",
        )
    variables: dict[str, Any] = {"enable_thinking": False, **(default_chat_template_kwargs or {})}
    if reasoning_effort is not None:
        variables |= {"enable_thinking": _THINKS[reasoning_effort], "reasoning_effort": reasoning_effort}
    variables |= chat_template_kwargs
    if not isinstance(variables["enable_thinking"], bool):
        raise RequestError(
            f"enable_thinking must be true or false, not {variables['enable_thinking']!r}.",
            field="chat_template_kwargs",
        )
    return variables


def _tool(tool: object, where: str, custom: dict[str, str | None]) -> dict[str, Any]:
    """The tool as a function. One that is custom is noted in `custom`."""
    if not isinstance(tool, Mapping):
        _refuse(where, 'must be an object such as {"type": "function", "function": {...}}.')
    if tool.get("type") == "custom":
        described, grammar = as_function(tool, where)
        check_function(described["function"], f"{where}.custom" if "custom" in tool else where)
        as_declared = _tool(described, where, custom)
        custom[as_declared["function"]["name"]] = grammar
        return as_declared
    if tool.get("type") != "function":
        _refuse(where, f"has the type {tool.get('type')!r}. Only 'function' and 'custom' are supported.")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        _refuse(f"{where}.function", "must be an object with a name.")
    check_function(function, f"{where}.function")
    try:  # a copy of our own, in which nothing but JSON is left
        copied: dict[str, Any] = json.loads(json.dumps({"type": "function", "function": dict(function)}))
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(where, f"cannot be written as JSON: {error}.")
    # Templates ask whether these exist, and null is a value few of them expect.
    copied["function"] = {key: value for key, value in copied["function"].items() if value is not None}
    return copied


def _choice(tool_choice: object, names: list[str]) -> ToolChoice:
    if tool_choice is None:
        return ToolChoice("auto" if names else "none")
    if isinstance(tool_choice, Mapping):
        kind = tool_choice.get("type")
        function = tool_choice.get(kind) if kind in ("function", "custom") else None
        name = function.get("name") if isinstance(function, Mapping) else tool_choice.get("name")
        if kind not in ("function", "custom") or not isinstance(name, str):
            _refuse("tool_choice", 'must look like {"type": "function", "function": {"name": "..."}}.', "tool_choice")
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            _refuse("tool_choice", f"names {name!r}, which is not among the tools ({known}).", "tool_choice")
        return ToolChoice("named", name)
    if tool_choice == "none":
        return ToolChoice("none")
    if tool_choice not in ("auto", "required"):
        options = ", ".join(map(repr, _MODES))
        _refuse("tool_choice", f"is {tool_choice!r}, but must be {options} or name a function.", "tool_choice")
    if not names:
        if tool_choice == "required":
            _refuse("tool_choice", "is 'required', but there are no tools. Send tools with it.", "tool_choice")
        return ToolChoice("none")
    return ToolChoice("auto" if tool_choice == "auto" else "required")


def _allowed(tool_choice: Mapping[Any, Any], names: list[str]) -> tuple[Literal["auto", "required"], frozenset[str]]:
    """{"type": "allowed_tools", "mode": ..., "tools": [...]}; chat completions put the latter two one level deeper."""
    described = tool_choice.get("allowed_tools", tool_choice)
    tools = described.get("tools") if isinstance(described, Mapping) else None
    if not isinstance(tools, list | tuple) or not tools:
        _refuse("tool_choice", "of type allowed_tools needs a list of tools.", "tool_choice")
    mode = described.get("mode", "auto")
    if mode not in ("auto", "required"):
        _refuse("tool_choice", f"has the mode {mode!r}, but must be 'auto' or 'required'.", "tool_choice")
    named = [_choice(tool, names).name for tool in tools]
    if any(name is None for name in named):
        _refuse("tool_choice", "of type allowed_tools lists something that names no function.", "tool_choice")
    return ("auto" if mode == "auto" else "required"), frozenset(name for name in named if name is not None)


def _refuse(where: str, fault: str, field: str = "tools") -> NoReturn:
    raise RequestError(f"{where} {fault}", field=field)
