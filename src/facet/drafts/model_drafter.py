"""Drafts from a model of their own: guesses made on the device behind every step, verified by the next."""

from collections.abc import Sequence

from facet.drafts.acceptance import Acceptance, outcomes
from facet.drafts.guess import Guess, Offer
from facet.drafts.step_times import StepTimes
from facet.scheduler.drafting import Draftable, Drafts
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

    def rest(self) -> int:
        """Instead of `num_ahead`: nothing is guessed behind the next step, because others know better."""
        self._are_on_their_way = False
        return 0

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        return self._times.choose(self.offers(requests), len(requests))

    def offers(self, requests: Sequence[Draftable]) -> dict[int, Offer]:
        """By request number."""
        if len(self._guesses) > len(requests):
            numbers = [request.request_number for request in requests]
            self._guesses = {number: self._guesses[number] for number in numbers if number in self._guesses}
            self._acceptance.keep_only(numbers)
        offers = {}
        for request in requests:
            guess = self._guesses.get(request.request_number)
            room = min(request.max_num_drafts, self.max_num_drafts)
            if guess is not None and room and request.num_pending == 0:
                chances = self._acceptance.chances(request.request_number, guess)
                offers[request.request_number] = Offer(guess.token_ids[:room], chances[:room])
        return offers

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        """Guesses come with the tokens."""
        return self._are_on_their_way

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        self._times.learn_step(plan, seconds)
        for number, num_drafts, num_right in outcomes(plan, result):
            self.learn_outcome(number, num_drafts, num_right)
        self.forget_guesses(plan)

    def learn_outcome(self, request_number: int, num_drafts: int, num_right: int) -> None:
        self._acceptance.learn(request_number, _FIRST_PLACE, num_drafts, num_right)

    def forget_guesses(self, plan: StepPlan) -> None:
        """Of requests that have gone on since."""
        for number in plan.request_numbers[plan.samples].tolist():
            self._guesses.pop(number, None)

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        for number, guess in zip(plan.request_numbers[plan.samples].tolist(), guesses, strict=True):
            self._guesses[number] = _guess(guess)

    def _length(self, num_running: int) -> int:
        """How many drafts of each of so many requests are worth making."""
        any_guess = _guess((0,) * self.max_num_drafts)
        chances = self._acceptance.chances(None, any_guess)
        return self._times.worthwhile_length(chances, num_running, is_drafting=self._are_on_their_way)


def _guess(token_ids: Sequence[int]) -> Guess:
    return Guess(list(token_ids), [1.0] * len(token_ids), _FIRST_PLACE)
