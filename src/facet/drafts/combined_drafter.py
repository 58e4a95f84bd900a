"""Drafts from the text where it repeats itself, and from a model of their own elsewhere.

Of each request both may have a guess. The one that promises more right tokens is taken. While all requests follow
their text, the model makes no guesses: they would not be looked at.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from facet.drafts.acceptance import outcomes
from facet.drafts.model_drafter import ModelDrafter
from facet.drafts.step_times import StepTimes
from facet.drafts.text_drafter import TextDrafter
from facet.scheduler.drafting import Draftable, Drafts
from facet.step import StepPlan, StepResult


class CombinedDrafter:
    def __init__(self, text: TextDrafter, model: ModelDrafter, step_times: StepTimes) -> None:
        """All three share the times."""
        self.max_num_drafts = max(text.max_num_drafts, model.max_num_drafts)
        self._text = text
        self._model = model
        self._times = step_times
        self._from_text: set[int] = set()  # numbers of the requests whose drafts are from their text
        self._in_flight: deque[set[int]] = deque()  # the same of steps that were launched, the earliest first

    def could_gain(self, num_running: int) -> bool:
        return self._text.could_gain(num_running) or self._model.could_gain(num_running)

    def num_ahead(self, num_running: int) -> int:
        self._text.num_ahead(num_running)
        from_text, self._from_text = self._from_text, set()
        self._in_flight.append(from_text)
        return self._model.rest() if len(from_text) == num_running else self._model.num_ahead(num_running)

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        from_text, from_model = self._text.offers(requests), self._model.offers(requests)
        offers = from_model | {
            number: offer
            for number, offer in from_text.items()
            if number not in from_model or sum(offer.chances) > sum(from_model[number].chances)
        }
        drafts = self._times.choose(offers, len(requests))
        self._from_text = {number for number in drafts if offers[number] is from_text.get(number)}
        self._text.take(from_text, self._from_text)
        return drafts

    def num_unseen(self, requests: Sequence[Draftable]) -> Mapping[int, int]:
        """No drafts stay unseen: the text may have better ones, once the tokens are known."""
        return {}

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        return self._model.is_worth_waiting(requests) or self._text.is_worth_waiting(requests)

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        self._times.learn_step(plan, seconds)
        of_all, from_text = outcomes(plan, result), self._in_flight.popleft()
        self._text.learn_outcomes([outcome for outcome in of_all if outcome.request_number in from_text])
        self._model.learn_outcomes([outcome for outcome in of_all if outcome.request_number not in from_text])

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        self._model.hear(plan, guesses)
