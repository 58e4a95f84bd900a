"""Shows a chat. On a terminal: thoughts dimmed, calls in a frame. In a pipe: only answers, as plain lines.

Answers go to standard output, everything else to standard error.
"""

import json
import re
import shutil
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from facet.chat import ContentDelta, Delta, ReasoningDelta
from facet.chat.reply import ToolCall
from facet.cli.any_text import printable_json
from facet.cli.word_wrap import WordWrap

# A model's text must not move the cursor or rename the window: of all that is not text, tabs and line ends are left.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class Screen:
    def __init__(self) -> None:
        self.is_interactive = sys.stdin.isatty()
        self._is_terminal = sys.stdout.isatty()
        self._notes = Console(stderr=True, highlight=False, soft_wrap=True)
        self._showing: type[Delta] | None = None  # the kind of the last part of an answer
        self._ends_line = True
        self._wrap = self._new_wrap()

    def ask(self, prompt: str) -> str:
        """Reads a line from the user. Raises EOFError at the end of the input."""
        return input(prompt if self.is_interactive else "")

    def show(self, delta: Delta) -> None:
        """Shows a part of an answer as it arrives. Calls are shown when they are complete."""
        if isinstance(delta, ReasoningDelta):
            if self._is_terminal:
                self._write(delta, delta.text)
        elif isinstance(delta, ContentDelta):
            self._write(delta, delta.text)

    def end(self) -> None:
        """The answer is over."""
        self._end_part()
        self._showing = None

    def calls(self, calls: Sequence[ToolCall]) -> None:
        for called in (call.function for call in calls):
            if self._is_terminal:
                arguments = Text(without_controls(_indented(called.arguments)))
                Console(highlight=False).print(Panel.fit(arguments, title=Text(without_controls(called.name))))
            else:
                print(f"{called.name} {printable_json(called.arguments or '{}')}", flush=True)

    def note(self, text: str) -> None:
        """A note about the session, for an interactive user."""
        if self.is_interactive:
            self._notes.print(Text(text, style="dim"))

    def tell(self, text: str) -> None:
        """What a command says. It was asked for, so it is also shown where input comes from a pipe."""
        self._notes.print(Text(text, style="dim"))

    def complain(self, text: str) -> None:
        self._notes.print(Text(" ".join(f"error: {text}".splitlines())))

    def _write(self, delta: Delta, text: str) -> None:
        if self._showing not in (None, type(delta)):
            self._end_part()
        self._showing = type(delta)
        self._print(self._wrap.feed(without_controls(text)) if self._is_terminal else text)
        self._ends_line = text.endswith("\n")

    def _end_part(self) -> None:
        """Thoughts and content end with a line each."""
        self._print(self._wrap.end())
        if not self._ends_line:
            print(flush=True)
        self._ends_line = True
        self._wrap = self._new_wrap()

    def _print(self, shown: str) -> None:
        is_dim = self._showing is ReasoningDelta
        print(f"{_DIM}{shown}{_PLAIN}" if is_dim and shown else shown, end="", flush=True)

    @staticmethod
    def _new_wrap() -> WordWrap:
        return WordWrap(shutil.get_terminal_size().columns)


def without_controls(text: str) -> str:
    """Text as it may be shown on a terminal."""
    return _CONTROLS.sub("", text)


def _indented(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments or "{}"), indent=2, ensure_ascii=False)
    except ValueError:
        return arguments
