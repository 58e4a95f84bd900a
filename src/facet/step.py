"""One step of the engine as frozen values: the plan for the runner, its result, and the events for clients.

A running request has a *seat*, 0 .. max_num_seqs - 1, until it ends or is preempted; the runner keeps its state (token
ids, a block table per group, sampling state) by seat. A *row* is one scheduled token. A plan only says what is new
since the plan before it. A runner applies a plan in this order:

    1. forget `released_seats`       3. fill `freed_blocks` with NaN (debug only)
    2. set up `admissions`           4. run `page_copies`
                                     5. write `new_blocks` into block tables
                                     6. let towers do what `media` says, then compute

Entry i of a group's block table always covers tokens [i * tokens_per_block, (i + 1) * tokens_per_block). Entries in
front of a sliding window keep whatever they last held and are never read again.

Knows neither tensors nor how a plan was decided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from facet.request import FinishReason, Request

# A page no request ever owns: what padded rows read and write.
SCRATCH_BLOCK = 0
# Upper bounds, in tokens, of the sizes by which steps are counted. vLLM's, whose dashboards read them.
STEP_SIZES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)


class TableSlice(NamedTuple):
    """Neighbouring entries of one group's block table: `block_ids[i]` belongs at index `first + i`."""

    first: int
    block_ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A request takes a seat: for the first time, or again after it was preempted."""

    seat: int
    request: Request
    output_token_ids: tuple[int, ...]  # generated before a preemption; they count as prompt now
    num_computed_tokens: int  # found in the prefix cache
    tables: tuple[TableSlice, ...]  # per group, the blocks that hold them

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.request.prompt_token_ids + self.output_token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBlocks:
    """Entries to write into block tables, as parallel arrays."""

    seats: NDArray[np.int32]
    groups: NDArray[np.int32]
    indices: NDArray[np.int32]
    block_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.seats)


_NOTHING = np.zeros(0, np.int32)
NO_NEW_BLOCKS = NewBlocks(seats=_NOTHING, groups=_NOTHING, indices=_NOTHING, block_ids=_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderWork:
    """What a step changes in the cache of rows that towers made of media, by content key."""

    forgotten: tuple[str, ...] = ()  # before anything is encoded
    encoded: tuple[str, ...] = ()
    used: Mapping[str, int] = field(default_factory=dict)  # what rows of the step are of, with the rows of all of it


NO_ENCODER_WORK = EncoderWork()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """Everything the runner must know to run one step.

    Arrays named per entry are parallel, one element per scheduled request; entries of one token come first. An entry
    computes positions num_computed .. num_computed + num_scheduled - 1 of its request. The last num_drafts of these
    are drafts, tokens that may turn out wrong: logits are wanted from the token before them on, and the result names
    the longest run of sampled tokens whose every predecessor was drafted right. Positions behind it are computed again.

    A step is *ahead* if the one before has drafts, or makes some, and is not known yet. Then `num_computed` counts the
    least that can hold: the drafts of the step before that turn out right, which only the device knows by then, come on
    top. Its own drafts are those that were guessed on the device behind that step.
    """

    step: int
    released_seats: tuple[int, ...]
    admissions: tuple[Admission, ...]
    freed_blocks: NDArray[np.int32]
    page_copies: NDArray[np.int32]  # [copies, 2]: source block, destination block
    new_blocks: NewBlocks

    # per entry
    seats: NDArray[np.int32]
    request_numbers: NDArray[np.int64]  # which submission this is: ids may come again, numbers do not
    num_computed: NDArray[np.int32]
    num_scheduled: NDArray[np.int32]
    num_drafts: NDArray[np.int32]  # of the scheduled tokens
    samples: NDArray[np.bool_]  # its last token is scheduled: logits there, and behind every draft, become the next one
    num_logit_rows: NDArray[np.int32]  # of its scheduled tokens, the last so many want logits: 0, 1 + num_drafts or all

    draft_token_ids: NDArray[np.int64]  # of all entries, one after the other; of a step that is ahead, none
    # Where a step is ahead, per entry: drafts of the step before that may have been right. Empty: it is not ahead.
    num_undecided: NDArray[np.int32] = field(default_factory=lambda: _NOTHING)
    num_to_draft: int = 0  # tokens that a drafter on the device guesses behind those of every entry that samples
    media: EncoderWork = NO_ENCODER_WORK

    @property
    def num_tokens(self) -> int:
        return int(self.num_scheduled.sum())

    @property
    def is_ahead(self) -> bool:
        return len(self.num_undecided) > 0

    @property
    def has_drafts(self) -> bool:
        return len(self.draft_token_ids) > 0 or (self.is_ahead and bool(self.num_drafts.any()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepMasks:
    """What grammars allow in one step. It follows the plan: the forward pass does not wait for it.

    Text that is free until some token comes is not waited for either: where that token turns out to have been the last
    one sampled, which only the device knows, the mask of what follows it applies, and otherwise none.
    """

    bitmask: NDArray[np.int32]  # [masks, words]: bit i of word w allows token 32 * w + i
    places: tuple[int, ...]  # of each mask: the row among those that sample, in plan order, drafts' rows included
    only_after: tuple[int | None, ...]  # of each mask: that token; None: the mask applies whatever came last


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the runner brings back. The first three fields have one element per entry that samples, in plan order."""

    token_ids: tuple[tuple[int, ...], ...]  # that the entry goes on with, in order
    faults: tuple[str | None, ...] | None = None  # why there are no more of them; None: nothing went wrong anywhere
    logprobs: tuple[list[Any] | None, ...] | None = None  # one for each token; handed through unread
    draft_token_ids: Sequence[int] = ()  # that were verified, of all entries, one after the other
    # By position in the plan's entries, for entries whose prompt log-probabilities were computed; handed through.
    prompt_logprobs: tuple[tuple[int, Any], ...] = ()


class TokenEvent(NamedTuple):
    """What one step brought one request."""

    request_id: str
    token_ids: tuple[int, ...]  # empty: only prompt log-probabilities or an end
    finish_reason: FinishReason | None
    num_cached_tokens: int  # prompt tokens found in the prefix cache
    logprobs: list[Any] | None = None  # one for each token
    prompt_logprobs: Any = None
    error: str | None = None  # why, where finish_reason is "error"
    queue_seconds: float = 0.0  # between submission and the first step
    num_drafts: int = 0  # that the step computed for it; all tokens but the last were among them
