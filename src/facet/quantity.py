"""Reads numbers as people write them, 8192, 32k, 32K, 4G, 24GiB, and writes sizes for them."""

import math
import re

_NUMBER = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_LETTERS = "kmgt"


def parse_quantity(text: str) -> int:
    """A whole number. Small letters count in thousands and large ones in 1,024s, as in vLLM: 32k is 32,000, 32K 32,768.

    Before a B they say what they say of bytes: GB are 10**9 and GiB are 2**30, in letters of any size.
    """
    found = _NUMBER.fullmatch(text)
    factor = None if found is None else _factor(found[2])
    if found is None or factor is None or (factor == 1 and "." in found[1]):
        raise ValueError(f"{text!r} is not a number such as 8192, 32k, 32K or 4GiB")
    return int(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor


def shown_bytes(num_bytes: int) -> str:
    """A number of bytes in GiB, as the memory of machines is counted, or in MiB where that would be 0.0."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 0.1 * 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _factor(unit: str) -> int | None:
    if unit == "":
        return 1
    letter, end = unit[0], unit[1:].upper()
    if letter.lower() not in _LETTERS or end not in ("", "B", "IB"):
        return None
    base = 1024 if end == "IB" or (end == "" and letter.isupper()) else 1000
    return math.prod([base] * (1 + _LETTERS.index(letter.lower())))
