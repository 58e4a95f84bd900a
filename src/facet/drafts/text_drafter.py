"""Drafts from the tokens of the requests themselves: what was written once is often written again.

The index of a request's tokens is made while the request generates, some tokens at a time, and follows it from there.
"""

from collections.abc import Callable, Sequence

from facet.drafts.acceptance import Acceptance
from facet.drafts.config import NgramDrafts, SuffixDrafts
from facet.drafts.guess import NO_GUESS, Guess, TextIndex
from facet.drafts.ngrams import NgramIndex
from facet.drafts.step_times import StepTimes
from facet.drafts.suffixes import SuffixIndex
from facet.scheduler.drafting import NO_DRAFTS, Draftable, Drafts
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
        self._match_lengths: dict[int, int] = {}  # of the drafts in flight, by request number

    def could_gain(self, num_running: int) -> bool:
        return self._times.could_gain(num_running)

    def num_ahead(self, num_running: int) -> int:
        return 0

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        self._forget_others(requests)
        ready = [request for request in requests if request.num_pending == 0 and request.max_num_drafts]
        guesses = [self._guess(request, request.max_num_drafts) for request in ready]
        if not any(guess.token_ids for guess in guesses):
            return NO_DRAFTS
        drafts = {}
        for request, guess, count in zip(ready, guesses, self._lengths(ready, guesses, len(requests)), strict=True):
            if count:
                drafts[request.request_number] = guess.token_ids[:count]
                self._match_lengths[request.request_number] = guess.match_length
            elif guess.token_ids:
                self._acceptance.forgo(guess.match_length)
        return drafts

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        pending = [request for request in requests if request.num_pending and request.max_num_drafts]
        # The first token of each guess is the one that is not known yet: it is no draft.
        guesses = [self._guess(request, request.max_num_drafts + 1) for request in pending]
        if not any(len(guess.token_ids) > 1 for guess in guesses):
            return False
        return any(self._lengths(pending, guesses, len(requests), skip=1))

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        has_drafts = len(plan.draft_token_ids) > 0
        if int((plan.num_scheduled - plan.num_drafts).max()) == 1:
            self._times.learn(plan.num_tokens, seconds, has_drafts=has_drafts)
        if not has_drafts:
            return
        entries = zip(
            plan.request_numbers[plan.samples].tolist(),
            plan.num_drafts[plan.samples].tolist(),
            result.token_ids,
            strict=True,
        )
        for number, num_drafts, token_ids in entries:
            if num_drafts:
                match_length = self._match_lengths.pop(number)
                self._acceptance.learn(number, match_length, num_drafts, max(0, len(token_ids) - 1))

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        """Nothing is guessed on the device."""

    def _lengths(
        self, requests: Sequence[Draftable], guesses: Sequence[Guess], num_running: int, skip: int = 0
    ) -> list[int]:
        chances = [
            self._acceptance.chances(request.request_number, guess)[skip:]
            for request, guess in zip(requests, guesses, strict=True)
        ]
        return self._times.worthwhile(chances, num_running)

    def _guess(self, request: Draftable, max_num_tokens: int) -> Guess:
        index = self._indexes.get(request.request_number)
        if index is None:
            index = self._indexes[request.request_number] = self._make_index()
        for token_id in _tokens_from(request, len(index), _TOKENS_AT_ONCE):
            index.append(token_id)
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
