"""Generates values for arguments and results: words, names, codes, dates, addresses, paths, patterns, numbers.

A value never holds what ends it in a request: no quotes of any kind, no line breaks, no control tokens.
"""

# ruff: noqa: SIM905  (long lists of words read better as text)

from collections.abc import Callable

from tools.bundled_model.dialogues.words import Source

TextMaker = Callable[[Source], str]

_MONTHS = "January February March April May June July August September October November December".split()
_ENDINGS = "txt csv json log md pdf png py html xml yaml zip".split()
_DOMAINS = "com org net io dev".split()
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PATTERN_PARTS = (
    r"\d+", r"\d{4}", r"\w+", r"\s+", r"[A-Z]+", r"[a-z]{3}", r"[0-9]+", r"\b", r".*", r"[A-Z]{2}\d{3}", r"\S+", r"\.",
    r"[^,]+", r"\d+\.\d+", r"(\d+)", r"[a-f0-9]{8}", r"\w*", r".+?",
)  # fmt: skip
_LOG_WORDS = "ERROR WARN INFO DEBUG FATAL timeout failed denied refused user id code status host port retry".split()


def one_word(source: Source) -> str:
    word = source.word()
    return word.capitalize() if source.chance(0.2) else word


def two_words(source: Source) -> str:
    return f"{source.adjective()} {source.word()}" if source.chance(0.5) else f"{source.word()} {source.word()}"


def phrase(source: Source) -> str:
    return " ".join(source.word() for _ in range(source.between(2, 5)))


def sentence(source: Source) -> str:
    """A short message, such as somebody would send."""
    form = source.between(0, 4)
    if form == 0:
        return f"The {source.word()} is {source.adjective()}"
    if form == 1:
        return f"See you at the {source.word()} on {weekday(source)}"
    if form == 2:
        return f"Please {source.verb()} the {source.adjective()} {source.word()}"
    if form == 3:
        return f"I will bring {source.between(2, 20)} {source.noun()}s"
    return f"Hello {source.person()}, the {source.word()} is ready"


def code(source: Source) -> str:
    form = source.between(0, 4)
    if form == 0:
        return f"{letters(source, 2)}-{digits(source, 4)}"
    if form == 1:
        return f"{letters(source, 1)}{digits(source, 3)}"
    if form == 2:
        return f"{source.word()}-{digits(source, 2)}"
    if form == 3:
        return f"{source.made_up()}_{source.noun()}"
    return f"{letters(source, 3)}{digits(source, 2)}{letters(source, 1)}"


def letters(source: Source, num: int) -> str:
    return "".join(source.pick(_LETTERS) for _ in range(num))


def digits(source: Source, num: int) -> str:
    return "".join(source.pick("0123456789") for _ in range(num))


def weekday(source: Source) -> str:
    return source.pick(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))


def date(source: Source) -> str:
    day, month, year = source.between(1, 28), source.between(1, 12), source.between(1990, 2035)
    if source.chance(0.7):
        return f"{year}-{month:02}-{day:02}"
    return f"{day} {_MONTHS[month - 1]} {year}" if source.chance(0.5) else f"{_MONTHS[month - 1]} {day}"


def time_of_day(source: Source) -> str:
    if source.chance(0.8):
        return f"{source.between(0, 23):02}:{source.pick(('00', '15', '30', '45', digits(source, 1) + '5'))}"
    return f"{source.between(1, 12)} {source.pick(('am', 'pm'))}"


def file_path(source: Source) -> str:
    folders = "".join(f"/{source.word()}" for _ in range(source.between(0, 2)))
    return f"{folders}/{file_name(source)}" if folders else file_name(source)


def file_name(source: Source) -> str:
    return f"{source.word()}.{source.pick(_ENDINGS)}"


def email_address(source: Source) -> str:
    name = source.pick(source.lexicon.first_names).lower() if source.chance(0.5) else source.made_up()
    return f"{name}@{source.made_up()}.{source.pick(_DOMAINS)}"


def web_address(source: Source) -> str:
    path = f"/{source.word()}" if source.chance(0.5) else ""
    return f"https://{source.made_up()}.{source.pick(_DOMAINS)}{path}"


def phone_number(source: Source) -> str:
    return f"+{digits(source, 2)} {digits(source, 3)} {digits(source, 4)}"


def pattern(source: Source) -> str:
    """A regular expression somebody would look for in a log."""
    form = source.between(0, 7)
    if form == 0:
        return source.pick(_LOG_WORDS)
    if form == 1:
        return f"{source.pick(_LOG_WORDS)} {source.pick(_PATTERN_PARTS)}"
    if form == 2:
        return f"^{source.pick(_LOG_WORDS)}.*{source.word()}"
    if form == 3:
        return f"{source.word()}={source.pick(_PATTERN_PARTS)}"
    if form == 4:
        return f"({source.word()}|{source.word()})"
    if form == 5:
        return rf"\b{source.word()}\b"
    if form == 6:
        return f"{letters(source, 3)}-{source.pick(_PATTERN_PARTS)}"
    return "".join(
        source.pick(_PATTERN_PARTS) if source.chance(0.6) else source.word() for _ in range(source.between(2, 4))
    )


_ANY_TEXT: tuple[TextMaker, ...] = (
    one_word, one_word, one_word, one_word, Source.made_up, Source.made_up, Source.made_up, two_words, two_words,
    Source.person, Source.place, code, code, date, file_name, file_path, email_address, web_address, phrase,
    time_of_day,
)  # fmt: skip


def any_text(source: Source) -> str:
    return source.pick(_ANY_TEXT)(source)


def whole_number(source: Source) -> int:
    """Small ones are commoner, as in requests."""
    return source.between(0, source.pick((9, 20, 20, 99, 99, 500, 5000, 99999)))


def any_number(source: Source) -> int | float:
    """With a fraction or without; never one that would be written with a fraction of zero."""
    hundredths = source.between(1, source.pick((500, 5000, 99999))) * source.pick((1, 10, 10, 100))
    return hundredths // 100 if hundredths % 100 == 0 else hundredths / 100


def short_list(source: Source) -> tuple[str, ...]:
    """Different single words."""
    return tuple(dict.fromkeys(one_word(source) for _ in range(source.between(2, 4))))
