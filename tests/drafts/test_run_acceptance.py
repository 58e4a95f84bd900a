"""How often a model's drafts are right, place by place."""

from facet.drafts.acceptance import Outcome
from facet.drafts.run_acceptance import RunAcceptance


def test_chances_follow_outcomes_of_a_request_and_of_all() -> None:
    acceptance = RunAcceptance(3)
    assert acceptance.chances() == (0.75, 0.75**2, 0.75**3)
    for _ in range(30):
        acceptance.learn([Outcome(1, 3, 2)])  # the third is always wrong
        acceptance.learn([Outcome(2, 3, 0)])  # the first is
    one, two, other = acceptance.chances_of([1, 2, 3])
    assert one[1] > 0.6 > 0.1 > one[2]
    assert two[0] < 0.3
    assert other == acceptance.chances()
    assert two[0] < other[0] < one[0]
    assert all(list(chances) == sorted(chances, reverse=True) for chances in (one, two, other))


def test_places_behind_a_wrong_draft_are_not_tried() -> None:
    acceptance = RunAcceptance(3)
    acceptance.learn([Outcome(1, 3, 0)])
    shares_at_first = [0.75**place for place in (1, 2)]
    first, second, third = acceptance.chances()
    assert first == 3 / 5
    assert [second / first, third / first] == shares_at_first


def test_shorter_runs_say_nothing_of_places_behind() -> None:
    acceptance = RunAcceptance(2)
    acceptance.learn([Outcome(1, 1, 1)])
    first, second = acceptance.chances()
    assert first == 4 / 5
    assert second == 4 / 5 * 0.75


def test_requests_that_have_ended_are_forgotten() -> None:
    acceptance = RunAcceptance(2)
    for number in (3, 4, 5):
        acceptance.learn([Outcome(number, 2, number - 3)])
    five, three, nine = acceptance.chances_of([5, 3, 9])
    assert three != nine
    acceptance.keep_only([9, 5])
    assert len(acceptance) == 1
    assert acceptance.chances_of([5, 3, 9]) == [five, nine, nine]


def test_what_is_not_tried_becomes_likely_again() -> None:
    acceptance = RunAcceptance(1)
    for _ in range(50):
        acceptance.learn([Outcome(1, 1, 0)])
    assert acceptance.chances()[0] < 0.15
    for _ in range(4000):
        acceptance.forgo()
    assert acceptance.chances()[0] > 0.5
