"""How many drafts are computed: by what they bring in the time they take, and by how often they were right."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from facet.drafts.acceptance import Acceptance
from facet.drafts.guess import Guess
from facet.drafts.step_times import StepTimes

# Rows are almost free up to 8, then each costs a fifth of a step.
STEPS = {1: 1.0, 8: 1.07, 64: 12.0}


@pytest.mark.parametrize(
    ("chances", "num_running", "expected"),
    [
        ([[0.9, 0.8, 0.6]], 1, [3]),
        ([[0.9, 0.005]], 1, [1]),
        ([[0.001]], 1, [0]),
        ([[0.9, 0.1], [0.5, 0.4]], 2, [2, 2]),
        ([[0.9, 0.1], [0.05, 0.04], *[[]] * 6], 8, [0, 0, *[0] * 6]),  # rows 9 and 10 cost more than they bring
        ([[1.0] * 30] * 4, 4, [4, 0, 0, 0]),  # up to 8 rows
        ([[0.9, 0.8, 0.7], [0.95, 0.1], [0.6]], 5, [2, 1, 0]),  # likeliest first
        ([[0.99]], 64, [0]),  # not measured
    ],
)
def test_drafts_are_computed_while_they_bring_more_per_second(
    chances: list[list[float]], num_running: int, expected: list[int]
) -> None:
    assert StepTimes(STEPS).worthwhile(chances, num_running) == expected


def test_load_ends_drafting() -> None:
    times = StepTimes(STEPS)
    assert [times.could_gain(num_running) for num_running in (1, 4, 7, 8, 30, 64, 100)] == [
        *(True, True, True),
        *(False, False, False, False),
    ]


def test_what_steps_with_drafts_really_take_counts() -> None:
    """Waiting for tokens instead of overlapping costs half a step: a single draft no longer pays, several do."""
    times = StepTimes(STEPS)
    for _ in range(100):
        times.learn(1, 1.0, num_requests=1, has_waited=False)
        times.learn(2, 1.5, num_requests=1, has_waited=True)
    assert times.worthwhile([[0.4]], 1) == [0]
    assert times.worthwhile([[0.9, 0.8, 0.7]], 1) == [3]
    for _ in range(5000):  # nothing is drafted any more, so the past is forgotten
        times.learn(1, 1.0, num_requests=1, has_waited=False)
    assert times.worthwhile([[0.4]], 1) == [1]


def test_a_disturbed_measurement_does_no_harm() -> None:
    times = StepTimes({1: 1.0, 2: 0.4, 4: 1.1})
    assert times.worthwhile([[0.01]], 1) == [0], "two rows do not take less than one"


def test_chances_follow_what_was_right() -> None:
    acceptance, guess = Acceptance(), Guess([1, 2, 3], [1.0, 1.0, 0.5], 3)
    at_first = acceptance.chances(7, guess)
    assert at_first == sorted(at_first, reverse=True)
    for _ in range(20):
        acceptance.learn(7, 3, 3, 0)
    assert acceptance.chances(7, guess)[0] < 0.05
    assert acceptance.chances(8, guess)[0] < at_first[0], "the engine learns, too"
    assert acceptance.chances(7, guess)[0] < acceptance.chances(8, guess)[0] + 1e-9
    for _ in range(20):
        acceptance.learn(9, 3, 3, 3)
    assert acceptance.chances(9, guess)[1] > 0.8


@given(
    runs=st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 300), st.integers(1, 24), st.integers(0, 24)), max_size=9
    ),
    match_length=st.integers(1, 300),
)
def test_tokens_are_learned_by_the_match_before_each(runs: list[tuple[int, int, int, int]], match_length: int) -> None:
    """As if they came one by one."""
    acceptance, at_first = Acceptance(), (0.4, 0.55, 0.7, 0.8, 0.85, 0.9, 0.9, 0.9)
    engine, own = ([[0.0, 0.0] for _ in at_first] for _ in range(2))  # tried and right

    def class_of(match_length: int) -> int:
        return min(match_length.bit_length(), 8) - 1

    for number, first, num_drafts, num_right in runs:
        num_right = min(num_drafts, num_right)
        acceptance.learn(number, first, num_drafts, num_right)
        for offset in range(min(num_drafts, num_right + 1)):
            for counts, memory in ((engine, 0.97), (own, 0.9))[: 2 if number == 1 else 1]:
                tried, right = counts[class_of(first + offset)]
                counts[class_of(first + offset)] = [memory * tried + 1, memory * right + (offset < num_right)]
    expected, chance = [], 1.0
    for offset in range(20):
        index = class_of(match_length + offset)
        share = at_first[index]
        for tried, right in (engine[index], own[index]):
            share = (4 * share + right) / (4 + tried)
        chance *= share
        expected.append(chance / 2)
    guess = Guess([7] * 20, [0.5] * 20, match_length)
    assert acceptance.chances(1, guess) == pytest.approx(expected)


def test_what_was_given_up_is_tried_again() -> None:
    acceptance, guess = Acceptance(), Guess([1], [1.0], 3)
    at_first = acceptance.chances(1, guess)[0]
    for _ in range(50):
        acceptance.learn(1, 3, 1, 0)
    assert acceptance.chances(2, guess)[0] < 0.3 * at_first
    for _ in range(4000):
        acceptance.forgo(3)
    assert acceptance.chances(2, guess)[0] > 0.8 * at_first


@given(
    measured=st.dictionaries(st.integers(2, 40), st.floats(0.5, 4.0), min_size=1, max_size=5),
    num_rows=st.integers(1, 45),
    beyond=st.floats(-0.2, 0.5),
    chances=st.lists(st.lists(st.floats(0.01, 0.99), max_size=4), min_size=1, max_size=5),
)
def test_the_best_number_of_drafts_is_found(
    measured: dict[int, float], num_rows: int, beyond: float, chances: list[list[float]]
) -> None:
    """Against every number that there is."""
    times = StepTimes({1: 0.5, **measured})
    sizes = sorted({1: 0.5, **measured})
    rising = np.maximum.accumulate([{1: 0.5, **measured}[size] for size in sizes])
    most = min(sum(map(len, chances)), sizes[-1] - num_rows)

    def seconds(num_rows: int) -> float:
        return float(np.interp(num_rows, sizes, rising))

    times.learn(num_rows, seconds(num_rows) + beyond, num_requests=num_rows, has_waited=True)

    def rate(num_right: float, num_drafts: int) -> float:
        late = beyond / 2 if num_drafts else 0.0  # half is known of steps with drafts
        return (num_rows + num_right) / (seconds(num_rows + num_drafts) + late)

    def rates(chances: Sequence[float]) -> list[float]:
        """Of no draft, whose rate others have to beat by something, of the first, of the first two, and so on."""
        return [(1.02 if not count else 1.0) * rate(sum(chances[:count]), count) for count in range(len(chances) + 1)]

    none, *others = rates([1.0] * max(0, sizes[-1] - num_rows))
    assume(all(abs(none - other) > 1e-9 for other in others))
    assert times.could_gain(num_rows) == (max(others, default=0.0) > none)
    falling = [sorted(own, reverse=True) for own in chances]
    ranked = sorted((chance for own in falling for chance in own), reverse=True)[: max(0, most)]
    of_counts = rates(ranked)
    assert of_counts[sum(times.worthwhile(falling, num_rows))] == pytest.approx(max(of_counts))
