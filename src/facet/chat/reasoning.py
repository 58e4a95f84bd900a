"""Reads the name of a channel, and a thought's text without the newlines of the format.

Knows only text; gemma_reply.py finds where a channel begins and ends.
"""

import re

_THOUGHT = "thought"
_THOUGHT_NAMES = frozenset({_THOUGHT, "thoughts", "think", "thinking", "reasoning", "analysis", "commentary"})
_CONTENT_NAMES = frozenset({"final", "answer", "response", "content", "output"})
_MAX_NAME_CHARS = 32
_MAYBE_NAME = re.compile(rf"\s*\w{{0,{_MAX_NAME_CHARS}}}")
# A name and then something that cannot be part of it.
_NAMED = re.compile(r"\s*(?P<name>\w+)(?P<rest>[^\w].*)", re.DOTALL)


class ChannelHeader:
    """The line that opens a channel and names it. Models also forget the line break, or the name."""

    def __init__(self) -> None:
        self.is_complete = False
        self.is_thought = True
        self.rest = ""  # what came after the header and belongs to the channel's text
        self._text = ""

    @property
    def may_be_thought_line(self) -> bool:
        """Whether the text so far is, or may become, a line that reads "thought" and nothing else."""
        return (_THOUGHT + "\n").startswith(self._text) or self._text.startswith(_THOUGHT + "\n")

    def take(self, text: str) -> None:
        self._text += text
        named = _NAMED.fullmatch(self._text)
        if named is not None:
            self._settle(named["name"], named["rest"])
        elif not _MAYBE_NAME.fullmatch(self._text):
            self._settle("", "")

    def finish(self) -> None:
        """The channel ended, or the reply was cut off, before the name did."""
        name = self._text.strip()
        self._settle(_THOUGHT if _THOUGHT.startswith(name) else name, "")

    def _settle(self, name: str, rest: str) -> None:
        self.is_complete = True
        known = name.lower()
        is_line = rest.startswith(("\n", "\r"))  # "final" on a line is a name, in "final answer" it is a word
        self.is_thought = not (known in _CONTENT_NAMES and is_line)
        is_name = known == _THOUGHT or (known in _THOUGHT_NAMES and is_line) or not self.is_thought
        self.rest = rest if is_name else self._text


class ThoughtText:
    """One thought's text, without newlines around it."""

    def __init__(self, *, joins_another: bool = False) -> None:
        self._joins_another = joins_another  # there was a thought before this one
        self._has_text = False
        self._newlines = ""  # held back: the last ones belong to the format

    def take(self, text: str) -> str:
        """The text that is certain to belong to the thought. At its end, what is still held is dropped."""
        text = self._newlines + text
        if not self._has_text:
            text = text.lstrip("\r\n")
        certain = text.rstrip("\r\n")
        self._newlines = text[len(certain) :]
        if not certain:
            return ""
        separator = "\n" if self._joins_another and not self._has_text else ""
        self._has_text = True
        return separator + certain
