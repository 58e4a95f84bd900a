"""Texts that repeat themselves for good reason: code, tables, lyrics, base64, long lists. Made up, always the same."""

import base64
import random
from collections.abc import Iterator

WORDS = (
    "river",
    "stone",
    "light",
    "paper",
    "window",
    "garden",
    "letter",
    "winter",
    "engine",
    "silver",
    "market",
    "bridge",
)


def make_texts() -> Iterator[tuple[str, str]]:
    """Names and texts, each of several hundred lines."""
    choose = random.Random(15)
    makers = (
        _code,
        _constants,
        _table,
        _csv,
        _lyrics,
        _base64,
        _padded_base64,
        _numbered,
        _bullets,
        _json,
        _log,
        _matrix,
    )
    for maker in makers:
        for version in range(4):
            yield f"{maker.__name__.strip('_')} {version}", maker(choose)


def _name(choose: random.Random) -> str:
    return "_".join(choose.sample(WORDS, 2))


def _code(choose: random.Random) -> str:
    return "\n\n".join(
        f"def {_name(choose)}(self, value):\n    if value is None:\n        return None\n"
        f"    for item in self.{choose.choice(WORDS)}:\n        if item == value:\n"
        f"            return {choose.randrange(9)}\n"
        "    return None"
        for _ in range(60)
    )


def _constants(choose: random.Random) -> str:
    rows = [", ".join(str(choose.choice([0, 0, 0, 1, 255])) for _ in range(16)) for _ in range(80)]
    return "TABLE = [\n" + "".join(f"    {row},\n" for row in rows) + "]\n# " + "-" * 120 + "\n"


def _table(choose: random.Random) -> str:
    columns = choose.randrange(4, 12)
    rule = "|" + "---|" * columns
    rows = ["| " + " | ".join(choose.choice(["yes", "no", "-"]) for _ in range(columns)) + " |" for _ in range(150)]
    return "\n".join(["| " + " | ".join(WORDS[:columns]) + " |", rule, *rows])


def _csv(choose: random.Random) -> str:
    return "\n".join(f"2026-11-{day % 28 + 1:02},{choose.randrange(3)},0,0,0,0,0,0" for day in range(200))


def _lyrics(choose: random.Random) -> str:
    chorus = "Oh, the " + " and the ".join(choose.sample(WORDS, 3)) + ",\nla la la la la la la,\n" * 3
    verses = (f"When the {choose.choice(WORDS)} meets the {choose.choice(WORDS)}\n" * 2 for _ in range(20))
    return "\n".join(verse + chorus * 2 + "na " * 40 for verse in verses)


def _base64(choose: random.Random) -> str:
    return base64.encodebytes(choose.randbytes(6000)).decode()


def _padded_base64(choose: random.Random) -> str:
    """As of a file with some empty records."""
    return base64.encodebytes(b"".join(choose.randbytes(40) + bytes(60) for _ in range(60))).decode()


def _numbered(choose: random.Random) -> str:
    return "\n".join(f"{number}. the {choose.choice(WORDS)}" for number in range(1, 400))


def _bullets(choose: random.Random) -> str:
    return "\n".join(f"- {choose.choice(WORDS)}: unknown" for _ in range(400))


def _json(choose: random.Random) -> str:
    items = (f'{{"id": {number}, "tags": [], "active": true, "owner": null}}' for number in range(200))
    return "[" + ",\n ".join(items) + "]"


def _log(choose: random.Random) -> str:
    return "\n".join(
        f"INFO  worker-{choose.randrange(4)}: ok, retrying in {choose.randrange(60)} s" for _ in range(300)
    )


def _matrix(choose: random.Random) -> str:
    """The identity: mostly zeros."""
    return "\n".join(" ".join("1" if row == column else "0" for column in range(24)) for row in range(24))
