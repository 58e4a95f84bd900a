"""The grammars of running requests, by seat: they take the tokens of settled steps and provide masks for the next.

Masks are made while the device computes: the loop asks for them once it has launched the model, and needs them when it
is about to sample. Tokens of settled steps are walked then, too; before, the device would wait for that.

A request whose text is free until a trigger comes need not wait for the host in the overlapped order: the mask of what
follows the trigger goes along with every step, and applies if the token before, not yet known here, was the trigger.
From when the trigger is seen until its grammar has ended, the request waits.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from facet.request import Request
from facet.sampling.grammar_walker import GrammarWalker, Mask, Stage
from facet.step import Admission, StepMasks, StepPlan, StepResult

if TYPE_CHECKING:
    from facet.sampling.compiled_grammar import CompiledGrammar

logger = logging.getLogger(__name__)


class Grammars:
    """Owned by the loop. A plan goes through `masks` when it has been launched, its result through `settle`."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._compiled: dict[str, CompiledGrammar] = {}
        self._seats: dict[int, _Seat] = {}
        self._waits: dict[int, bool] = {}
        self._unwalked: list[tuple[_WalkState, tuple[int, ...]]] = []  # tokens of settled steps

    def add(self, request: Request, compiled: "CompiledGrammar") -> None:
        """Keep a request's grammar until the request ends, however often it is preempted."""
        self._compiled[request.request_id] = compiled

    def remove(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._compiled.pop(request_id, None)

    def masks(self, plan: StepPlan) -> StepMasks | None:
        """What the plan's requests may sample. None: anything."""
        if not self._compiled and not self._seats:
            return None
        for state, token_ids in self._unwalked:
            state.walk(token_ids)
        self._unwalked.clear()
        for seat in plan.released_seats:
            self._seats.pop(seat, None)
        numbers = dict(zip(plan.seats.tolist(), plan.request_numbers.tolist(), strict=True))
        for admission in plan.admissions:
            if admission.request.grammar is not None:
                self._admit(admission, numbers[admission.seat])
        asked = []
        place, num_read, all_drafts = 0, 0, plan.draft_token_ids.tolist()
        for seat, num_drafts in zip(
            plan.seats[plan.samples].tolist(), plan.num_drafts[plan.samples].tolist(), strict=True
        ):
            drafts = all_drafts[num_read : num_read + num_drafts]
            num_read += num_drafts
            if seat in self._seats:
                held = self._seats[seat]
                asked.append(_Asked(place, held.state, held.unseen_trigger, drafts))
                held.has_sampled = True
                held.was_waiting = held.is_waiting
            place += 1 + num_drafts
        return _collect(asked)

    def take_waits(self) -> dict[int, bool]:
        """Requests, by number, that must from now on wait for the host after every token, or need no longer."""
        waits, self._waits = self._waits, {}
        return waits

    def settle(self, plan: StepPlan, result: StepResult) -> None:
        """Let grammars see the tokens of a step; a seat that has changed hands since does not."""
        if not self._seats:
            return
        entries = zip(
            plan.seats[plan.samples].tolist(),
            plan.request_numbers[plan.samples].tolist(),
            result.token_ids,
            strict=True,
        )
        for seat, number, token_ids in entries:
            held = self._seats.get(seat)
            if held is not None and held.request_number == number and token_ids:
                self._note_waiting(held, token_ids)
                self._unwalked.append((held.state, token_ids))

    def _admit(self, admission: Admission, number: int) -> None:
        request = admission.request
        assert request.grammar is not None
        walker = GrammarWalker(
            request.grammar,
            self._compiled[request.request_id],
            vocab_size=self._vocab_size,
            stop_token_ids=(*request.eos_token_ids, *request.sampling.stop_token_ids),
        )
        state = _WalkState(walker)
        seat = self._seats[admission.seat] = _Seat(number, state, request.grammar.trigger_token_id)
        seat.is_waiting = seat.trigger_token_id is None
        if seat.trigger_token_id is not None and admission.output_token_ids:
            self._set_waiting(seat, True)  # it may be in the middle of what its trigger began
        state.walk(admission.output_token_ids)

    def _note_waiting(self, seat: "_Seat", token_ids: tuple[int, ...]) -> None:
        if seat.trigger_token_id is None:
            return
        if seat.trigger_token_id in token_ids:
            self._set_waiting(seat, True)
        elif seat.was_waiting and seat.state.mask is None:
            # The mask is that of these tokens: while a request waits nobody walks between its mask and its tokens. Of
            # one that did not wait it may be older, from before a trigger.
            self._set_waiting(seat, False)

    def _set_waiting(self, seat: "_Seat", must_wait: bool) -> None:
        if seat.is_waiting != must_wait:
            seat.is_waiting = self._waits[seat.request_number] = must_wait


class _WalkState:
    """A walker and the mask of its next token."""

    def __init__(self, walker: GrammarWalker) -> None:
        self._walker = walker
        self.mask: Mask | None = None
        self._after_trigger: Mask | None = None

    def mask_after_trigger(self) -> Mask | None:
        if self._walker.stage is not Stage.FREE:
            return None
        if self._after_trigger is None:
            self._after_trigger = self._walker.mask_after_trigger()
        return self._after_trigger

    def masks_along(self, drafts: Sequence[int]) -> Iterator[Mask | None]:
        """What may come next, and after each draft; where a draft may not come, nothing behind it matters."""
        yield self.mask
        walker = self._walker.fork()
        for draft in drafts:
            walker.accept(draft)
            if walker.stage is Stage.FAILED:
                return
            yield walker.mask()

    def walk(self, token_ids: Iterable[int]) -> None:
        try:
            for token_id in token_ids:
                self._walker.accept(token_id)
            self.mask = self._walker.mask()
        except Exception:
            # An empty mask ends the request, and no other, with an error where it samples next.
            logger.exception("A grammar could not be followed")
            self._walker.fail()
            self.mask = self._walker.mask()


@dataclass(slots=True)
class _Seat:
    request_number: int  # which submission holds the seat
    state: _WalkState
    trigger_token_id: int | None
    is_waiting: bool = False
    was_waiting: bool = False  # when its latest token was planned
    has_sampled: bool = False  # a token since it was admitted, so that the device knows its last one

    @property
    def unseen_trigger(self) -> int | None:
        """The token that may have come without the host's having seen it."""
        return None if self.is_waiting or not self.has_sampled else self.trigger_token_id


class _Asked(NamedTuple):
    """The masks of one request."""

    place: int  # its first among the step's logits
    state: _WalkState
    unseen_trigger: int | None
    drafts: Sequence[int]  # each has a place of its own behind


def _collect(requests: Iterable[_Asked]) -> StepMasks | None:
    """The masks that may forbid anything, by their place among the step's logits."""
    masks: list[Mask] = []
    places: list[int] = []
    only_after: list[int | None] = []
    for place, state, unseen_trigger, drafts in requests:
        after = None
        along = state.masks_along(drafts) if drafts else (state.mask,)
        if state.mask is None and unseen_trigger is not None and not drafts:
            along, after = (state.mask_after_trigger(),), unseen_trigger
        for offset, mask in enumerate(along):
            if mask is not None:
                masks.append(mask)
                places.append(place + offset)
                only_after.append(after)
    if not masks:
        return None
    return StepMasks(bitmask=np.stack(masks), places=tuple(places), only_after=tuple(only_after))
