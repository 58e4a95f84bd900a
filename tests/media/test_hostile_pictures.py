"""Hostile files end in a refusal in words or in a picture within the limits, quickly, and never in another error."""

import re
import time
from dataclasses import replace
from functools import cache

import pytest

from facet.errors import RequestError
from facet.media.limits import MediaLimits
from facet.media.opening import open_picture
from tests.media import hostile_pictures
from tests.media.hostile_pictures import Case, good_files

LIMITS = MediaLimits(max_pixels=1 << 24, max_side=32_768)


@cache
def cases() -> list[Case]:
    """Made when they are tried: packing a hundred megabytes takes a second."""
    return hostile_pictures.cases()


def outcome_of(data: bytes, limits: MediaLimits = LIMITS) -> str:
    """ "opened", or the words of the refusal."""
    try:
        image = open_picture(data, limits, "messages[0].content[1]")
    except RequestError as error:
        return str(error)
    assert image.mode == "RGB"
    assert image.width * image.height <= limits.max_pixels
    return "opened"


def test_there_are_enough_of_them() -> None:
    assert len(cases()) >= 300
    assert len({name for name, _, _ in cases()}) == len(cases())


@pytest.mark.parametrize("kind", range(8))
def test_hostile_files(kind: int) -> None:
    """In eight shares, so that they run side by side."""
    for name, data, expected in cases()[kind::8]:
        check(name, data, expected)


def check(name: str, data: bytes, expected: str) -> None:
    start = time.process_time()  # not the clock's: machines are shared
    outcome = outcome_of(data)
    assert time.process_time() - start < 5, name
    if outcome == "opened":
        assert expected != "refused", name
        return
    assert expected != "opened", (name, outcome)
    # What it is about, what is wrong, what to do: two sentences on one line, and none of the file's bytes in them.
    assert re.fullmatch(r"messages\[0\]\.content\[1\] [^\n]+\. [A-Z][^\n]+\.", outcome), (name, outcome)
    assert len(outcome) < 300, (name, outcome)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty (0 bytes)"),
        (b"<svg/>", "is SVG. Pictures may be PNG, JPEG, WebP, GIF, BMP"),
        (b"%PDF-1.7", "is a PDF"),
        (b"hello", "no format that is known here"),
        (good_files()["png"][:60], "is a PNG file that is cut short or broken"),
    ],
)
def test_a_refusal_says_what_it_found(data: bytes, words: str) -> None:
    assert words in outcome_of(data)


def test_limits_are_named() -> None:
    png = good_files()["png"]
    assert "61 x 43 = 2,623 pixels, but at most 1,000 are allowed" in outcome_of(png, replace(LIMITS, max_pixels=1000))
    assert "61 x 43 pixels, but a side may have at most 50" in outcome_of(png, replace(LIMITS, max_side=50))
    assert f"has {len(png):,} bytes, but at most 100 are allowed" in outcome_of(png, replace(LIMITS, max_bytes=100))


def test_the_first_picture_of_an_animation_is_taken() -> None:
    files = good_files()
    assert open_picture(files["animated"], LIMITS).tobytes() == open_picture(files["gif"], LIMITS).tobytes()
