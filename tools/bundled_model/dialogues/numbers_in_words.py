"""Writes whole numbers up to a thousand in words."""

# ruff: noqa: SIM905  (long lists of words read better as text)

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int) -> str:
    if number < 0:
        return f"minus {in_words(-number)}"
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return f"{_TENS[tens]}-{_SMALL[ones]}" if ones else _TENS[tens]
    assert number < 1000, f"{number} is more than this file has words for"
    hundreds, rest = divmod(number, 100)
    head = f"{_SMALL[hundreds]} hundred"
    return f"{head} {in_words(rest)}" if rest else head
