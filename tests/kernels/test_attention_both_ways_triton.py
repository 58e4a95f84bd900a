"""Rows of a picture see each other in Triton's kernels too: against the reference, however the work is cut.

In Triton's interpreter on small shapes, on a GPU also on real ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention import cases
from facet.kernels.paged_attention.plan import PagedRows
from facet.kernels.paged_attention.prefill.plan import Run, plan_runs
from facet.kernels.paged_attention.reference import plan_reference
from facet.media_span import MediaSpan
from tests.kernels.test_attention_both_ways import with_media
from tests.media_spans import spans_at

pytest.importorskip("triton")
from facet.kernels.paged_attention import gpu
from facet.kernels.paged_attention.gpu import plan_invariant_on_gpu
from facet.kernels.paged_attention.prefill.runs import attend_runs
from facet.kernels.paged_attention.prefill.separate import SeparateKernel
from facet.kernels.paged_attention.prefill.shared import SharedKernel
from facet.kernels.paged_attention.prefill.tuning import PrefillTuning

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter multiplies bfloat16 matrices wrongly, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16

Media = dict[int, Sequence[MediaSpan]]

SMALL_TILES = PrefillTuning(block_m=32, block_n=16, num_warps=4, num_stages=1, use_tma=False)
GLOBAL = cases.Case(
    name="global, a picture across tiles of rows and keys, then text, then a picture at the end",
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    window=None,
    tokens_per_block=12,
    sequences=((45, 140), (1, 20), (13, 13)),
)
GLOBAL_MEDIA: Media = {0: spans_at((3, 60), (97, 130), (130, 132), (138, 140)), 2: spans_at((0, 4), (5, 12))}
# The last has runs that are short enough to be decoded row by row, were they text.
CASES: tuple[tuple[cases.Case, Media], ...] = (
    (GLOBAL, GLOBAL_MEDIA),
    (replace(GLOBAL, name="a window wider than a tile", num_heads=6, window=50), GLOBAL_MEDIA),
    (replace(GLOBAL, name="a window narrower than a tile and than a picture", window=5), GLOBAL_MEDIA),
    (replace(GLOBAL, name="a window of one", window=1), GLOBAL_MEDIA),
    (
        replace(GLOBAL, name="short runs", sequences=((1, 9), (12, 30), (7, 7))),
        {1: spans_at((19, 29)), 2: spans_at((0, 7))},
    ),
)


@pytest.mark.parametrize(("case", "media"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_same_as_the_reference(case: cases.Case, media: Media) -> None:
    """As a step on a GPU is planned and its kernels chosen."""
    inputs = with_media(case, case.inputs(torch.float32, DEVICE), media)
    assert inputs.rows.last_visible is not None
    cases.FLOAT32.check(case.attend(inputs, gpu.plan_on_gpu), case.attend(inputs, plan_reference))


@pytest.mark.parametrize(
    "changes", [{}, dict(use_tma=True, num_parts=2), dict(block_m=16, block_n=64), dict(rows_per_tile=256)], ids=str
)
@pytest.mark.parametrize(("case", "media"), CASES[1:3], ids=["wide", "narrow"])
def test_however_it_is_scheduled(case: cases.Case, media: Media, changes: dict[str, Any]) -> None:
    inputs = with_media(case, case.inputs(HALF, DEVICE), media)
    tuning = replace(SMALL_TILES, **{name: value for name, value in changes.items() if name != "rows_per_tile"})
    output, runs, first_row = case.attend(inputs, plan_reference), [], 0
    expected = output.clone()
    for num_rows, context_len in case.sequences:
        if num_rows > 1:
            runs.append(Run(first_row=first_row, num_rows=num_rows, context_len=context_len))
            output[first_row : first_row + num_rows] = torch.nan
        first_row += num_rows
    plan = plan_runs(case.plan(inputs, PagedRows.of), runs, rows_per_tile=changes.get("rows_per_tile", tuning.block_m))
    attend_runs(inputs.queries, output, inputs.cache, plan, case.scale, None, SeparateKernel(tuning=tuning))
    case.tolerance(HALF).check(output, expected)


@pytest.mark.parametrize(("case", "media"), CASES[:3], ids=["global", "wide", "narrow"])
def test_invariant(case: cases.Case, media: Media) -> None:
    """Right, and a picture's bits are the same alone and between its neighbours."""
    inputs = with_media(case, case.inputs(torch.float32, DEVICE), media)

    def attend(rows: AttentionRows, queries: torch.Tensor) -> torch.Tensor:
        plan = plan_invariant_on_gpu(
            rows,
            inputs.block_table,
            case.heads,
            window=case.window,
            tokens_per_block=case.tokens_per_block,
        )
        return plan.run(queries, inputs.cache, scale=case.scale)

    together = attend(inputs.rows, inputs.queries)
    cases.FLOAT32.check(together, case.attend(inputs, plan_reference))
    starts = [sum(num_rows for num_rows, _ in case.sequences[:seat]) for seat in range(len(case.sequences))]
    for seat, spans in media.items():
        num_rows, context_len = case.sequences[seat]
        for span in spans:
            first = starts[seat] + span.first - (context_len - num_rows)
            if first >= starts[seat]:
                own = slice(first, first + span.length)
                assert inputs.rows.last_visible is not None
                rows = replace(
                    inputs.rows,
                    positions=inputs.rows.positions[own].clone(),
                    seats=inputs.rows.seats[own].clone(),
                    last_visible=inputs.rows.last_visible[own].clone(),
                    host_query_lens=(span.length,),
                    host_context_lens=(span.end,),
                    host_prompt_lens=(span.length,),
                    host_media_rows=(range(span.length),),
                )
                assert torch.equal(attend(rows, inputs.queries[own]), together[own])


def test_only_a_kernel_that_looks_ahead_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a kernel for Hopper nor one for shared vectors, whose rows see up to their own keys."""
    monkeypatch.setattr(gpu, "choose_hopper_kernel", lambda *_, **__: SharedKernel(tuning=SMALL_TILES))
    for case in (GLOBAL, replace(GLOBAL, name="shared", num_rotated_pairs=8)):
        inputs = case.inputs(torch.float32)
        for chosen, is_causal in ((inputs, True), (with_media(case, inputs, GLOBAL_MEDIA), False)):
            rows = case.plan(chosen, PagedRows.of)
            kernel = gpu.choose_prefill_kernel(inputs.queries, inputs.cache, inputs.key_recipe, rows)
            assert isinstance(kernel, SharedKernel) == is_causal


def test_a_kernel_that_does_not_look_ahead_refuses() -> None:
    case = replace(GLOBAL, num_rotated_pairs=8)
    inputs = with_media(case, case.inputs(torch.float32), GLOBAL_MEDIA)
    plan = plan_runs(case.plan(inputs, PagedRows.of), [Run(first_row=0, num_rows=45, context_len=140)])
    output = torch.empty_like(inputs.queries)
    with pytest.raises(AssertionError, match="a row's own key is the last that it sees"):
        attend_runs(
            inputs.queries, output, inputs.cache, plan, 1.0, inputs.key_recipe, SharedKernel(tuning=SMALL_TILES)
        )


REAL_CASES = (
    (
        replace(cases.CASES[3], name="31B sliding, pictures", sequences=((700, 2300), (1, 9), (300, 300))),
        {0: spans_at((1610, 1890), (1900, 2180)), 2: spans_at((5, 285))},
    ),
    (
        replace(cases.CASES[3], name="31B sliding, a picture longer than the window", sequences=((1300, 1300),)),
        {0: spans_at((100, 1220))},
    ),
    (
        replace(cases.CASES[6], name="Gemma 3 27B global, pictures", sequences=((600, 900), (1, 84))),
        {0: spans_at((310, 566), (580, 836))},
    ),
)


@pytest.mark.skipif(not ON_GPU, reason="these shapes take minutes in the interpreter")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("make_plan", [gpu.plan_on_gpu, plan_invariant_on_gpu])
@pytest.mark.parametrize(("case", "media"), REAL_CASES, ids=lambda value: getattr(value, "name", ""))
def test_real_shapes(case: cases.Case, media: Media, make_plan: Any, dtype: torch.dtype) -> None:
    inputs = with_media(case, case.inputs(dtype, DEVICE), media)
    case.tolerance(dtype).check(case.attend(inputs, make_plan), case.attend(inputs, plan_reference))
