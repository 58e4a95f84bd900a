"""From spans of sequences to the tensors of one forward pass. Arithmetic on the host is vectorised over the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.forward_batch import AttentionRows, ForwardBatch
from facet.kv_layout import KVLayout

Counts = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """What each sequence contributes to a pass, as parallel arrays: a run of tokens on top of its computed ones."""

    num_computed: Counts
    num_scheduled: Counts
    num_logit_rows: Counts  # of the scheduled tokens, the last so many want logits
    block_tables: tuple[Counts, ...]  # per group [sequences, blocks]; entry i holds the i-th block of tokens


def make_batch(
    token_ids: Tensor, spans: Spans, layout: KVLayout, device: torch.device, *, skip_upper: bool
) -> ForwardBatch:
    """One pass over all the spans. With `skip_upper`, only rows that want logits go past the shared layers."""
    context_lens = spans.num_computed + spans.num_scheduled
    starts = _starts(spans.num_scheduled)
    positions = _ranges(spans.num_computed, spans.num_scheduled)
    logit_rows = _ranges(starts[1:] - spans.num_logit_rows, spans.num_logit_rows)
    sequence_of_row = np.repeat(np.arange(len(context_lens)), spans.num_scheduled)
    tables = tuple(torch.from_numpy(table).to(device) for table in spans.block_tables)
    blocks, slots = [], []
    for group, table in zip(layout.groups, spans.block_tables, strict=True):
        blocks.append(table[sequence_of_row, positions // group.tokens_per_block].astype(np.int64))
        slots.append(positions % group.tokens_per_block)
    upper_rows = None
    if skip_upper:
        kept = np.flatnonzero(spans.num_logit_rows)
        keep = torch.from_numpy(kept).to(device)
        upper_rows = _attention_rows(
            positions[logit_rows],
            spans.num_logit_rows[kept],
            context_lens[kept],
            tuple(table[keep] for table in tables),
            device,
        )
    return ForwardBatch(
        token_ids=token_ids,
        rows=_attention_rows(positions, spans.num_scheduled, context_lens, tables, device),
        write_blocks=tuple(torch.from_numpy(array).to(device) for array in blocks),
        write_slots=tuple(torch.from_numpy(array).to(device) for array in slots),
        logit_rows=torch.from_numpy(logit_rows).to(device),
        upper_rows=upper_rows,
    )


def _attention_rows(
    positions: NDArray[np.int64],
    query_lens: Counts,
    context_lens: Counts,
    tables: tuple[Tensor, ...],
    device: torch.device,
) -> AttentionRows:
    return AttentionRows(
        positions=torch.from_numpy(positions).to(device),
        query_starts=torch.from_numpy(_starts(query_lens)).to(device),
        context_lens=torch.from_numpy(context_lens).to(device),
        block_tables=tables,
        host_query_lens=tuple(query_lens.tolist()),
        host_context_lens=tuple(context_lens.tolist()),
    )


def _starts(lengths: Counts) -> Counts:
    """Where each run begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def _ranges(firsts: Counts, lengths: Counts) -> NDArray[np.int64]:
    """first, first + 1, ... of each run, one run after the other."""
    offsets = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(_starts(lengths)[:-1], lengths)
    return np.repeat(firsts.astype(np.int64), lengths) + offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """One sequence's part of a pass, for callers that have few of them and plain lists."""

    token_ids: Sequence[int]
    num_computed: int
    block_tables: tuple[Sequence[int], ...]  # per group
    num_logit_rows: int


def make_batch_of(
    sequences: Sequence[SequenceRows], layout: KVLayout, device: torch.device, *, skip_upper: bool
) -> ForwardBatch:
    """`make_batch` for sequences given one by one."""
    spans = Spans(
        num_computed=np.array([sequence.num_computed for sequence in sequences], np.int32),
        num_scheduled=np.array([len(sequence.token_ids) for sequence in sequences], np.int32),
        num_logit_rows=np.array([sequence.num_logit_rows for sequence in sequences], np.int32),
        block_tables=tuple(
            _rectangle([sequence.block_tables[group] for sequence in sequences]) for group in range(len(layout.groups))
        ),
    )
    token_ids = torch.tensor([token for sequence in sequences for token in sequence.token_ids], device=device)
    return make_batch(token_ids, spans, layout, device, skip_upper=skip_upper)


def _rectangle(tables: Sequence[Sequence[int]]) -> Counts:
    """Rows of different lengths, filled up with block 0, which is never read."""
    rectangle = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(rectangle, tables, strict=True):
        row[: len(table)] = table
    return rectangle
