"""Triton kernels of norm, activation, per-layer inputs and soft cap against their references.

In Triton's interpreter on small shapes, on a GPU on real ones as well.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import cases as geglu_cases
from facet.kernels.geglu import reference as geglu_reference
from facet.kernels.logits import cases as logits_cases
from facet.kernels.logits import reference as logits_reference
from facet.kernels.per_layer_input import cases as input_cases
from facet.kernels.per_layer_input import reference as input_reference
from facet.kernels.rms_norm import cases as norm_cases
from facet.kernels.rms_norm import reference as norm_reference
from facet.kernels.tolerance import Tolerance

pytest.importorskip("triton")
from facet.kernels.add_norm import triton as add_norm_triton
from facet.kernels.embedding import triton as embedding_triton
from facet.kernels.geglu import triton as geglu_triton
from facet.kernels.logits import triton as logits_triton
from facet.kernels.per_layer_input import triton as input_triton
from facet.kernels.rms_norm import triton as norm_triton

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter rounds to bfloat16 in its own way, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16
any_dtype = pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)

# Kernel and reference round at the same places: they differ by a step where a float32 value fell on another side.
STEP_FLOAT32 = Tolerance(absolute=1e-6, relative=3e-6, why="float32 sums in another order, approximate divisions")
STEP_HALF = Tolerance(absolute=2**-16, relative=2**-7, why="the last rounding may fall on the other side")
STEPS_HALF = Tolerance(absolute=2**-5, relative=2**-6, why="an inner rounding on the other side, near 4, moves the sum")
SUM_FLOAT32 = Tolerance(
    absolute=5e-6, relative=1e-5, why="where a sum cancels, the errors of its parts, near 5, remain"
)
GEGLU_FLOAT32 = Tolerance(
    absolute=8e-6,
    relative=1e-5,
    why="the reference's 1 + tanh is off by 2^-23 far below zero, and half the gate times up, up to 60, is its factor",
)


def step(dtype: torch.dtype) -> Tolerance:
    return STEP_FLOAT32 if dtype == torch.float32 else STEP_HALF


def check_few_differ(got: Tensor, expected: Tensor) -> None:
    """Rounding at another place than the reference would move a tenth of the results or more."""
    assert got.ne(expected).double().mean() <= 5e-3


NORM_SHAPES = (
    norm_cases.Case(shape=(3, 100), with_weight=True),
    norm_cases.Case(shape=(1, 1300), with_weight=False),
    norm_cases.Case(shape=(17, 3, 40), with_weight=True),
    norm_cases.Case(shape=(2, 3, 2, 5), with_weight=True),
    norm_cases.Case(shape=(64,), with_weight=True),
    norm_cases.Case(shape=(0, 64), with_weight=True),
)


@any_dtype
@pytest.mark.parametrize("case", [*NORM_SHAPES, *(norm_cases.CASES if ON_GPU else ())], ids=str)
def test_rms_norm(case: norm_cases.Case, dtype: torch.dtype) -> None:
    x, weight, eps = case.inputs(dtype, DEVICE)
    got = norm_triton.rms_norm(x, weight, eps)
    assert got.dtype == dtype
    assert got.shape == x.shape
    step(dtype).check(got, norm_reference.rms_norm(x, weight, eps))


@pytest.mark.parametrize("with_weight", [True, False])
def test_many_long_rows_read_their_weight_late(with_weight: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_triton, "FEW_ROWS", 2)
    assert norm_triton.row_tile(1030, 2).weights_ahead
    assert not norm_triton.row_tile(1030, 3).weights_ahead
    x, weight, eps = norm_cases.Case(shape=(3, 1030), with_weight=with_weight).inputs(torch.float32, DEVICE)
    STEP_FLOAT32.check(norm_triton.rms_norm(x, weight, eps), norm_reference.rms_norm(x, weight, eps))
    scaled, normed = norm_triton.router_norms(x, torch.full_like(x[0], 0.5), 0.25, weight, eps)
    STEP_FLOAT32.check(scaled, norm_reference.rms_norm(x, None, eps) / 8)
    assert normed is None or torch.equal(normed, norm_triton.rms_norm(x, weight, eps))


@any_dtype
@pytest.mark.parametrize("case", NORM_SHAPES, ids=str)
def test_router_norms(case: norm_cases.Case, dtype: torch.dtype) -> None:
    """Rounded after each product: in 16 bits what operations one by one leave, bit for bit."""

    def check(got: Tensor, expected: Tensor) -> None:
        if dtype == torch.float32:
            STEP_FLOAT32.check(got, expected)  # the kernel for both may sum in another order
        else:
            assert torch.equal(got, expected)

    x, weight, eps = case.inputs(dtype, DEVICE)
    scale = (torch.rand(x.shape[-1], device=DEVICE) + 0.5).to(dtype)
    factor = x.shape[-1] ** -0.5
    scaled, normed = norm_triton.router_norms(x, scale, factor, weight, eps)
    check(scaled, norm_triton.rms_norm(x, None, eps) * scale * factor)
    assert (normed is None) == (weight is None)
    if normed is not None:
        check(normed, norm_triton.rms_norm(x, weight, eps))
    step(dtype).check(scaled, norm_reference.router_norms(x, scale, factor, weight, eps)[0])


def test_rms_norm_of_heads_that_lie_among_others() -> None:
    """Queries in the output of one projection for queries, keys and values; the rest is NaN and must not matter."""
    projected = torch.full((5, 9 * 48), float("nan"), device=DEVICE)
    heads = projected.view(5, 9, 48)[:, 2:6]
    heads.copy_(torch.randn(5, 4, 48, device=DEVICE))
    weight = torch.rand(48, device=DEVICE) + 0.5
    got = norm_triton.rms_norm(heads, weight, 1e-6)
    assert got.is_contiguous()
    STEP_FLOAT32.check(got, norm_reference.rms_norm(heads, weight, 1e-6))
    rows = projected[:, 100:140].fill_(2.0)
    STEP_FLOAT32.check(norm_triton.rms_norm(rows, None, 1e-6), torch.ones_like(rows))
    # Rows whose elements do not touch.
    columns = torch.randn(48, 6, device=DEVICE).T
    STEP_FLOAT32.check(norm_triton.rms_norm(columns, weight, 1e-6), norm_reference.rms_norm(columns, weight, 1e-6))


def test_a_row_too_long_for_a_program_is_refused() -> None:
    with pytest.raises(AssertionError, match="rows of 16385 elements"):
        norm_triton.row_tile(16385, 1)


@any_dtype
@pytest.mark.parametrize("width", [1, 64, 1025, *(geglu_cases.WIDTHS if ON_GPU else ())])
def test_geglu(width: int, dtype: torch.dtype) -> None:
    gate_up = geglu_cases.gate_up(width, dtype, DEVICE)
    for some_rows in (gate_up, gate_up[:1], gate_up[:0]):
        got = geglu_triton.geglu(some_rows)
        expected = geglu_reference.geglu(some_rows)
        assert got.dtype == dtype
        (GEGLU_FLOAT32 if dtype == torch.float32 else STEPS_HALF).check(got, expected)


def test_geglu_rounds_twice() -> None:
    """Held against float64: far below zero the reference's own gelu, 1 + tanh in float32, is off by several steps."""
    gate_up = geglu_cases.gate_up(1025, HALF, DEVICE)
    gate, up = gate_up.chunk(2, dim=-1)
    check_few_differ(geglu_triton.geglu(gate_up), functional.gelu(gate.double(), approximate="tanh").to(HALF) * up)


def test_geglu_far_from_zero() -> None:
    """A closed gate is zero and an open one the identity, at any size: no overflow, no NaN."""
    gate = torch.tensor([[-1e4, -100.0, -20.0, 20.0, 100.0, 1e4]], device=DEVICE)
    got = geglu_triton.geglu(torch.cat((gate, torch.full_like(gate, 2.0)), dim=-1))
    assert got[0, :3].eq(0).all()
    torch.testing.assert_close(got[0, 3:], 2 * gate[0, 3:])


SMALL_INPUTS = (
    input_cases.Case(num_rows=1, num_layers=3, width=16),
    input_cases.Case(num_rows=5, num_layers=3, width=20),
)


@any_dtype
@pytest.mark.parametrize("case", [*input_cases.SMALL_LOOK_UPS, *(input_cases.LOOK_UPS if ON_GPU else ())], ids=str)
def test_mixing_what_is_looked_up(case: input_cases.LookUpCase, dtype: torch.dtype) -> None:
    context, token_ids, table, weight = case.inputs(dtype, DEVICE)
    options = dict(first_column=case.first_layer * case.width, token_scale=16.0, context_scale=0.3, eps=1e-6)
    expected = input_reference.mix_looked_up_inputs(context, token_ids, table, weight, **options)
    for ids in (token_ids, token_ids.int()):
        got = input_triton.mix_looked_up_inputs(context, ids, table, weight, **options)
        assert got.dtype == dtype
        (SUM_FLOAT32 if dtype == torch.float32 else STEPS_HALF).check(got, expected)


def test_the_reference_looks_up_then_mixes() -> None:
    case = input_cases.SMALL_LOOK_UPS[1]
    context, token_ids, table, weight = case.inputs(torch.float32)
    token = torch.stack(
        [table[id_ if id_ < case.vocab_size else 0, 2 * case.width : 5 * case.width] for id_ in token_ids.tolist()]
    ).view(context.shape)
    got = input_reference.mix_looked_up_inputs(
        context, token_ids, table, weight, first_column=2 * case.width, token_scale=4.0, context_scale=0.3, eps=1e-6
    )
    expected = input_reference.mix_per_layer_inputs(context, token * 4.0, weight, context_scale=0.3, eps=1e-6)
    assert torch.equal(got, expected)


def test_mixing_rounds_where_the_reference_rounds() -> None:
    case = input_cases.LookUpCase(num_rows=20, num_layers=4, width=96, vocab_size=50, first_layer=1)
    context, token_ids, table, weight = case.inputs(HALF, DEVICE)
    options = dict(first_column=case.width, token_scale=16.0, context_scale=2560**-0.5, eps=1e-6)
    check_few_differ(
        input_triton.mix_looked_up_inputs(context, token_ids, table, weight, **options),
        input_reference.mix_looked_up_inputs(context, token_ids, table, weight, **options),
    )


@any_dtype
@pytest.mark.parametrize("case", [*SMALL_INPUTS, *(input_cases.CASES if ON_GPU else ())], ids=str)
def test_gating(case: input_cases.Case, dtype: torch.dtype) -> None:
    """One layer's input is a slice of all layers'; the gate may be one too."""
    gates, inputs, _ = case.inputs(dtype, DEVICE)
    expected = input_reference.gate_per_layer_input(gates[:, 0], inputs[:, 2])
    for gate in (gates[:, 0], gates[:, 0].contiguous()):
        got = input_triton.gate_per_layer_input(gate, inputs[:, 2])
        assert got.dtype == dtype
        (SUM_FLOAT32 if dtype == torch.float32 else STEPS_HALF).check(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *([torch.bfloat16] if ON_GPU else [])], ids=str)
@pytest.mark.parametrize("cap", [*logits_cases.CAPS, 1.0])
def test_softcap(cap: float | None, dtype: torch.dtype) -> None:
    logits = logits_cases.logits(dtype, DEVICE)
    got = logits_triton.softcap(logits, cap)
    assert got.dtype == torch.float32
    logits_cases.FLOAT32.check(got, logits_reference.softcap(logits, cap))


def test_softcap_from_the_smallest_to_the_largest() -> None:
    sizes = torch.logspace(-6, 6, 500, device=DEVICE)
    values = torch.cat((sizes, -sizes, torch.tensor([0.0, float("inf"), -float("inf")], device=DEVICE)))
    got = logits_triton.softcap(values, 30.0)
    # Small logits keep their digits: what holds is the relative error.
    torch.testing.assert_close(got.double(), 30 * torch.tanh(values.double() / 30), rtol=2e-6, atol=0)
    assert got.abs().le(30.0).all()
    assert logits_triton.softcap(torch.tensor([float("nan"), 1.0], device=DEVICE), 30.0).isnan().tolist() == [
        True,
        False,
    ]


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_every_kernel_can_be_captured_in_a_graph() -> None:
    """And reads its inputs anew at every replay."""
    gate_up = geglu_cases.gate_up(512, HALF, DEVICE)
    context, ids, table, weight = input_cases.SMALL_LOOK_UPS[1].inputs(HALF, DEVICE)
    scales = dict(context_scale=0.3, eps=1e-6)
    ones = torch.ones(512, device=DEVICE)

    def run() -> tuple[Tensor | None, ...]:
        hidden = geglu_triton.geglu(gate_up)
        normed = norm_triton.rms_norm(hidden, None, 1e-6)
        new, for_next = add_norm_triton.add_norm(hidden, normed, ones, ones, 1e-6, ones[:1].to(HALF))
        total = add_norm_triton.sum_of_norms(hidden, ones, normed, ones, 1e-6)
        mixed = input_triton.mix_looked_up_inputs(
            context, ids, table, weight, first_column=0, token_scale=16.0, **scales
        )
        gated = input_triton.gate_per_layer_input(context[:, 0], mixed[:, 1])
        embedded = embedding_triton.embed(ids, table, 2.0)
        return new, for_next, total, gated, embedded, logits_triton.softcap(normed, 30.0)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    gate_up.copy_(geglu_cases.gate_up(512, HALF, DEVICE, seed=1))
    ids.copy_(ids.flip(0))
    graph.replay()
    for got, expected in zip(captured, run(), strict=True):
        assert torch.equal(got, expected)
