"""The commands of a chat, lines that begin with a slash. Each changes the conversation and returns a message."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from facet.cli.asking import read_tools
from facet.cli.attachments import KINDS, read_attachment
from facet.cli.conversation import SETTINGS, Conversation
from facet.errors import ConfigError

LEAVE = frozenset({"/exit", "/quit"})


@dataclass(frozen=True, slots=True)
class Command:
    usage: str
    help: str
    run: Callable[[Conversation, str], str]


def run_command(line: str, conversation: Conversation) -> str:
    """Runs a command and returns what to tell the user. Raises `UserError` if it cannot."""
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, [*COMMANDS, *LEAVE], n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"There is no {name}.{hint} /help lists the commands; to begin a message with a slash, write two."
        )
    return command.run(conversation, rest.strip())


def completions(line: str) -> list[str]:
    """What the last word of a command may become: a command, or the name of a setting."""
    words = line.split(" ")
    if len(words) == 1:
        return [name for name in sorted((*COMMANDS, *LEAVE)) if name.startswith(line)] if line.startswith("/") else []
    return [name for name in SETTINGS if name.startswith(words[1])] if words[0] == "/set" and len(words) == 2 else []


def _tools(conversation: Conversation, path: str) -> str:
    if path == "off":
        conversation.tools = []
        return "No tools."
    if path:
        conversation.tools = read_tools(path)
    names = [tool["function"]["name"] for tool in conversation.tools]
    return f"Tools: {', '.join(names)}." if names else "No tools. /tools FILE.json loads some, in OpenAI's format."


def _attach(conversation: Conversation, name: str) -> str:
    done = ""
    if name:
        conversation.attached.append(read_attachment(name))
        done = f"Attached {name} ({KINDS[conversation.attached[-1]['type']]}). "
    count = len(conversation.attached)
    if count == 0:
        return "Nothing is attached. /attach FILE sends a picture, sound or video with your next message."
    return f"{done}{count} file{'s' if count > 1 else ''} will go with your next message."


def _think(conversation: Conversation, rest: str) -> str:
    conversation.thinks = not conversation.thinks
    return "Thinking on." if conversation.thinks else "Thinking off."


def _system(conversation: Conversation, text: str) -> str:
    conversation.system = text or None
    return "System prompt set." if text else "No system prompt."


def _set(conversation: Conversation, rest: str) -> str:
    if rest:
        name, _, text = rest.partition(" ")
        conversation.set(name, text.strip())
    shown = ", ".join(f"{name} {value}" for name, value in conversation.settings.items())
    return f"Settings: {shown}." if shown else "Settings: the model's defaults."


def _clear(conversation: Conversation, rest: str) -> str:
    conversation.forget_from(0)
    conversation.attached = []
    return "New conversation."


def _help(conversation: Conversation, rest: str) -> str:
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:<{width}}  {command.help}" for command in COMMANDS.values()]
    return "\n".join([*lines, f"{'/exit':<{width}}  leave (or press Ctrl-D)"])


COMMANDS = {
    "/attach": Command("/attach FILE", "send a picture, sound or video with the next message", _attach),
    "/tools": Command("/tools FILE|off", "offer the tools in a JSON file; you type the results of their calls", _tools),
    "/think": Command("/think", "switch thinking before each answer on or off", _think),
    "/system": Command("/system TEXT", "set the system prompt; without TEXT, remove it", _system),
    "/set": Command("/set NAME VALUE", f'NAME: {", ".join(SETTINGS)}; VALUE "default" resets it', _set),
    "/clear": Command("/clear", "start a new conversation", _clear),
    "/help": Command("/help", "show this list", _help),
}
