"""Prepares clients' regular expressions for a grammar, which always matches a whole text.

JSON Schema's `pattern` may match anywhere in a string unless it is anchored; here that is spelled out. What the grammar
compiler would misunderstand is refused: anchors inside, and escapes it does not know.
"""

import re

from facet.errors import RequestError

# Characters of text: no control characters but tab and line ends, and no halves of surrogate pairs.
TEXT_CHARACTER = "[\\t\\n\\r -~\u00a0-\ud7ff\ue000-\U0010ffff]"

# Every count is a state for which the compiler goes through the whole vocabulary: about 0.1 s each of 262,144 tokens.
MAX_REPEAT = 256

_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_ESCAPES_WITH_A_MEANING = set("dDwWsSbBtnrfvcxu0123456789kpP")


def whole_match(pattern: str, field: str) -> str:
    """A pattern that matches a whole text where the given one is found in it. Refuses what cannot be honoured."""
    alternatives = []
    for text in _split_alternatives(pattern, field):
        is_anchored_left, is_anchored_right = text.startswith("^"), _ends_with_anchor(text)
        inner = text[int(is_anchored_left) : len(text) - int(is_anchored_right)]
        _check_no_anchor(inner, pattern, field)
        before = "" if is_anchored_left else f"{TEXT_CHARACTER}*"
        after = "" if is_anchored_right else f"{TEXT_CHARACTER}*"
        alternatives.append(f"{before}(?:{inner}){after}" if inner else before + after)
    return "|".join(alternatives)


def check_regex(pattern: str, field: str) -> None:
    """Refuses what the compiler would misunderstand. Whether the rest compiles is up to the compiler."""
    for text in _split_alternatives(pattern, field):
        inner = text[int(text.startswith("^")) : len(text) - int(_ends_with_anchor(text))]
        _check_no_anchor(inner, pattern, field)


def _split_alternatives(pattern: str, field: str) -> list[str]:
    """Splits a pattern where `|` stands outside of every group and class."""
    most = max((int(count) for found in _REPEAT.findall(pattern) for count in found if count), default=0)
    if most > MAX_REPEAT:
        raise RequestError(
            f"{field} has the regular expression {pattern!r}, which repeats {most} times, but at most {MAX_REPEAT} are "
            "supported. Repeat without a bound, with * or +.",
            field=field,
        )
    parts, depth, start = [], 0, 0
    for index, character, is_in_class in _scan(pattern, field):
        if not is_in_class:
            depth += (character == "(") - (character == ")")
            if character == "|" and depth == 0:
                parts.append(pattern[start:index])
                start = index + 1
    return [*parts, pattern[start:]]


def _scan(pattern: str, field: str) -> list[tuple[int, str, bool]]:
    """Characters that are not escaped, and whether each stands inside a class."""
    found, index, is_in_class = [], 0, False
    while index < len(pattern):
        character = pattern[index]
        if character == "\\":
            escaped = pattern[index + 1 : index + 2]
            if not escaped or (escaped.isalnum() and escaped not in _ESCAPES_WITH_A_MEANING):
                raise RequestError(
                    f"{field} has the regular expression {pattern!r}, whose escape {pattern[index : index + 2]!r} is "
                    "not supported. Write it without.",
                    field=field,
                )
            index += 2
            continue
        found.append((index, character, is_in_class))
        if is_in_class:
            is_in_class = character != "]"
        elif character == "[":
            is_in_class = True
        index += 1
    return found


def _ends_with_anchor(text: str) -> bool:
    num_backslashes = len(text[:-1]) - len(text[:-1].rstrip("\\"))
    return text.endswith("$") and num_backslashes % 2 == 0


def _check_no_anchor(inner: str, pattern: str, field: str) -> None:
    previous = ""
    for _, character, is_in_class in _scan(inner, field):
        if not is_in_class and character in "^$":
            raise RequestError(
                f"{field} has the regular expression {pattern!r} with {character!r} inside, which is not supported. "
                "Anchors may stand at its beginning and its end.",
                field=field,
            )
        if not is_in_class and previous == "(?" and character in "=!<":
            # `(?<name>` is refused too: it is rare, and (?: says the same.
            raise RequestError(
                f"{field} has the regular expression {pattern!r}, but looking ahead or behind is not supported.",
                field=field,
            )
        previous = previous[-1:] + character
