"""Text that arrives in parts breaks between words, wherever the parts end."""

import pytest

from facet.cli.chat_commands import completions
from facet.cli.word_wrap import WordWrap

REST = "\n\n  a list\n```\na long line of code that stays as it is\n```\nand on it goes"
TEXT = "Facet stores only what is needed." + REST
SHOWN = "Facet stores only \nwhat is needed." + REST


@pytest.mark.parametrize("size", [1, 2, 5, len(TEXT)])
def test_words_stay_whole(size: int) -> None:
    wrap = WordWrap(20)
    shown = "".join(wrap.feed(TEXT[start : start + size]) for start in range(0, len(TEXT), size)) + wrap.end()
    assert shown == SHOWN


def test_text_without_blanks_is_not_held_back() -> None:
    wrap = WordWrap(20)
    assert wrap.feed("日本語の文章には") == "日本語の文章には"
    assert wrap.feed("空白がありません。") == "\n空白がありません。"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/s", ["/set", "/system"]),
        ("/ex", ["/exit"]),
        ("s", []),
        ("/set te", ["temperature"]),
        ("/set temperature 1", []),
        ("/tools x", []),
    ],
)
def test_commands_are_completed(line: str, found: list[str]) -> None:
    assert completions(line) == found
