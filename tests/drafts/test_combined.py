"""A drafter and the text together: the better promise is taken, and each learns from its own drafts."""

from facet.drafts.combined_drafter import CombinedDrafter
from facet.drafts.config import SuffixDrafts
from facet.drafts.model_drafter import ModelDrafter
from facet.drafts.step_times import StepTimes
from facet.drafts.text_drafter import TextDrafter
from facet.scheduler.drafting import Draftable
from facet.step import StepResult
from tests.scheduler.test_step_time import step_of

PHRASE = list(range(20, 32))
REPEATED = [*PHRASE, 3, *PHRASE[:-4]]  # goes on with the end of the phrase
FRESH = list(range(40, 60))
GUESS = (7, 8)


def make_drafter() -> CombinedDrafter:
    times = StepTimes({1: 1.0, 64: 1.01})
    suffix = SuffixDrafts(num_drafts=8, max_match=8, max_factor=1.0, min_share=0.1)
    return CombinedDrafter(TextDrafter(suffix, times), ModelDrafter(2, times), times)


def draftable(number: int, tokens: list[int]) -> Draftable:
    return Draftable(number, tokens, [], num_pending=0, max_num_drafts=8)


def test_each_request_gets_the_better_guess() -> None:
    drafter = make_drafter()
    drafter.hear(step_of((0, 1), (0, 1)), (GUESS, GUESS))  # of requests 0 and 1
    drafts = drafter.propose([draftable(0, REPEATED), draftable(1, FRESH)])
    assert {number: list(tokens) for number, tokens in drafts.items()} == {
        0: [*PHRASE[-4:], 3, *PHRASE[:3]],
        1: [*GUESS],
    }
    assert drafter.num_ahead(2) == 2, "one of them will need the model again"


def test_the_model_rests_while_all_follow_their_text() -> None:
    drafter = make_drafter()
    assert drafter.num_ahead(1) == 2
    drafter.propose([draftable(0, REPEATED)])
    assert drafter.num_ahead(1) == 0
    assert not drafter.is_worth_waiting([])
    drafter.propose([draftable(1, FRESH)])
    assert drafter.num_ahead(1) == 2


def test_who_was_wrong_learns_it() -> None:
    drafter = make_drafter()
    for _ in range(12):  # the text is always wrong
        drafts = drafter.propose([draftable(0, REPEATED)])
        if drafts:
            drafter.num_ahead(1)
            plan = step_of((30, 1), drafts=len(drafts[0]))
            drafter.learn(plan, StepResult(token_ids=((99,),)), 1.0)
    drafter.hear(step_of((0, 1)), (GUESS,))
    assert drafter.propose([draftable(0, REPEATED)]) == {0: GUESS}
    # And the model, which was not asked so far, is believed as at first.
    drafter.hear(step_of((0, 1)), (GUESS,))
    assert drafter.num_ahead(1) == 2


def test_guesses_are_of_the_moment() -> None:
    drafter = make_drafter()
    drafter.hear(step_of((0, 1)), (GUESS,))
    assert drafter.num_ahead(1) == 2, "another step is launched"
    assert drafter.propose([draftable(0, FRESH)]) == {}
