"""Kernels that promise it: a row's bits depend neither on the rows beside it, nor on its place among them, nor on where
a run of rows was cut."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from facet.forward_batch import AttentionRows
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.kernels.geglu import invariant as activations
from facet.kernels.geglu import reference as plain_activations
from facet.kernels.linear import alike
from facet.kernels.linear import cases as linear_cases
from facet.kernels.linear import reference as plain_products
from facet.kernels.linear.alike import ANCHOR
from facet.kernels.moe import cases as moe_cases
from facet.kernels.moe import reference as plain_experts
from facet.kernels.moe import route
from facet.kernels.paged_attention import cases as attention_cases
from facet.kernels.paged_attention.invariant_reference import KEYS_PER_TILE

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = (
    *linear_cases.ODD,
    linear_cases.Shape("wide", 96, 640),
    linear_cases.Shape("deep", 8, 5376),
    linear_cases.Shape("router", 16, 4),
)
NUM_ROWS = 2 * ANCHOR + 5
# Some rows, in some order: alone, fewer than a block, a whole one, more.
CHOICES = ([7], [0, 36], [36, 20, 3], list(range(15, -1, -1)), list(range(5, 36)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_products(shape: linear_cases.Shape, dtype: torch.dtype) -> None:
    x, weight = shape.inputs(NUM_ROWS, dtype)
    given = torch.randn(NUM_ROWS, shape.num_out).to(dtype)
    together = BATCH_INVARIANT.linear(x, weight)
    opened = BATCH_INVARIANT.gated_input_linear(x, weight, given)
    linear_cases.TOLERANCES[dtype].check(together, plain_products.linear(x, weight))
    linear_cases.TOLERANCES[dtype].check(opened, plain_products.gated_input_linear(x, weight, given))
    for rows in CHOICES:
        assert torch.equal(BATCH_INVARIANT.linear(x[rows], weight), together[rows])
        assert torch.equal(BATCH_INVARIANT.gated_input_linear(x[rows], weight, given[rows]), opened[rows])


def test_sizes_of_blocks_that_differ_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that sums 1, 2 and 64 rows in an order of its own."""
    x, weight = linear_cases.ODD[1].inputs(300, torch.float32)

    def moody(x: Tensor, weight: Tensor) -> Tensor:
        product = (x.double()[:, None] * weight.double()).sum(-1).float()
        return product * (1 + 2**-20) if len(x) in (1, 2, 64) else product

    expected = moody(x, weight)
    monkeypatch.setattr(alike, "_found", {})
    monkeypatch.setattr(alike.functional, "linear", moody)
    assert alike.sizes_alike(weight) == (4, 8, 16, 32, 128, 256)
    for num_rows in (1, 2, 33, 64, 300):
        assert torch.equal(alike.linear(x[:num_rows], weight), expected[:num_rows])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_lie_alike_in_memory(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose sums begin with what comes before a multiple of 32 bytes."""

    def moody(x: Tensor, weight: Tensor) -> Tensor:
        product = (x.double()[:, None] * weight.double()).sum(-1).float()
        places = (x.data_ptr() + x.element_size() * x.stride(0) * torch.arange(len(x))) % 32
        return (product * (1 + places[:, None] * 2**-10)).to(x.dtype)

    x, weight = linear_cases.ODD[2].inputs(40, dtype)
    monkeypatch.setattr(alike, "_found", {})
    monkeypatch.setattr(alike.functional, "linear", moody)
    together = alike.linear(x, weight)
    for rows in CHOICES:
        assert torch.equal(alike.linear(x[rows], weight), together[rows])


def test_nothing_is_made_of_what_lies_behind_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that multiplies it by zero, in memory that was not cleared."""

    def greedy(x: Tensor, weight: Tensor) -> Tensor:
        assert x.stride(0) > x.shape[1], "rows of odd lengths are filled up"
        whole = x.as_strided((len(x), x.stride(0)), x.stride())
        return functional.linear(whole, functional.pad(weight, (0, x.stride(0) - x.shape[1])))

    x, weight = linear_cases.ODD[0].inputs(NUM_ROWS, torch.float32)
    monkeypatch.setattr(alike, "_found", {})
    monkeypatch.setattr(alike, "functional", SimpleNamespace(linear=greedy))
    monkeypatch.setattr(Tensor, "new_empty", lambda like, *sizes: like.new_full(sizes, torch.nan))
    got = alike.linear(x, weight)
    linear_cases.TOLERANCES[torch.float32].check(got, plain_products.linear(x, weight))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(16, 256), (128, 256), (896, 256), (5, 96), (40, 2048)], ids=str)
def test_another_order_is_noticed_behind_rounding(
    shape: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that sums a single row in another order, which few of its rounded results show."""

    def moody(x: Tensor, weight: Tensor) -> Tensor:
        terms = x.float()[:, None] * weight.float()
        parts = terms.unflatten(-1, (-1, 32)).sum(-1)
        order = range(parts.shape[-1]) if len(x) > 1 else reversed(range(parts.shape[-1]))
        total = torch.zeros(len(x), len(weight))
        for part in order:
            total = total + parts[..., part]
        return total.to(x.dtype)

    weight = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) / 16).to(dtype)
    monkeypatch.setattr(alike, "_found", {})
    monkeypatch.setattr(alike, "SIZES", (1, 2, ANCHOR))
    monkeypatch.setattr(alike.functional, "linear", moody)
    assert alike.sizes_alike(weight) == (2, ANCHOR)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [37, 640, 3000])
def test_activations(width: int, dtype: torch.dtype) -> None:
    gate_up = (2 * torch.randn(NUM_ROWS, 2 * width)).to(dtype)
    dense, sparse = activations.geglu(gate_up), activations.sparse_geglu(gate_up, 0.5)
    tolerance = linear_cases.TOLERANCES[dtype]
    tolerance.check(dense, plain_activations.geglu(gate_up))
    tolerance.check(sparse, plain_activations.sparse_geglu(gate_up, 0.5))
    for rows in CHOICES:
        assert torch.equal(activations.geglu(gate_up[rows]), dense[rows])
        assert torch.equal(activations.sparse_geglu(gate_up[rows], 0.5), sparse[rows])


def test_no_rows() -> None:
    """A step in which no row wants logits."""
    x, weight = linear_cases.ODD[0].inputs(0, torch.float32)
    assert BATCH_INVARIANT.linear(x, weight).shape == (0, len(weight))
    assert BATCH_INVARIANT.geglu_linear(x, weight[: len(weight) // 2 * 2]).shape == (0, len(weight) // 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_experts(dtype: torch.dtype) -> None:
    case = moe_cases.Case(num_rows=NUM_ROWS, hidden=96, num_experts=6, num_chosen=3, width=40)
    inputs = case.inputs(dtype)

    def run(rows: list[int]) -> Tensor:
        weights, chosen = route(inputs.router_logits[rows], case.num_chosen, inputs.expert_scale)
        return BATCH_INVARIANT.run_experts(inputs.x[rows], weights, chosen, inputs.gate_up, inputs.down)

    together = run(list(range(NUM_ROWS)))
    routed = route(inputs.router_logits, case.num_chosen, inputs.expert_scale)
    tolerance = moe_cases.FLOAT32 if dtype == torch.float32 else moe_cases.BFLOAT16
    tolerance.check(together, plain_experts.run_experts(inputs.x, *routed, inputs.gate_up, inputs.down))
    for rows in CHOICES:
        assert torch.equal(run(rows), together[rows])


ATTENTION = attention_cases.Case(
    name="two tiles and a half",
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    window=None,
    tokens_per_block=16,
    sequences=((5 * KEYS_PER_TILE // 2, 5 * KEYS_PER_TILE // 2), (3, 40)),
)
ATTENTION_CASES = (
    ATTENTION,
    replace(ATTENTION, name="window", window=20),
    replace(ATTENTION, name="window over a tile", window=KEYS_PER_TILE + 7, num_kv_heads=1),
    replace(ATTENTION, name="shared", num_rotated_pairs=8),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_attention(case: attention_cases.Case, dtype: torch.dtype) -> None:
    """The rows of one sequence in chunks cut anywhere, down to one row, in company and without."""
    inputs = case.inputs(dtype)

    def attend(first: int, last: int, *, arithmetic: Arithmetic = BATCH_INVARIANT) -> Tensor:
        """Rows first .. last - 1; those past the long sequence are the other's."""
        long_len, (short_len, short_context) = case.sequences[0][0], case.sequences[1]
        query_lens = (min(last, long_len) - first, max(0, last - long_len))
        context_lens = (min(last, long_len), short_context - short_len + query_lens[1])
        kept = [index for index, query_len in enumerate(query_lens) if query_len]
        rows = AttentionRows(
            positions=inputs.rows.positions[first:last],
            seats=inputs.rows.seats[first:last],
            block_tables=inputs.rows.block_tables,
            host_query_lens=tuple(query_lens[index] for index in kept),
            host_context_lens=tuple(context_lens[index] for index in kept),
            host_prompt_lens=(0,) * len(kept),
        )
        plan = arithmetic.plan_attention(
            rows,
            inputs.block_table,
            case.heads,
            window=case.window,
            tokens_per_block=case.tokens_per_block,
        )
        queries = inputs.queries[first:last]
        return plan.run(queries, inputs.cache, scale=case.scale, key_recipe=inputs.key_recipe)

    num_rows = len(inputs.queries)
    together = attend(0, num_rows)
    case.tolerance(dtype).check(together, attend(0, num_rows, arithmetic=USUAL))
    cuts = (0, 1, 2, 7, 8, 24, 127, 128, 129, 200, 303, num_rows)
    for first, last in pairwise(cuts):
        assert torch.equal(attend(first, last), together[first:last])
