"""Generates sums with small numbers, in digits and in words."""

from tools.bundled_model.dialogues.conversation import Exchange
from tools.bundled_model.dialogues.numbers_in_words import in_words
from tools.bundled_model.dialogues.small_talk import varied
from tools.bundled_model.dialogues.words import Source

_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_QUESTIONS = (
    "What is {}?", "What's {}?", "How much is {}?", "Calculate {}.", "Compute {}", "{} = ?", "{}", "{}?", "Tell me {}.",
    "Work out {}.", "Can you calculate {}?", "Please add up {}." , "solve {}", "{} =",
)  # fmt: skip


def arithmetic(source: Source) -> Exchange:
    return source.pick((_operation, _operation, _operation, _operation, _comparison, _neighbour, _parity))(source)


def _operation(source: Source) -> Exchange:
    word = source.pick(("plus", "plus", "minus", "times"))
    if word == "times":
        left, right = source.between(0, 12), source.between(0, 12)
        value = left * right
    else:
        high = source.pick((10, 20, 99))
        left, right = source.between(0, high), source.between(0, high)
        if word == "minus" and source.chance(0.8):
            left, right = max(left, right), min(left, right)
        value = left + right if word == "plus" else left - right
    in_digits = f"{left} {_SIGNS[word]} {right}"
    if source.chance(0.3):
        expression = f"{in_words(left)} {word} {in_words(right)}"
        answer = f"{expression} is {in_words(value)}."
        answer = answer[0].upper() + answer[1:]
    else:
        sign = source.pick((_SIGNS[word], _SIGNS[word], word, "x" if word == "times" else _SIGNS[word]))
        tight = source.chance(0.25) and sign in "+-*"
        expression = f"{left}{sign}{right}" if tight else f"{left} {sign} {right}"
        answer = f"{in_digits} = {value}"
    question = source.pick(_QUESTIONS).format(expression)
    return Exchange(varied(source, question), answer, f"This is a sum: {in_digits} = {value}.")


def _comparison(source: Source) -> Exchange:
    left = source.between(0, 99)
    right = left + source.pick((-1, 1)) * source.between(1, 50)
    right = abs(right) if abs(right) != left else left + 3
    larger = source.chance(0.5)
    word = source.pick(("larger", "bigger", "greater")) if larger else source.pick(("smaller", "less"))
    value = max(left, right) if larger else min(left, right)
    question = source.pick(("Which is {}, {} or {}?", "Which number is {}: {} or {}?", "What is {}, {} or {}?"))
    return Exchange(
        varied(source, question.format(word, left, right)), f"{value} is {word}.", f"I compare {left} and {right}."
    )


def _neighbour(source: Source) -> Exchange:
    number = source.between(1, 99)
    question, value = source.pick(
        (
            (f"What comes after {number}?", number + 1),
            (f"What comes before {number}?", number - 1),
            (f"What is twice {number}?", 2 * number),
            (f"What is half of {2 * number}?", number),
            (f"Double {number}.", 2 * number),
            (f"Which number follows {number}?", number + 1),
        )
    )
    return Exchange(varied(source, question), f"It is {value}.", "This is a small sum.")


def _parity(source: Source) -> Exchange:
    number = source.between(0, 99)
    word = "odd" if number % 2 else "even"
    question = source.pick(("Is {} even or odd?", "Is {} odd or even?", "Is the number {} even or odd?"))
    return Exchange(varied(source, question.format(number)), f"{number} is {word}.", "I look at the last digit.")
