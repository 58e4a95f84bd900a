"""From sequences to the tensors of one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from facet.forward_batch import AttentionRows, ForwardBatch
from facet.kv_layout import KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """What one sequence contributes to a pass: the tokens to run now, and where its keys and values live."""

    token_ids: Sequence[int]
    num_computed: int  # tokens already in the cache, before these
    block_tables: tuple[Sequence[int], ...]  # per group; entry i holds the i-th block of tokens
    num_logit_rows: int  # how many of the last rows want logits

    @property
    def context_len(self) -> int:
        return self.num_computed + len(self.token_ids)


def make_batch(
    sequences: Sequence[SequenceRows], layout: KVLayout, device: torch.device, *, skip_upper: bool
) -> ForwardBatch:
    """One pass over all the sequences. With `skip_upper`, only rows that want logits go past the shared layers."""
    starts = list(accumulate((len(sequence.token_ids) for sequence in sequences), initial=0))
    token_ids = [token for sequence in sequences for token in sequence.token_ids]
    positions = [p for s in sequences for p in range(s.num_computed, s.context_len)]
    logit_rows = [
        row
        for end, sequence in zip(starts[1:], sequences, strict=True)
        for row in range(end - sequence.num_logit_rows, end)
    ]
    tables = tuple(_pad_tables([s.block_tables[g] for s in sequences], device) for g in range(len(layout.groups)))
    rows = _attention_rows(
        [len(sequence.token_ids) for sequence in sequences],
        [sequence.context_len for sequence in sequences],
        torch.tensor(positions, device=device),
        tables,
    )
    blocks, slots = [], []
    sequence_of_row = torch.arange(len(sequences), device=device).repeat_interleave(
        torch.tensor(rows.host_query_lens, device=device)
    )
    for group, table in zip(layout.groups, tables, strict=True):
        blocks.append(table[sequence_of_row, rows.positions // group.tokens_per_block].long())
        slots.append(rows.positions % group.tokens_per_block)
    logit_index = torch.tensor(logit_rows, dtype=torch.long, device=device)
    return ForwardBatch(
        token_ids=torch.tensor(token_ids, device=device),
        rows=rows,
        write_blocks=tuple(blocks),
        write_slots=tuple(slots),
        logit_rows=logit_index,
        upper_rows=_upper_rows(sequences, rows, logit_index) if skip_upper else None,
    )


def _upper_rows(sequences: Sequence[SequenceRows], rows: AttentionRows, logit_rows: Tensor) -> AttentionRows:
    """The rows that want logits, as attention rows of their own: a suffix of each sequence, or none of it."""
    kept = [index for index, sequence in enumerate(sequences) if sequence.num_logit_rows]
    keep = torch.tensor(kept, dtype=torch.long, device=logit_rows.device)
    return _attention_rows(
        [sequences[index].num_logit_rows for index in kept],
        [sequences[index].context_len for index in kept],
        rows.positions[logit_rows],
        tuple(table[keep] for table in rows.block_tables),
    )


def _attention_rows(
    query_lens: list[int], context_lens: list[int], positions: Tensor, tables: tuple[Tensor, ...]
) -> AttentionRows:
    starts = list(accumulate(query_lens, initial=0))
    return AttentionRows(
        positions=positions,
        query_starts=torch.tensor(starts, dtype=torch.int32, device=positions.device),
        context_lens=torch.tensor(context_lens, dtype=torch.int32, device=positions.device),
        block_tables=tables,
        host_query_lens=tuple(query_lens),
        host_context_lens=tuple(context_lens),
    )


def _pad_tables(tables: list[Sequence[int]], device: torch.device) -> Tensor:
    """One rectangle of block ids; rows are filled up with block 0, which is never read."""
    width = max((len(table) for table in tables), default=0)
    return torch.tensor([[*table, *[0] * (width - len(table))] for table in tables], dtype=torch.int32, device=device)
