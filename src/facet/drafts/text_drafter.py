"""Drafts from the tokens of the requests themselves: what was written once is often written again.

The index of a request's tokens is made while the request generates, some tokens at a time, and follows it from there.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from facet.drafts.acceptance import Acceptance, Outcome, outcomes
from facet.drafts.config import NgramDrafts, SuffixDrafts
from facet.drafts.guess import NO_GUESS, Guess, Offer, TextIndex
from facet.drafts.ngrams import NgramIndex
from facet.drafts.step_times import StepTimes
from facet.drafts.suffixes import SuffixIndex
from facet.scheduler.drafting import Draftable, Drafts
from facet.step import StepPlan, StepResult

# Tokens of a prompt that are indexed in one turn of the loop: half a millisecond's work.
_TOKENS_AT_ONCE = 1024


class TextDrafter:
    def __init__(self, config: SuffixDrafts | NgramDrafts, step_times: StepTimes) -> None:
        self.max_num_drafts = config.num_drafts
        self._make_index = _index_maker(config)
        self._times = step_times
        self._acceptance = Acceptance()
        self._indexes: dict[int, TextIndex] = {}  # by request number
        self._offered: dict[int, int] = {}  # lengths of the matches behind the last offers, by request number
        self._match_lengths: dict[int, int] = {}  # the same of those that became drafts
        self._in_flight: deque[dict[int, int]] = deque()  # the same of steps that were launched, the earliest first

    def could_gain(self, num_running: int) -> bool:
        return self._times.could_gain(num_running)

    def num_ahead(self, num_running: int) -> int:
        self._in_flight.append(self._match_lengths)
        self._match_lengths = {}
        return 0

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        offers = self.offers(requests)
        drafts = self._times.choose(offers, len(requests))
        self.take(offers, drafts)
        return drafts

    def offers(self, requests: Sequence[Draftable]) -> dict[int, Offer]:
        """Offers, by request number; `take` must follow."""
        self._forget_others(requests)
        ready = [request for request in requests if request.num_pending == 0 and request.max_num_drafts]
        guesses = {request.request_number: self._guess(request, request.max_num_drafts) for request in ready}
        self._offered = {number: guess.match_length for number, guess in guesses.items() if guess.token_ids}
        return {
            number: Offer(guesses[number].token_ids, self._acceptance.chances(number, guesses[number]))
            for number in self._offered
        }

    def take(self, offers: Iterable[int], drafts: Collection[int]) -> None:
        """Takes note of which offers became drafts: those of the requests in `drafts`."""
        for number in offers:
            if number in drafts:
                self._match_lengths[number] = self._offered[number]
            else:
                self._acceptance.forgo(self._offered[number])

    def num_unseen(self, requests: Sequence[Draftable]) -> Mapping[int, int]:
        return {}

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        pending = [request for request in requests if request.num_pending and request.max_num_drafts]
        # The first token of each guess is the one that is not known yet: it is no draft.
        guesses = [self._guess(request, request.max_num_drafts + 1) for request in pending]
        if not any(len(guess.token_ids) > 1 for guess in guesses):
            return False
        chances = [
            self._acceptance.chances(request.request_number, guess)[1:]
            for request, guess in zip(pending, guesses, strict=True)
        ]
        return any(self._times.worthwhile(chances, len(requests)))

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        self._times.learn_step(plan, seconds)
        self.learn_outcomes(outcomes(plan, result))

    def learn_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Learns the outcomes of the earliest step that was not learned from."""
        match_lengths = self._in_flight.popleft()
        for number, num_drafts, num_right in outcomes:
            self._acceptance.learn(number, match_lengths[number], num_drafts, num_right)

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        """Does nothing: no tokens are guessed on the device."""

    def _guess(self, request: Draftable, max_num_tokens: int) -> Guess:
        index = self._indexes.get(request.request_number)
        if index is None:
            index = self._indexes[request.request_number] = self._make_index()
        index.extend(_tokens_from(request, len(index), _TOKENS_AT_ONCE))
        if len(index) < len(request.prompt_token_ids) + len(request.output_token_ids):
            return NO_GUESS
        return index.guess(max_num_tokens)

    def _forget_others(self, requests: Sequence[Draftable]) -> None:
        """What belongs to requests that run no longer."""
        if len(self._indexes) > len(requests):
            numbers = [request.request_number for request in requests]
            self._indexes = {number: self._indexes[number] for number in numbers if number in self._indexes}
            self._acceptance.keep_only(numbers)


def _index_maker(config: SuffixDrafts | NgramDrafts) -> Callable[[], TextIndex]:
    if isinstance(config, SuffixDrafts):
        return lambda: SuffixIndex(max_match=config.max_match, max_factor=config.max_factor, min_share=config.min_share)
    return lambda: NgramIndex(min_match=config.min_match, max_match=config.max_match)


def _tokens_from(request: Draftable, first: int, count: int) -> Sequence[int]:
    num_prompt = len(request.prompt_token_ids)
    if first < num_prompt:
        return request.prompt_token_ids[first : first + count]
    return request.output_token_ids[first - num_prompt : first - num_prompt + count]
