"""Follows one answer through its grammar and computes which tokens may come next.

    START ──► BOUND ──► ENDED           without a trigger; a thought may come before BOUND
    FREE ──► BOUND ──► FREE | SPENT     with one
    THOUGHT                             before or between these; its content is not constrained

A token that was not allowed (which only a fault elsewhere can bring) leads to FAILED, where nothing is allowed, so that
the request ends with an error and not with an answer of the wrong shape.
"""

from collections.abc import Sequence
from copy import copy
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from facet.grammar_spec import GrammarSpec
from facet.sampling.bitmask import num_words, pack_token_ids

if TYPE_CHECKING:
    from facet.sampling.compiled_grammar import CompiledGrammar, Matcher

Mask = NDArray[np.int32]


class Stage(Enum):
    START = auto()  # the first token decides between a thought and the answer
    THOUGHT = auto()
    FREE = auto()
    BOUND = auto()
    SPENT = auto()  # free, but the trigger may not come again
    ENDED = auto()  # only its end-of-sequence token may follow
    FAILED = auto()


class GrammarWalker:
    """The state of one request. Tokens go in with `accept`; `mask` gives the allowed next ones, None meaning all."""

    def __init__(
        self,
        spec: GrammarSpec,
        compiled: "CompiledGrammar",
        *,
        vocab_size: int,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._spec = spec
        self._compiled = compiled
        self._vocab_size = vocab_size
        self._stop_token_ids = sorted(set(stop_token_ids))
        self._matcher: Matcher | None = None
        if spec.thought is not None and spec.thought.is_open:
            self.stage = Stage.THOUGHT
        elif spec.trigger_token_id is not None:
            self.stage = Stage.FREE
        else:
            self.stage = Stage.START

    def accept(self, token_id: int) -> None:
        thought, trigger = self._spec.thought, self._spec.trigger_token_id
        if self.stage is Stage.BOUND:
            self._walk(token_id)
        elif self.stage is Stage.THOUGHT:
            if thought is not None and token_id == thought.close_id:
                self.stage = Stage.BOUND if trigger is None else Stage.FREE
        elif self.stage in (Stage.START, Stage.FREE) and thought is not None and token_id == thought.open_id:
            self.stage = Stage.THOUGHT
        elif self.stage is Stage.START or (self.stage is Stage.FREE and token_id == trigger):
            self._matcher = None
            self.stage = Stage.BOUND
            self._walk(token_id)

    def mask(self) -> Mask | None:
        """A packed set of the tokens that may come next, laid out as in `bitmask.py`."""
        if self.stage is Stage.FREE:
            return None
        if self.stage is Stage.THOUGHT:
            # A thought that never closes would end an answer that never began.
            return self._all_but(self._stop_token_ids) if self._spec.trigger_token_id is None else None
        if self.stage is Stage.SPENT:
            assert self._spec.trigger_token_id is not None
            return self._all_but([self._spec.trigger_token_id])
        if self.stage is Stage.ENDED:
            return pack_token_ids(self._stop_token_ids, self._vocab_size)
        if self.stage is Stage.FAILED:
            return pack_token_ids((), self._vocab_size)
        mask = np.zeros(num_words(self._vocab_size), np.int32)
        self._matcher_now().fill_next_token_bitmask(mask[np.newaxis])
        if self.stage is Stage.START and self._spec.thought is not None:
            mask |= pack_token_ids([self._spec.thought.open_id], self._vocab_size)
        return mask

    def mask_after_trigger(self) -> Mask | None:
        """What may follow the trigger if it comes now. None: it has no meaning here."""
        if self._spec.trigger_token_id is None or self.stage is not Stage.FREE:
            return None
        here = self.stage, self._matcher
        self.stage, self._matcher = Stage.FREE, None
        self.accept(self._spec.trigger_token_id)
        mask = self.mask()
        self.stage, self._matcher = here
        return mask

    def fork(self) -> "GrammarWalker":
        """Another one at the same point, that goes its own way."""
        fork = copy(self)
        fork._matcher = None if self._matcher is None else self._matcher.fork()
        return fork

    def fail(self) -> None:
        self.stage = Stage.FAILED

    def _walk(self, token_id: int) -> None:
        matcher = self._matcher_now()
        if not matcher.accept_token(token_id):
            self.stage = Stage.FAILED
        elif matcher.is_terminated():
            if self._spec.trigger_token_id is None:
                self.stage = Stage.ENDED
            else:
                self.stage = Stage.FREE if self._spec.may_trigger_again else Stage.SPENT

    def _matcher_now(self) -> "Matcher":
        if self._matcher is None:
            is_triggered = self._spec.trigger_token_id is not None
            self._matcher = self._compiled.matcher(self._stop_token_ids, is_triggered=is_triggered)
        return self._matcher

    def _all_but(self, token_ids: Sequence[int]) -> Mask:
        return ~pack_token_ids(token_ids, self._vocab_size)
