"""However the text is cut up, the same stop string ends it at the same character."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facet.errors import RequestError
from facet.tokens import StopStringFinder, StopStrings

# Two letters and short strings, so that nearly every example has overlaps and false starts.
FEW_LETTERS = st.text(alphabet="a☃", max_size=20)
STOPS = st.lists(st.text(alphabet="a☃", min_size=1, max_size=5), max_size=4)


def plain_search(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the stop string that ends first, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def feed_all(stops: StopStrings, parts: list[str]) -> tuple[list[str], str | None]:
    finder = StopStringFinder(stops)
    given_out: list[str] = []
    for part in parts:
        scan = finder.feed(part)
        given_out.append(scan.text)
        if scan.stop_string is not None:
            return given_out, scan.stop_string
    return [*given_out, finder.finish()], None


@settings(max_examples=300)
@given(parts=st.lists(FEW_LETTERS, max_size=6), stops=STOPS)
def test_parts_give_what_a_plain_search_of_the_whole_gives(parts: list[str], stops: list[str]) -> None:
    given_out, found = feed_all(StopStrings(stops), parts)
    assert ("".join(given_out), found) == plain_search("".join(parts), stops)


@settings(max_examples=300)
@given(parts=st.lists(FEW_LETTERS, max_size=6), stops=STOPS)
def test_only_the_possible_beginning_of_a_stop_string_is_held(parts: list[str], stops: list[str]) -> None:
    finder = StopStringFinder(StopStrings(stops))
    seen = given_out = ""
    for part in parts:
        scan = finder.feed(part)
        if scan.stop_string is not None:
            return
        seen += part
        given_out += scan.text
        beginnings = {stop[:length] for stop in stops for length in range(len(stop))}
        num_held = max((len(beginning) for beginning in beginnings if seen.endswith(beginning)), default=0)
        assert len(seen) - len(given_out) == num_held


def test_a_stop_string_split_over_tokens() -> None:
    given_out, found = feed_all(StopStrings(["</answer>"]), ["It is 20", "</", "ans", "wer", "> and more"])
    assert given_out == ["It is 20", "", "", "", ""]
    assert found == "</answer>"


def test_a_short_stop_string_inside_the_beginning_of_a_long_one() -> None:
    given_out, found = feed_all(StopStrings(["</answer>", "ans"]), ["It is 20 </an", "swer>"])
    assert "".join(given_out) == "It is 20 </"
    assert found == "ans"


def test_a_false_start_is_given_back() -> None:
    given_out, found = feed_all(StopStrings(["</answer>"]), ["a </", "ans", "wers>"])
    assert given_out == ["a ", "", "</answers>", ""]
    assert found is None


def test_no_stop_strings_hold_nothing_back() -> None:
    assert feed_all(StopStrings([]), ["a", "b"]) == (["a", "b", ""], None)


def test_sequences_of_one_request_share_the_strings_and_nothing_else() -> None:
    stops = StopStrings(["END"])
    first, second = StopStringFinder(stops), StopStringFinder(stops)
    assert first.feed("xE").text == "x"
    assert second.feed("ND").text == "ND"
    assert first.feed("ND").stop_string == "END"


def test_a_long_stop_string_that_keeps_almost_matching_costs_the_same_per_character() -> None:
    """Counts steps, not time: the text falls back only as often as it moved forward before."""
    stops = StopStrings(["a" * 2000 + "b"])
    num_steps = 0
    state = 0

    class Counting(str):
        __slots__ = ()

        def __hash__(self) -> int:
            nonlocal num_steps
            num_steps += 1
            return str.__hash__(self)

    for character in "a" * 10_000:
        state = stops.advance(state, Counting(character))
    assert stops.num_held(state) == 2000
    assert num_steps < 5 * 10_000


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        StopStrings(["x", ""])
    assert caught.value.field == "stop"
