"""Generates what tools return, and the sentence that tells the user every value of it."""

import json
from dataclasses import dataclass

from tools.bundled_model.dialogues import values
from tools.bundled_model.dialogues.conversation import listed, spoken
from tools.bundled_model.dialogues.words import Source


@dataclass(frozen=True, slots=True)
class Result:
    text: str  # as a client sends it: JSON or plain words
    answer: str
    told: tuple[str, ...]  # what the answer must not leave out


def make_result(source: Source) -> Result:
    form = source.rng.random()
    if form < 0.45:
        return _object(source)
    if form < 0.60:
        return _list(source)
    if form < 0.70:
        return _error(source)
    return _plain(source)


def _object(source: Source) -> Result:
    fields: dict[str, str | int | float | bool] = {}
    for _ in range(source.between(1, 3)):
        name = source.word() if source.chance(0.7) else f"{source.word()}_{source.noun()}"
        fields[name] = _scalar(source)
    told = tuple(value if isinstance(value, str) else json.dumps(value) for value in fields.values())
    # "is" also before true and false: the value stays as it was written.
    facts = [f"the {spoken(name)} is {value}" for name, value in zip(fields, told, strict=True)]
    answer = listed(facts)
    return Result(json.dumps(fields), f"{answer[0].upper()}{answer[1:]}.", told)


def _scalar(source: Source) -> str | int | float | bool:
    form = source.rng.random()
    if form < 0.5:
        return values.any_text(source)
    if form < 0.75:
        return values.whole_number(source)
    return values.any_number(source) if form < 0.92 else source.chance(0.5)


def _list(source: Source) -> Result:
    items = values.short_list(source)
    noun = "result" if len(items) == 1 else "results"
    return Result(json.dumps(items), f"I found {len(items)} {noun}: {listed(items)}.", items)


def _error(source: Source) -> Result:
    reason = source.pick(
        (
            f"{source.word()} not found",
            "permission denied",
            "timeout",
            f"unknown {source.word()}",
            f"no such {source.word()}",
            f"{source.word()} is {source.adjective()}",
        )
    )
    text = json.dumps({"error": reason}) if source.chance(0.6) else f"Error: {reason}"
    return Result(text, f"The tool reported an error: {reason}.", (reason,))


def _plain(source: Source) -> Result:
    text = source.pick(
        (
            str(values.whole_number(source)),
            str(values.any_number(source)),
            values.any_text(source),
            f"{source.between(1, 40)} degrees and {source.adjective()}",
            f"done, {source.word()} {values.code(source)}",
            f"{source.between(0, 90)} matches",
            f"The {source.word()} is {source.adjective()}",
            values.sentence(source),
        )
    )
    return Result(text, f"The result is: {text}.", (text,))
