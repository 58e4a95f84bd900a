"""The input of one forward pass: rows of tokens, the sequence of each row, and where its keys are stored.

A *row* is one scheduled token. Rows of a sequence lie together and are the last `query_len` tokens of its context.
Counts that Python loops over are kept as host tuples; kernels read the device tensors. Both agree, except that a
captured graph does not know context lengths and gets the longest possible one.
"""

from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRows:
    """Query rows, grouped by sequence, and the block tables their contexts lie in.

    rows           0 1 2 3 4 | 5 | 6 7        host_query_lens   (5, 1, 2)
    positions      7 8 9 ..11| 40| 0 1        host_context_lens (12, 41, 2): tokens visible after this step
    seats          3 3 3 3 3 | 0 | 9 9        whose block table to look in
                                             host_prompt_lens  (5, 0, 2): row 5 is of an answer
    """

    positions: Tensor  # [rows] int32
    seats: Tensor  # [rows] int32: the running request that a row belongs to, as its place in the block tables
    block_tables: tuple[Tensor, ...]  # per group [seats, blocks] int32; entry i covers the i-th block of tokens
    host_query_lens: tuple[int, ...]
    host_context_lens: tuple[int, ...]
    # The first so many rows of each sequence are of its prompt; of those that go on to the upper layers, without its
    # last token. Where bits may not depend on a step, this is what decides which kernel attends for a row.
    host_prompt_lens: tuple[int, ...]
    # Where media attend both ways, the last position that each row sees: [rows] int32. None: its own, for all of them.
    last_visible: Tensor | None = None
    host_media_rows: tuple[range, ...] = ()  # the rows of such media, ascending
    # Rows that count as sequences of their own may be of one seat, one position after the other: drafts.
    may_share_seats: bool = False
    # Some step may have rows of drafts. Where bits may not depend on a step, all steps then compute rows in a way that
    # lets those of drafts be computed together.
    has_drafts: bool = False
    # [seats] int32: the number of each one's adapter, 0: none. None: no row of this pass has one.
    seat_adapters: Tensor | None = None

    @property
    def causal(self) -> "AttentionRows":
        """The same rows, for layers in which nothing attends both ways."""
        return self if self.last_visible is None else replace(self, last_visible=None, host_media_rows=())


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftRows:
    """Rows whose embeddings towers made of media. Their token ids are 0."""

    places: Tensor  # [n] int64, ascending: which rows
    values: Tensor  # [n, hidden]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBatch:
    """The input of one forward pass."""

    token_ids: Tensor  # [rows] int64
    rows: AttentionRows
    logit_rows: Tensor  # [n] int64, ascending: the rows whose logits are wanted
    upper_rows: AttentionRows | None  # the logit rows alone, which no key waits for; None: all rows run
    soft: SoftRows | None = None  # of all rows; None: none is media
    upper_soft: SoftRows | None = None  # of the logit rows
