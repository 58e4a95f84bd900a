"""Drafts from a model of their own: guesses made on the device behind every step, verified by the next."""

from collections.abc import Mapping, Sequence

from facet.drafts.acceptance import Outcome, outcomes
from facet.drafts.guess import Offer
from facet.drafts.run_acceptance import RunAcceptance
from facet.drafts.step_times import StepTimes
from facet.scheduler.drafting import Draftable, Drafts
from facet.step import StepPlan, StepResult


class ModelDrafter:
    def __init__(self, num_drafts: int, step_times: StepTimes) -> None:
        self.max_num_drafts = num_drafts
        self._times = step_times
        self._acceptance = RunAcceptance(num_drafts)
        # By request number: how it may go on from the tokens it has.
        self._guesses: dict[int, Sequence[int]] = {}
        self._num_on_their_way = 0  # guesses of each request, behind the step launched last

    def could_gain(self, num_running: int) -> bool:
        return self._num_on_their_way > 0 or self._length(num_running) > 0

    def num_ahead(self, num_running: int) -> int:
        length = self._length(num_running)
        if not length:
            self._acceptance.forgo()
        self._expect(length)
        return length

    def rest(self) -> int:
        """Asked instead of `num_ahead` where others know better: nothing is guessed behind the next step."""
        self._expect(0)
        return 0

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        return self._times.choose(self.offers(requests), len(requests))

    def offers(self, requests: Sequence[Draftable]) -> dict[int, Offer]:
        """Offers, by request number."""
        if len(self._acceptance) > len(requests):
            self._acceptance.keep_only([request.request_number for request in requests])
        rooms = {
            number: room
            for number, _, _, num_pending, room in requests
            if room and num_pending == 0 and number in self._guesses
        }
        return {
            number: Offer(self._guesses[number][:room], chances[: min(room, len(self._guesses[number]))])
            for (number, room), chances in zip(rooms.items(), self._acceptance.chances_of(rooms), strict=True)
        }

    def num_unseen(self, requests: Sequence[Draftable]) -> Mapping[int, int]:
        if not self._num_on_their_way:
            return {}
        numbers = [request.request_number for request in requests]
        if len(self._acceptance) > len(numbers):
            self._acceptance.keep_only(numbers)
        places = range(self._num_on_their_way)
        offers = {
            number: Offer(places, chances[: len(places)])
            for number, chances in zip(numbers, self._acceptance.chances_of(numbers), strict=True)
        }
        return {number: len(chosen) for number, chosen in self._times.choose(offers, len(requests)).items()}

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        """Guesses come with the tokens."""
        return self._num_on_their_way > 0

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        self._times.learn_step(plan, seconds)
        self.learn_outcomes(outcomes(plan, result))

    def learn_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        self._acceptance.learn(outcomes)

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        self._guesses = dict(zip(plan.request_numbers[plan.samples].tolist(), guesses, strict=True))

    def _expect(self, num_guesses: int) -> None:
        """Requests go on: what was guessed about them before is of no use any more."""
        self._guesses = {}
        self._num_on_their_way = num_guesses

    def _length(self, num_running: int) -> int:
        """How many drafts of each of so many requests are worth making."""
        chances = self._acceptance.chances()
        return self._times.worthwhile_length(chances, num_running, is_drafting=self._num_on_their_way > 0)
