"""Rows attended to one by one against the reference: in Triton's interpreter on small shapes, on a GPU on real ones."""

from dataclasses import replace

import pytest
import torch

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention import cases
from facet.kernels.paged_attention.reference import plan_reference

pytest.importorskip("triton")
from facet.kernels.paged_attention.decode.grouped import attend_groups, gains_by_groups
from facet.kernels.paged_attention.decode.kernel import attend_rows
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.readers import SEPARATE, SHARED, Reader
from facet.kernels.paged_attention.decode.tuning import DecodeTuning, choose_decode_tuning, choose_shares
from facet.kernels.paged_attention.gpu import plan_on_gpu

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"

SMALL = (
    cases.Case(
        name="sliding, decode and chunks, 5 tokens per block",
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        window=10,
        tokens_per_block=5,
        sequences=((1, 1), (1, 30), (7, 19), (3, 3), (1, 10), (1, 11)),
    ),
    cases.Case(
        name="global, decode and chunks, 12 tokens per block",
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        window=None,
        tokens_per_block=12,
        sequences=((1, 1), (1, 150), (7, 19), (40, 70)),
    ),
    cases.Case(
        name="shared, one key head for eight",
        num_heads=8,
        num_kv_heads=1,
        head_dim=64,
        window=None,
        tokens_per_block=40,
        sequences=((1, 1), (1, 150), (7, 19), (40, 70)),
        num_rotated_pairs=8,
    ),
    cases.Case(
        name="shared, a quarter rotates, after a chunk",
        num_heads=8,
        num_kv_heads=2,
        head_dim=128,
        window=None,
        tokens_per_block=24,
        sequences=((5, 19), (1, 1), (1, 150), (1, 64)),
        num_rotated_pairs=16,
    ),
    cases.Case(
        name="long prompt alone, window not a multiple of anything",
        num_heads=2,
        num_kv_heads=2,
        head_dim=32,
        window=37,
        tokens_per_block=7,
        sequences=((190, 260),),
        scale=0.3,
    ),
)
# Triton's interpreter multiplies bfloat16 matrices wrongly, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("case", [*SMALL, *(cases.CASES if ON_GPU else ())], ids=lambda case: case.name)
def test_same_as_the_reference(case: cases.Case, dtype: torch.dtype) -> None:
    inputs = case.inputs(dtype, DEVICE)
    got = case.attend(inputs, plan_on_gpu)
    assert got.dtype == dtype
    case.tolerance(dtype).check(got, case.attend(inputs, plan_reference))


def rows_case(*, window: int | None, num_rotated_pairs: int | None, after_a_chunk: bool) -> cases.Case:
    chunk = ((32, 50),) if after_a_chunk else ()
    return cases.Case(
        name="one row each",
        num_heads=6,  # three to a key head: one row of a tile is nobody's
        num_kv_heads=2,
        head_dim=128,
        window=window,
        tokens_per_block=12,
        sequences=(*chunk, (1, 1), (1, 33), (1, 100)),
        num_rotated_pairs=num_rotated_pairs,
    )


def decode_plan(case: cases.Case, inputs: cases.AttentionInputs) -> DecodePlan:
    """As for a captured graph: planned for long contexts."""
    rows = replace(inputs.rows, host_context_lens=(100_000,) * len(case.sequences))
    (plan,) = case.plan(replace(inputs, rows=rows), plan_on_gpu).decodes
    return plan


@pytest.mark.parametrize(
    ("num_splits", "least_keys", "reader_of_shared", "after_a_chunk", "last_merges"),
    [
        (1, 16, SHARED, False, True),
        (4, 32, SEPARATE, False, True),
        (6, 16, SHARED, True, False),
        (6, 16, SHARED, True, True),
    ],
)
@pytest.mark.parametrize(
    ("window", "num_rotated_pairs"), [(None, None), (None, 16), (41, None)], ids=["global", "shared", "sliding"]
)
def test_rows_in_shares(
    window: int | None,
    num_rotated_pairs: int | None,
    num_splits: int,
    least_keys: int,
    reader_of_shared: Reader,
    after_a_chunk: bool,
    last_merges: bool,
) -> None:
    """As a captured graph runs them: planned for long contexts, run on short ones, some shares empty."""
    case = rows_case(window=window, num_rotated_pairs=num_rotated_pairs, after_a_chunk=after_a_chunk)
    inputs = case.inputs(HALF, DEVICE)
    tuning = DecodeTuning(
        keys_per_tile=16,
        least_keys=least_keys,
        num_splits=num_splits,
        num_warps=4,
        num_stages=3,
        last_merges=last_merges,
        exits_early=num_splits == 4,
    )
    reader = SEPARATE if num_rotated_pairs is None else reader_of_shared
    plan = decode_plan(case, inputs)
    assert (plan.row_map is not None) == after_a_chunk
    expected = case.attend(inputs, plan_reference)
    num_chunk_rows = 32 if after_a_chunk else 0
    for _layer in range(2 if last_merges and num_splits > 1 else 1):
        got = torch.full_like(inputs.queries, float("nan"))
        attend_rows(inputs.queries, got, inputs.cache, plan, 1.0, inputs.key_recipe, reader, tuning)
        assert got[:num_chunk_rows].isnan().all()
        case.tolerance(HALF).check(got[num_chunk_rows:], expected[num_chunk_rows:])
        assert not plan.arrivals.any(), "the next layer starts to count where this one stopped"


@pytest.mark.parametrize("num_rotated_pairs", [None, 16])
def test_padded_rows_change_nothing(num_rotated_pairs: int | None) -> None:
    """Rows that fill a captured graph up have position 0 and a page of their own, which holds what they wrote."""
    case = rows_case(window=None, num_rotated_pairs=num_rotated_pairs, after_a_chunk=False)
    inputs = case.inputs(torch.float32, DEVICE)
    block_table = torch.cat((inputs.block_table, torch.zeros_like(inputs.block_table[:1])))  # page 0 is nobody's
    for stored in (inputs.cache.keys, inputs.cache.values):
        if stored is not None:
            stored[0] = 1e3
    num_rows, num_padded = len(case.sequences), 2
    padded = replace(
        inputs.rows,
        positions=torch.cat((inputs.rows.positions, inputs.rows.positions.new_zeros(num_padded))),
        seats=torch.cat((inputs.rows.seats, inputs.rows.seats.new_full((num_padded,), num_rows))),
        host_query_lens=(1,) * (num_rows + num_padded),
        host_context_lens=(1000,) * (num_rows + num_padded),
    )
    queries = torch.cat((inputs.queries, inputs.queries[:num_padded]))
    got = case.attend(replace(inputs, rows=padded, block_table=block_table, queries=queries), plan_on_gpu)
    case.tolerance(torch.float32).check(got[:num_rows], case.attend(inputs, plan_reference))


@pytest.mark.parametrize(
    ("window", "fitting", "most_shares", "whole_up_to"),
    [(512, 132, 16, 63), (1024, 0, 1, 1024), (None, 132, 132, 63), (None, 4, 4, 255), (None, 0, 4, 1023)],
)
def test_many_rows_keep_short_contexts_whole(
    window: int | None, fitting: int, most_shares: int, whole_up_to: int
) -> None:
    """Planned for the longest context there may be: the least keys of a share decide what becomes of a short one."""
    case = rows_case(window=window, num_rotated_pairs=None, after_a_chunk=False)
    inputs = case.inputs(torch.float32, DEVICE)
    least_keys, num_splits = choose_shares(decode_plan(case, inputs), fitting)
    assert num_splits == most_shares
    assert num_splits == 1 or whole_up_to // least_keys == 1
    assert num_splits == 1 or (whole_up_to + 1) // least_keys == 2


def drafts_case(*, window: int | None, group: int) -> cases.Case:
    return cases.Case(
        name="rows of drafts",
        num_heads=2 * group,
        num_kv_heads=2,
        head_dim=64,
        window=window,
        tokens_per_block=12,
        # Runs within a tile and beyond, from the first token on, and across the edge of a share.
        sequences=((3, 40), (1, 17), (9, 70), (2, 2), (6, 6)),
    )


def as_single_rows(rows: AttentionRows) -> AttentionRows:
    num_rows = len(rows.positions)
    return replace(
        rows,
        host_query_lens=(1,) * num_rows,
        host_context_lens=(100_000,) * num_rows,
        host_prompt_lens=(0,) * num_rows,
        may_share_seats=True,
    )


@pytest.mark.parametrize(
    ("window", "num_splits", "group"), [(None, 1, 3), (None, 4, 8), (None, 6, 1), (13, 4, 4), (41, 1, 4), (41, 6, 3)]
)
def test_rows_of_drafts_read_their_keys_together(window: int | None, num_splits: int, group: int) -> None:
    case = drafts_case(window=window, group=group)
    inputs = case.inputs(HALF, DEVICE)
    (plan,) = case.plan(replace(inputs, rows=as_single_rows(inputs.rows)), plan_on_gpu).decodes
    tuning = DecodeTuning(
        keys_per_tile=16, least_keys=16, num_splits=num_splits, num_warps=4, num_stages=3, last_merges=True,
        exits_early=True, is_full=True,
    )  # fmt: skip
    assert gains_by_groups(SEPARATE, inputs.queries, inputs.cache, plan, tuning)
    expected = case.attend(inputs, plan_reference)
    for _layer in range(2):
        got = torch.full_like(inputs.queries, float("nan"))
        attend_groups(inputs.queries, got, inputs.cache, plan, 1.0, tuning)
        case.tolerance(HALF).check(got, expected)
        assert not plan.arrivals.any(), "the next layer starts to count where this one stopped"


def test_few_rows_and_rows_of_many_heads_are_not_grouped() -> None:
    case = drafts_case(window=None, group=4)
    inputs = case.inputs(HALF, DEVICE)
    (plan,) = case.plan(replace(inputs, rows=as_single_rows(inputs.rows)), plan_on_gpu).decodes
    few = choose_decode_tuning(SEPARATE, inputs.queries, inputs.cache, plan)
    full = replace(few, is_full=True, num_splits=1)
    assert gains_by_groups(SEPARATE, inputs.queries, inputs.cache, plan, full)
    assert not gains_by_groups(SEPARATE, inputs.queries, inputs.cache, plan, replace(full, is_full=False))
    assert not gains_by_groups(SEPARATE, inputs.queries, inputs.cache, replace(plan, may_share_seats=False), full)
    assert not gains_by_groups(SEPARATE, inputs.queries.repeat(1, 4, 1), inputs.cache, plan, full)
