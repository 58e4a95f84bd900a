"""Drafts from a model of their own: guesses made on the device behind every step, verified by the next."""

from collections.abc import Sequence

from facet.drafts.acceptance import Acceptance
from facet.drafts.guess import Guess
from facet.drafts.step_times import StepTimes
from facet.scheduler.drafting import NO_DRAFTS, Draftable, Drafts
from facet.step import StepPlan, StepResult

# What is learned of guesses behind matches is learned here of places in a run.
_FIRST_PLACE = 1


class ModelDrafter:
    def __init__(self, num_drafts: int, step_times: StepTimes) -> None:
        self.max_num_drafts = num_drafts
        self._times = step_times
        self._acceptance = Acceptance()
        self._guesses: dict[int, Guess] = {}  # by request number: how it may go on from the tokens it has

    def could_gain(self, num_running: int) -> bool:
        return self._times.could_gain(num_running)

    def num_ahead(self, num_running: int) -> int:
        return self.max_num_drafts if self._times.could_gain(num_running) else 0

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        if len(self._guesses) > len(requests):
            numbers = [request.request_number for request in requests]
            self._guesses = {number: self._guesses[number] for number in numbers if number in self._guesses}
            self._acceptance.keep_only(numbers)
        ready = [
            (request.request_number, min(request.max_num_drafts, self.max_num_drafts))
            for request in requests
            if request.num_pending == 0 and request.max_num_drafts and request.request_number in self._guesses
        ]
        if not ready:
            return NO_DRAFTS
        chances = [self._acceptance.chances(number, self._guesses[number])[:room] for number, room in ready]
        counts = self._times.worthwhile(chances, len(requests))
        return {
            number: self._guesses[number].token_ids[:count]
            for (number, _), count in zip(ready, counts, strict=True)
            if count
        }

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        """Guesses come with the tokens: they are on their way."""
        return self._times.could_gain(len(requests))

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        if int((plan.num_scheduled - plan.num_drafts).max()) == 1:
            self._times.learn(plan.num_tokens, seconds, has_drafts=len(plan.draft_token_ids) > 0)
        numbers = plan.request_numbers[plan.samples].tolist()
        for number, num_drafts, token_ids in zip(
            numbers, plan.num_drafts[plan.samples].tolist(), result.token_ids, strict=True
        ):
            if num_drafts:
                self._acceptance.learn(number, _FIRST_PLACE, num_drafts, max(0, len(token_ids) - 1))
        for number in numbers:
            self._guesses.pop(number, None)  # it has gone on since
        if result.drafts is not None:
            for number, drafts in zip(numbers, result.drafts, strict=True):
                self._guesses[number] = Guess(list(drafts), [1.0] * len(drafts), _FIRST_PLACE)
