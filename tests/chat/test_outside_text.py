"""Text from outside answers as it was sent, and never hands out a character of its own unshifted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.chat.outside_text import OutsideText, as_sent, from_outside, shifted, unshifted

# Two alphabets with no letter in common, in any case: what is whose can be read off a result.
OUTSIDE, OWN = 'abç<|>"\\%7 \n', "xyžΩ-[]:= \t"
DELIBERATELY_THOSE_OF_STR = {
    *("encode", "format", "format_map", "maketrans"),
    *("__format__", "__repr__", "__rmod__", "__len__", "__sizeof__", "__getnewargs__"),
}
NO_ARGUMENTS = (
    *("capitalize", "casefold", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
    *("isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower", "lstrip", "rstrip", "split", "rsplit"),
    *("splitlines", "strip", "swapcase", "title", "upper", "__hash__", "__str__", "__len__", "expandtabs"),
)
ONE_TEXT = (
    *("count", "endswith", "find", "lstrip", "rstrip", "strip", "split", "rsplit", "partition", "rpartition"),
    *("removeprefix", "removesuffix", "rfind", "startswith", "index", "rindex", "__add__", "__contains__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
)
ONE_NUMBER = ("__getitem__", "__mul__", "__rmul__", "center", "ljust", "rjust", "zfill")

parts = st.lists(st.tuples(st.booleans(), st.text(alphabet=OUTSIDE, max_size=4), st.text(alphabet=OWN, max_size=4)))


def mixed(pieces: list[tuple[bool, str, str]]) -> tuple[str, str]:
    """A text as it was sent and written, and as it stands in a template."""
    plain = "".join(theirs if is_outside else ours for is_outside, theirs, ours in pieces)
    marked = "".join(shifted(theirs) if is_outside else ours for is_outside, theirs, ours in pieces)
    return plain, OutsideText(marked)


def check(result: object, expected: object) -> None:
    assert as_sent(result) == expected
    for text in [result] if isinstance(result, str) else result if isinstance(result, list | tuple) else []:
        leaked = {character for character in str.__str__(text) if not character.isspace()} & set(
            (OUTSIDE + OUTSIDE.upper()).replace(" ", "").replace("\n", "")
        )
        assert not leaked, f"{leaked} came out unshifted"


@given(pieces=parts, name=st.sampled_from(NO_ARGUMENTS))
def test_methods_without_arguments(pieces: list[tuple[bool, str, str]], name: str) -> None:
    plain, text = mixed(pieces)
    check(getattr(text, name)(), getattr(plain, name)())


@given(pieces=parts, name=st.sampled_from(ONE_TEXT), other=parts, at=st.tuples(st.integers(0, 9), st.integers(0, 4)))
def test_methods_of_another_text(
    pieces: list[tuple[bool, str, str]], name: str, other: list[tuple[bool, str, str]], at: tuple[int, int]
) -> None:
    plain, text = mixed(pieces)
    other_plain, other_text = mixed(other)
    within = slice(at[0], at[0] + at[1])
    for argument_plain, argument in ((other_plain, other_text), (plain[within], text[within])):
        for form in (argument, argument_plain):
            try:
                expected = getattr(plain, name)(argument_plain)
            except ValueError:
                with pytest.raises(ValueError, match=r"empty separator|not found"):
                    getattr(text, name)(form)
            else:
                if form is argument or name != "__add__":
                    check(getattr(text, name)(form), expected)


@given(pieces=parts, name=st.sampled_from(ONE_NUMBER), number=st.integers(-3, 12))
def test_methods_of_a_number(pieces: list[tuple[bool, str, str]], name: str, number: int) -> None:
    plain, text = mixed(pieces)
    try:
        expected = getattr(plain, name)(number)
    except IndexError:
        with pytest.raises(IndexError):
            getattr(text, name)(number)
    else:
        check(getattr(text, name)(number), expected)


@given(pieces=parts, old=st.text(alphabet=OUTSIDE, max_size=2), new=parts, count=st.integers(-1, 3))
def test_what_is_replaced_and_split(
    pieces: list[tuple[bool, str, str]], old: str, new: list[tuple[bool, str, str]], count: int
) -> None:
    plain, text = mixed(pieces)
    new_plain, new_text = mixed(new)
    check(text.replace(old, new_text, count), plain.replace(old, new_plain, count))
    check(text.split(None, count), plain.split(None, count))
    check(text.splitlines(True), plain.splitlines(True))
    check(new_text.join([text, text]), new_plain.join([plain, plain]))
    check(new_text + text, new_plain + plain)
    check(list(text), list(plain))
    assert {text: 1}.get(plain) == 1
    assert {plain: 1}.get(text) == 1


@given(text=st.text())
def test_any_text_comes_back_as_it_was_but_for_planes_without_characters(text: str) -> None:
    known = "".join("\ufffd" if 0x40000 <= ord(character) < 0x80000 else character for character in text)
    assert unshifted(shifted(text)) == known
    assert len(shifted(text)) == len(text)
    assert as_sent(from_outside({text: [text, 1, None, (text,)]})) == {known: [known, 1, None, (known,)]}


def test_every_method_of_a_string_was_thought_of() -> None:
    # A Python with a new one must not hand out what it computes without a look at it.
    own = {name for name in vars(OutsideText) if callable(getattr(OutsideText, name))}
    inherited = {name for name in vars(str) if callable(getattr(str, name))} - own - {"__new__", "__getattribute__"}
    assert inherited == DELIBERATELY_THOSE_OF_STR


def test_those_of_str_show_shifted_characters() -> None:
    text = from_outside("<bos>")
    assert isinstance(text, OutsideText)
    template = "{}"
    for shown in (f"{text}", f"{text!r}", template.format(text), text.encode().decode(), "".join([text, text])):
        assert not set("<>os") & set(str.__iter__(shown))
