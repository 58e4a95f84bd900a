"""Generates long text that a request may be about: log lines, prose, code, tables. Its content does not matter."""

# ruff: noqa: SIM905  (long lists of words read better as text)

from collections.abc import Callable

from tools.bundled_model.dialogues import values
from tools.bundled_model.dialogues.words import Source

_LEVELS = ("INFO", "INFO", "DEBUG", "WARN", "ERROR", "FATAL")
_SMALL_WORDS = "the a one two three in on at of and is was light clear over under near with to from it they we".split()


LineMaker = Callable[[Source, list[str]], str]


def make_filler(source: Source, num_chars: int) -> str:
    """About so many characters of one sort."""
    make_line = source.pick((_log_line, _log_line, _log_line, _prose, _prose, _salad, _code_line, _table_line))
    return _fill(source, num_chars, make_line, " " if make_line in (_prose, _salad) else "\n")


def make_log(source: Source, num_chars: int) -> str:
    """Lines of a log."""
    return _fill(source, num_chars, _log_line, "\n")


def _fill(source: Source, num_chars: int, make_line: LineMaker, separator: str) -> str:
    # A few words come again and again, as they do in real texts.
    words = [source.word() for _ in range(40)]
    lines: list[str] = []
    num = 0
    while num < num_chars:
        line = make_line(source, words)
        lines.append(line)
        num += len(line) + 1
    return separator.join(lines)[:num_chars].strip()


def _log_line(source: Source, words: list[str]) -> str:
    stamp = f"{source.between(0, 23):02}:{source.between(0, 59):02}:{source.between(0, 59):02}"
    pick = source.pick
    form = source.between(0, 3)
    if form == 0:
        return f"{stamp} {pick(_LEVELS)} {pick(words)}: {pick(words)} {pick(words)} took {source.between(1, 900)} ms"
    if form == 1:
        return (
            f"{stamp} {pick(_LEVELS)} {pick(words)} {pick(words)}={source.between(0, 99)} {pick(words)}={pick(words)}"
        )
    if form == 2:
        return f"{stamp} [{pick(words)}] {pick(_LEVELS)} cannot {source.verb()} {pick(words)} {values.code(source)}"
    return f"{stamp} {pick(_LEVELS)} user {pick(words)} {source.verb()} {pick(words)} ok"


def _prose(source: Source, words: list[str]) -> str:
    pick = source.pick
    form = source.between(0, 3)
    if form == 0:
        return f"The {source.adjective()} {pick(words)} was near the {pick(words)} and the {pick(words)}."
    if form == 1:
        return f"Every day they {source.verb()} the {pick(words)} with a {source.adjective()} {pick(words)}."
    if form == 2:
        return f"It is said that {pick(words)} and {pick(words)} are {source.adjective()}, but nobody knows."
    return f"In {source.place()} there is a {pick(words)} which is {source.adjective()} and {source.adjective()}."


def _salad(source: Source, words: list[str]) -> str:
    return " ".join(source.pick(_SMALL_WORDS if source.chance(0.6) else words) for _ in range(12))


def _code_line(source: Source, words: list[str]) -> str:
    pick = source.pick
    form = source.between(0, 4)
    if form == 0:
        return f"def {pick(words)}_{pick(words)}({pick(words)}, {pick(words)}):"
    if form == 1:
        return f"    {pick(words)} = {pick(words)}({source.between(0, 99)})"
    if form == 2:
        return f"    if {pick(words)} > {source.between(0, 99)}: return {pick(words)}"
    if form == 3:
        return f"    # {pick(words)} {source.verb()} {pick(words)}"
    return f"    return {pick(words)}.{pick(words)}"


def _table_line(source: Source, words: list[str]) -> str:
    return f"{source.pick(words)},{source.pick(words)},{source.between(0, 999)},{source.adjective()}"
