"""Attention over pages against a loop over rows in float64. All memory outside live slots is NaN."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.paged_attention import LayerCache, cases, plan_attention, write_keys_and_values
from facet.kernels.tolerance import Tolerance

DTYPES = (torch.float32, torch.bfloat16)
SMALL_HEADS = Tolerance(
    absolute=0.2,
    relative=2**-6,
    why="over a head of a few dimensions the roundings of a key made from a shared vector do not average out",
)


def formula(case: cases.Case, inputs: cases.AttentionInputs) -> Tensor:
    """Row by row. Query head h reads key head h // (heads / key heads)."""
    out, group = [], case.num_heads // case.num_kv_heads
    queries = iter(inputs.queries.double().view(-1, case.num_kv_heads, group, case.head_dim))
    for (query_len, context_len), keys, values in zip(case.sequences, inputs.keys, inputs.values, strict=True):
        keys_NTD, values_NTD = (tensor.double().transpose(0, 1) for tensor in (keys, values))
        for position in range(context_len - query_len, context_len):
            first = 0 if case.window is None else max(0, position - case.window + 1)
            seen = slice(first, position + 1)
            scores_NGT = case.scale * next(queries) @ keys_NTD[:, seen].mT
            out.append((scores_NGT.softmax(dim=-1) @ values_NTD[:, seen]).flatten(0, 1))
    return torch.stack(out)


def of_few_heads(case: cases.Case) -> cases.Case:
    """Many processors multiply bfloat16 numbers one by one; a few heads of a real size show as much."""
    num_kv_heads = min(2, case.num_kv_heads)
    group = min(2, case.num_heads // case.num_kv_heads)
    return replace(case, num_heads=num_kv_heads * group, num_kv_heads=num_kv_heads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_cases(case: cases.Case, dtype: torch.dtype) -> None:
    case = of_few_heads(case) if dtype == torch.bfloat16 else case
    inputs = case.inputs(dtype)
    got = case.attend(inputs, plan_attention)
    assert got.dtype == dtype
    case.tolerance(dtype).check(got, formula(case, inputs))


def test_cases_cover_what_they_should() -> None:
    """A fast kernel is checked on these alone; dropping one of these traits should be noticed."""
    assert {case.head_dim for case in cases.CASES} >= {128, 256, 512}
    assert any(case.is_shared for case in cases.CASES)
    assert any(case.tokens_per_block & (case.tokens_per_block - 1) for case in cases.CASES if case.window)
    assert any(case.num_kv_heads == 1 for case in cases.CASES)
    for kind in (True, False):
        alike = [case for case in cases.CASES if (case.window is None) == kind]
        assert any({1} < {rows for rows, _ in case.sequences} for case in alike)
        assert any(max(lens) >= 100 * min(lens) for case in alike for lens in [[n for _, n in case.sequences]])


@st.composite
def small_cases(draw: st.DrawFn) -> cases.Case:
    head_dim = 2 * draw(st.integers(1, 4))
    num_kv_heads = draw(st.integers(1, 3))
    return cases.Case(
        name="drawn",
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        window=draw(st.none() | st.integers(1, 12)),
        tokens_per_block=draw(st.integers(1, 9)),
        sequences=tuple(
            draw(
                st.lists(
                    # Many sequences of one row, as in decoding, among chunks and whole prompts.
                    st.tuples(st.one_of(st.just(1), st.integers(1, 12)), st.integers(0, 40)).map(
                        lambda lens: (lens[0], lens[0] + lens[1])
                    ),
                    min_size=1,
                    max_size=6,
                )
            )
        ),
        scale=draw(st.sampled_from([1.0, 0.25])),
        num_rotated_pairs=draw(st.none() | st.integers(0, head_dim // 2)),
    )


@given(case=small_cases(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 1000))
def test_any_small_batch(case: cases.Case, dtype: torch.dtype, seed: int) -> None:
    inputs = case.inputs(dtype, seed=seed)
    tolerance = SMALL_HEADS if case.is_shared and dtype == torch.bfloat16 else case.tolerance(dtype)
    tolerance.check(case.attend(inputs, plan_attention), formula(case, inputs))


@given(case=small_cases(), seed=st.integers(0, 1000))
def test_company_does_not_change_a_row(case: cases.Case, seed: int) -> None:
    inputs = case.inputs(torch.float32, seed=seed)
    together = case.attend(inputs, plan_attention)
    start = 0
    for index, lens in enumerate(case.sequences):
        only = slice(start, start + lens[0])
        alone = alone_with(inputs, index, only)
        cases.FLOAT32.check(case.attend(alone, plan_attention), together[only])
        start += lens[0]


def alone_with(inputs: cases.AttentionInputs, index: int, only: slice) -> cases.AttentionInputs:
    """One sequence of a batch, over the same memory."""
    rows = inputs.rows
    return cases.AttentionInputs(
        queries=inputs.queries[only],
        cache=inputs.cache,
        rows=type(rows)(
            positions=rows.positions[only],
            seats=torch.zeros(only.stop - only.start, dtype=torch.int32),
            block_tables=(inputs.block_table[index : index + 1],),
            host_query_lens=rows.host_query_lens[index : index + 1],
            host_context_lens=rows.host_context_lens[index : index + 1],
            host_prompt_lens=rows.host_prompt_lens[index : index + 1],
        ),
        block_table=inputs.block_table[index : index + 1],
        key_recipe=inputs.key_recipe,
        keys=inputs.keys[index : index + 1],
        values=inputs.values[index : index + 1],
    )


@given(
    case=small_cases(),
    stored=st.sampled_from(DTYPES),
    data=st.data(),
)
def test_writing_touches_its_slots_and_nothing_else(case: cases.Case, stored: torch.dtype, data: st.DataObject) -> None:
    cache = case.inputs(stored).cache
    for view in (cache.keys, cache.values):
        if view is not None:
            view.fill_(float("nan"))
    places = data.draw(
        st.lists(
            st.tuples(st.integers(0, cache.keys.shape[0] - 1), st.integers(0, case.tokens_per_block - 1)),
            unique=True,
            max_size=8,
        )
    )
    blocks, slots = (torch.tensor([place[axis] for place in places], dtype=torch.long) for axis in (0, 1))
    keys, values = (torch.randn(len(places), case.num_kv_heads, case.head_dim) for _ in range(2))
    write_keys_and_values(cache, keys, None if cache.values is None else values, blocks, slots)
    check_written(cache.keys, keys, places)
    if cache.values is not None:
        check_written(cache.values, values, places)
    assert whole_pages(cache).isfinite().sum() == (1 if cache.values is None else 2) * keys.numel()


def check_written(view: Tensor, rows: Tensor, places: list[tuple[int, int]]) -> None:
    for (block, slot), row in zip(places, rows, strict=True):
        assert torch.equal(view[block, slot], row.to(view.dtype))


def whole_pages(cache: LayerCache) -> Tensor:
    """Everything the cache's views are cut from, other layers' places included."""
    storage = cache.keys.untyped_storage()
    return torch.empty(0, dtype=cache.keys.dtype).set_(storage)


def test_no_rows_is_no_work() -> None:
    """A step may hold no row that wants logits; the upper layers then run on nothing."""
    case = cases.CASES[0]
    inputs = case.inputs(torch.float32)
    empty = alone_with(inputs, len(case.sequences), slice(0, 0))
    assert case.attend(empty, plan_attention).shape == (0, case.num_heads, case.head_dim)


def test_the_page_names_every_file_and_no_other() -> None:
    room = Path(cases.__file__).parent
    page = (room / "README.md").read_text()
    named = {Path(name).name for name in re.findall(r"`([\w/]+\.py)`", page)}
    outside = {"memory.py"}  # of the runner
    assert named - outside == {path.name for path in room.rglob("*.py")}
