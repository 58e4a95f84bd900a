"""Drafts from a model of their own: guesses made on the device behind every step, verified by the next."""

from collections.abc import Sequence

from facet.drafts.acceptance import Acceptance
from facet.drafts.guess import Guess
from facet.drafts.step_times import StepTimes
from facet.scheduler.drafting import NO_DRAFTS, Draftable, Drafts
from facet.step import StepPlan, StepResult

# What is learned of guesses behind matches is learned here of places in a run.
_FIRST_PLACE = 1
_RIGHT_AT_FIRST = (0.75,) * 8  # about what published drafters reach, place by place


class ModelDrafter:
    def __init__(self, num_drafts: int, step_times: StepTimes) -> None:
        self.max_num_drafts = num_drafts
        self._times = step_times
        self._acceptance = Acceptance(_RIGHT_AT_FIRST)
        self._guesses: dict[int, Guess] = {}  # by request number: how it may go on from the tokens it has
        self._are_on_their_way = False  # guesses, behind the step launched last

    def could_gain(self, num_running: int) -> bool:
        return self._are_on_their_way or self._length(num_running) > 0

    def num_ahead(self, num_running: int) -> int:
        length = self._length(num_running)
        self._are_on_their_way = length > 0
        if not length:
            self._acceptance.forgo(_FIRST_PLACE)
        return length

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
        """Guesses come with the tokens."""
        return self._are_on_their_way

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        if int((plan.num_scheduled - plan.num_drafts).max()) == 1:
            self._times.learn(
                plan.num_tokens,
                seconds,
                has_drafts=len(plan.draft_token_ids) > 0,
                num_requests=len(plan.seats),
                num_to_draft=plan.num_to_draft,
            )
        numbers = plan.request_numbers[plan.samples].tolist()
        for number, num_drafts, token_ids in zip(
            numbers, plan.num_drafts[plan.samples].tolist(), result.token_ids, strict=True
        ):
            if num_drafts:
                self._acceptance.learn(number, _FIRST_PLACE, num_drafts, max(0, len(token_ids) - 1))
        for number in numbers:
            self._guesses.pop(number, None)  # it has gone on since

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        for number, guess in zip(plan.request_numbers[plan.samples].tolist(), guesses, strict=True):
            self._guesses[number] = _guess(guess)

    def _length(self, num_running: int) -> int:
        """How many drafts of each of so many requests are worth making."""
        any_guess = _guess((0,) * self.max_num_drafts)
        return self._times.worthwhile_length(self._acceptance.chances(None, any_guess), num_running)


def _guess(token_ids: Sequence[int]) -> Guess:
    return Guess(list(token_ids), [1.0] * len(token_ids), _FIRST_PLACE)
