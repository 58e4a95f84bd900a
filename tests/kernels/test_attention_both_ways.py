"""Rows of a picture see each other: attention over pages against a dense mask made from the spans alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.paged_attention import cases, plan_attention, plan_invariant_attention
from facet.media_span import MediaSpan
from facet.runner.batch import Chunks, make_batch
from tests.kernels.test_paged_attention import small_cases
from tests.media_spans import spans_at

PLANNERS = [plan_attention, plan_invariant_attention]


def dense(case: cases.Case, inputs: cases.AttentionInputs, media: dict[int, Sequence[MediaSpan]]) -> Tensor:
    """softmax(scale * q k) v, where query i sees key j if (j <= i or both are in one span) and j > i - window."""
    out, start, repeats = [], 0, case.num_heads // case.num_kv_heads
    for seat, ((num_rows, num_keys), keys, values) in enumerate(
        zip(case.sequences, inputs.keys, inputs.values, strict=True)
    ):
        span_of = torch.full((num_keys,), -1)
        for index, span in enumerate(media.get(seat, ())):
            span_of[span.first : span.end] = index
        query, key = torch.arange(num_keys - num_rows, num_keys)[:, None], torch.arange(num_keys)
        visible = (key <= query) | ((span_of[query] == span_of[key]) & (span_of[key] >= 0))
        if case.window is not None:
            visible &= key > query - case.window
        queries = inputs.queries[start : start + num_rows].double()
        keys, values = (tensor.double().repeat_interleave(repeats, dim=1) for tensor in (keys, values))
        scores = case.scale * torch.einsum("qhd,khd->hqk", queries, keys)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, values))
        start += num_rows
    return torch.cat(out)


def with_media(
    case: cases.Case, inputs: cases.AttentionInputs, media: dict[int, Sequence[MediaSpan]]
) -> cases.AttentionInputs:
    num_rows, context_lens = (np.array(counts, np.int32) for counts in zip(*case.sequences, strict=True))
    chunks = Chunks(
        num_computed=context_lens - num_rows,
        num_scheduled=num_rows,
        num_logit_rows=np.zeros_like(num_rows),
        num_prompt=context_lens,
        seats=np.arange(len(num_rows), dtype=np.int32),
    )
    device = inputs.queries.device
    token_ids = torch.zeros(int(num_rows.sum()), dtype=torch.int64, device=device)
    batch = make_batch(token_ids, chunks, inputs.rows.block_tables, device, skip_upper=False, media=media)
    return replace(inputs, rows=batch.rows)


@st.composite
def small_cases_with_media(draw: st.DrawFn) -> tuple[cases.Case, dict[int, Sequence[MediaSpan]]]:
    """Spans anywhere in a chunk or before it, several in one, side by side, as long as the chunk."""
    case, media = draw(small_cases()), {}
    for seat, (num_rows, context_len) in enumerate(case.sequences):
        num_computed = context_len - num_rows
        bounds = sorted(draw(st.lists(st.integers(num_computed, context_len), max_size=6, unique=True)))
        spans = list(zip(bounds[::2], bounds[1::2], strict=False))
        if num_computed > 1 and draw(st.booleans()):
            spans.insert(0, (0, num_computed))
        media[seat] = spans_at(*spans)
    return case, media


@pytest.mark.parametrize("plan", PLANNERS)
@given(drawn=small_cases_with_media(), seed=st.integers(0, 1000))
def test_any_spans_against_a_dense_mask(plan: Callable[..., Any], drawn: Any, seed: int) -> None:
    case, media = drawn
    inputs = with_media(case, case.inputs(torch.float32, seed=seed), media)
    cases.FLOAT32.check(case.attend(inputs, plan), dense(case, inputs, media))


@pytest.mark.parametrize("plan", PLANNERS)
@pytest.mark.parametrize("case", [cases.CASES[index] for index in (2, 3, 6)], ids=lambda case: case.name)
def test_the_shapes_of_models(plan: Callable[..., Any], case: cases.Case) -> None:
    """A span in the middle of every longer chunk, past windows and tiles of rows."""
    media = {
        seat: spans_at((context_len - num_rows + 2, context_len - 2))
        for seat, (num_rows, context_len) in enumerate(case.sequences)
        if num_rows > 8
    }
    inputs = with_media(case, case.inputs(torch.float32), media)
    cases.FLOAT32.check(case.attend(inputs, plan), dense(case, inputs, media))


def test_the_window_of_the_families() -> None:
    """Window 4, tokens 2 to 7 one picture: the window limits how far a row sees back, never how far ahead."""
    case = cases.Case(
        name="drawn", num_heads=1, num_kv_heads=1, head_dim=2, window=4, tokens_per_block=3, sequences=((10, 10),)
    )
    inputs = case.inputs(torch.float32)
    rows = with_media(case, inputs, {0: spans_at((2, 8))}).rows
    assert rows.last_visible is not None
    assert rows.last_visible.tolist() == [0, 1, 7, 7, 7, 7, 7, 7, 8, 9]
    plan: Any = plan_attention(rows, inputs.block_table, case.heads, window=4, tokens_per_block=3)
    (tile,) = plan.tiles
    drawn = ["".join(".#"[seen] for seen in row) for row in tile.visible[0, 0].int().tolist()]
    assert drawn == [
        "#.........",
        "##........",
        "########..",
        "########..",
        ".#######..",
        "..######..",
        "...#####..",
        "....####..",
        ".....####.",
        "......####",
    ]


def test_text_is_told_nothing() -> None:
    case = cases.CASES[1]
    inputs = case.inputs(torch.float32)
    assert with_media(case, inputs, {}).rows.last_visible is None
    assert with_media(case, inputs, {2: spans_at((3, 60))}).rows.last_visible is None, "a span computed long ago"


def test_a_cut_span_is_noticed() -> None:
    case = cases.CASES[1]
    with pytest.raises(AssertionError, match="was cut"):
        with_media(case, case.inputs(torch.float32), {2: spans_at((70, 90))})
