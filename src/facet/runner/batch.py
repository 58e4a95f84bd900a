"""Builds the tensors of one forward pass. Arithmetic on the CPU is vectorised over the batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from facet.forward_batch import AttentionRows, ForwardBatch, SoftRows
from facet.media_span import MediaSpan
from facet.runner.media_inputs import StepMedia
from facet.transfer import arrays_on_device

Counts = NDArray[np.int32]
NO_MEDIA: Mapping[int, Sequence[MediaSpan]] = {}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunks:
    """What each sequence contributes to a pass, as parallel arrays: some tokens on top of its computed ones."""

    num_computed: Counts
    num_scheduled: Counts
    num_logit_rows: Counts  # of the scheduled tokens, the last so many want logits
    num_prompt: Counts  # tokens of the prompt
    seats: Counts  # whose block tables are the sequence's own

    @classmethod
    def made_up(cls, *, num_computed: Counts, num_scheduled: Counts, num_logit_rows: Counts, seats: Counts) -> "Chunks":
        """Chunks that belong to no request. Single rows are of answers, all others of prompts."""
        return cls(
            num_computed=num_computed,
            num_scheduled=num_scheduled,
            num_logit_rows=num_logit_rows,
            num_prompt=np.where(num_scheduled == 1, 0, num_computed + num_scheduled).astype(np.int32),
            seats=seats,
        )


def make_batch(
    token_ids: Tensor,
    chunks: Chunks,
    block_tables: tuple[Tensor, ...],
    device: torch.device,
    *,
    skip_upper: bool,
    media: Mapping[int, Sequence[MediaSpan]] = NO_MEDIA,
    soft: StepMedia | None = None,
    has_drafts: bool = False,
    seat_adapters: Tensor | None = None,
) -> ForwardBatch:
    """The batch of one pass over all the chunks. With `skip_upper`, only rows that want logits go past their last keys.

    `media` has, by seat, the spans of its prompt that attend both ways; `soft` are the embeddings of rows of media.
    `has_drafts`: this or another batch has rows of drafts. `seat_adapters`: see `AttentionRows`.
    """
    context_lens = chunks.num_computed + chunks.num_scheduled
    positions = ranges(chunks.num_computed, chunks.num_scheduled)
    seats = np.repeat(chunks.seats, chunks.num_scheduled)
    ends = np.cumsum(chunks.num_scheduled, dtype=np.int32)
    logit_rows = ranges(ends - chunks.num_logit_rows, chunks.num_logit_rows)
    device_positions, device_seats, device_logit_rows = arrays_on_device((positions, seats, logit_rows), device)
    last_visible, is_media = None, None
    if media and (visible := _last_visible(chunks, positions, media)) is not None:
        is_media = visible >= 0
        (last_visible,) = arrays_on_device((np.where(is_media, visible, positions),), device)
    prompt_lens: Counts = np.clip(chunks.num_prompt - chunks.num_computed, 0, chunks.num_scheduled)
    upper_rows = None
    if skip_upper:
        upper_prompt_lens = _upper_prompt_lens(chunks, is_media)
        kept = np.flatnonzero(chunks.num_logit_rows)
        upper_rows = AttentionRows(
            positions=device_positions[device_logit_rows],
            seats=device_seats[device_logit_rows],
            block_tables=block_tables,
            host_query_lens=tuple(chunks.num_logit_rows[kept].tolist()),
            host_context_lens=tuple(context_lens[kept].tolist()),
            host_prompt_lens=tuple(upper_prompt_lens[kept].tolist()),
            last_visible=None if last_visible is None else last_visible[device_logit_rows],
            host_media_rows=() if is_media is None else _stretches(is_media[logit_rows]),
            has_drafts=has_drafts,
            seat_adapters=seat_adapters,
        )
    return ForwardBatch(
        token_ids=token_ids,
        rows=AttentionRows(
            positions=device_positions,
            seats=device_seats,
            block_tables=block_tables,
            host_query_lens=tuple(chunks.num_scheduled.tolist()),
            host_context_lens=tuple(context_lens.tolist()),
            host_prompt_lens=tuple(prompt_lens.tolist()),
            last_visible=last_visible,
            host_media_rows=() if is_media is None else _stretches(is_media),
            has_drafts=has_drafts,
            seat_adapters=seat_adapters,
        ),
        logit_rows=device_logit_rows.long(),
        upper_rows=upper_rows,
        soft=None if soft is None else _soft_rows(soft.places, soft.values, device),
        upper_soft=None if soft is None else _soft_logit_rows(soft, logit_rows, device),
    )


def _soft_logit_rows(soft: StepMedia, logit_rows: Counts, device: torch.device) -> SoftRows | None:
    """The rows of media that want logits, and where they are among all that do."""
    places = np.flatnonzero(np.isin(logit_rows, soft.places))
    if not len(places):
        return None
    (chosen,) = arrays_on_device((np.searchsorted(soft.places, logit_rows[places]),), device)
    return _soft_rows(places, soft.values[chosen], device)


def _soft_rows(places: NDArray[np.int64], values: Tensor, device: torch.device) -> SoftRows:
    (device_places,) = arrays_on_device((places,), device)
    return SoftRows(places=device_places, values=values)


def _upper_prompt_lens(chunks: Chunks, is_media: NDArray[np.bool_] | None) -> Counts:
    """How many rows of each chunk that want logits come before the last token of its prompt, or are media that end
    there. That token is answered: above, it is computed as those that follow it, mostly by a captured step."""
    lens: Counts = np.clip(chunks.num_prompt - 1 - chunks.num_computed, 0, chunks.num_scheduled)
    if is_media is not None:
        last = np.cumsum(chunks.num_scheduled) - chunks.num_scheduled + np.minimum(lens, chunks.num_scheduled - 1)
        lens = lens + ((lens < chunks.num_scheduled) & is_media[last])
    upper_lens: Counts = np.maximum(lens - chunks.num_scheduled + chunks.num_logit_rows, 0)
    return upper_lens


def _stretches(chosen: NDArray[np.bool_]) -> tuple[range, ...]:
    """The stretches of chosen rows, each as long as can be."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False)).tolist()
    return tuple(range(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True))


def _last_visible(chunks: Chunks, positions: Counts, media: Mapping[int, Sequence[MediaSpan]]) -> Counts | None:
    """The last position that each row in a span that attends both ways sees; -1 for other rows. None: all are
    others."""
    found, start = None, 0
    for seat, first, count in zip(
        chunks.seats.tolist(), chunks.num_computed.tolist(), chunks.num_scheduled.tolist(), strict=True
    ):
        for span in media.get(seat, ()):
            if first < span.end and span.first < first + count:
                assert first <= span.first, "a span that attends both ways was cut"
                assert span.end <= first + count, "a span that attends both ways was cut"
                found = np.full_like(positions, -1) if found is None else found
                found[start + span.first - first : start + span.end - first] = span.end - 1
        start += count
    return found


def ranges(firsts: Counts, lengths: Counts) -> Counts:
    """first, first + 1, ... of each run, one run after the other."""
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    return np.repeat(firsts - starts, lengths) + np.arange(int(lengths.sum()), dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRows:
    """One sequence's part of a pass, the last of its prompt, for callers that have few of them and plain lists."""

    token_ids: Sequence[int]
    num_computed: int
    block_tables: tuple[Sequence[int], ...]  # per group
    num_logit_rows: int


def make_batch_of(sequences: Sequence[SequenceRows], device: torch.device, *, skip_upper: bool) -> ForwardBatch:
    """`make_batch` for sequences given one by one."""
    num_groups = len(sequences[0].block_tables)
    chunks = Chunks(
        num_computed=np.array([sequence.num_computed for sequence in sequences], np.int32),
        num_scheduled=np.array([len(sequence.token_ids) for sequence in sequences], np.int32),
        num_logit_rows=np.array([sequence.num_logit_rows for sequence in sequences], np.int32),
        num_prompt=np.array([sequence.num_computed + len(sequence.token_ids) for sequence in sequences], np.int32),
        seats=np.arange(len(sequences), dtype=np.int32),
    )
    tables = tuple(
        torch.from_numpy(_rectangle([sequence.block_tables[group] for sequence in sequences])).to(device)
        for group in range(num_groups)
    )
    token_ids = torch.tensor([token for sequence in sequences for token in sequence.token_ids], device=device)
    return make_batch(token_ids, chunks, tables, device, skip_upper=skip_upper)


def _rectangle(tables: Sequence[Sequence[int]]) -> Counts:
    """Rows of different lengths, filled up with block 0, which is never read."""
    rectangle = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(rectangle, tables, strict=True):
        row[: len(table)] = table
    return rectangle
