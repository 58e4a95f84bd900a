"""Products that make their row themselves: against the reference, and on a GPU against the kernels that do it apart."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.add_norm import cases as norm_cases
from facet.kernels.add_norm import reference as norms
from facet.kernels.geglu.reference import geglu
from facet.kernels.linear import cases, normed_rings, reference
from facet.kernels.linear.ring_config import WarpgroupRing, normed_ring_of, warpgroup_ring_of
from facet.kernels.linear.row_to_make import RowToMake
from facet.kernels.per_layer_input.reference import gate_per_layer_input

pytest.importorskip("triton")
from tests.kernels.gluon_emulator import emulated
from tests.kernels.test_warpgroup_rings import DEVICE, NAMES, ON_HOPPER, ROOM, emulated_only

pytestmark = pytest.mark.skipif(torch.cuda.is_available() and not ON_HOPPER, reason="emulated where there is no GPU")

# As wide as parts of a row, or not; of 8 warps, or 16; outputs that are whole programs, or not.
SHAPES = (
    cases.Shape("two parts", 48, 2048),
    cases.Shape("a bit of the second", 80, 1088),
    cases.Shape("three parts", 32, 2560),
    cases.Shape("four parts", 16, 3840),
)
RINGS = (
    WarpgroupRing(16, 128, 4),
    WarpgroupRing(32, 256, 2),
    WarpgroupRing(48, 64, 5),
    WarpgroupRing(24, 128, 3),
)
OPERATIONS = ("linear", "geglu_linear", "gated_input_linear")


def kernels(**how: Any) -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.linear import normed_ring

        return normed_ring
    names = ("warpgroup_ring_parts", "warpgroup_ring_kernel", "warpgroup_ring", "normed_ring_kernel", "normed_ring")
    modules = ["facet.kernels.gluon_parts", *(f"{ROOM}.{name}" for name in names)]
    return emulated(modules, "facet.kernels.gluon_names", f"{ROOM}.language", f"{ROOM}.units", own=NAMES, **how)


def row_of(width: int, *, has_norm: bool = True, has_scale: bool = True, seed: int = 0) -> RowToMake:
    inputs = norm_cases.Case(num_rows=1, width=width).inputs(torch.bfloat16, DEVICE, seed=seed)
    return RowToMake(
        residual=inputs.residual,
        update=inputs.update,
        update_weight=inputs.update_weight,
        next_weight=inputs.next_weight if has_norm else None,
        eps=norm_cases.EPS,
        scale=inputs.scale if has_scale else None,
        stream=torch.full_like(inputs.residual, torch.nan),
    )


def made(row: RowToMake, add_norm: Any = norms.add_norm) -> tuple[Tensor, Tensor]:
    """The stream, and what the product takes."""
    arguments = (row.residual, row.update, row.update_weight, row.next_weight, row.eps, row.scale)
    stream, normed = add_norm(*arguments)
    return stream, stream if normed is None else normed


def weight_of(shape: cases.Shape) -> Tensor:
    return shape.inputs(1, torch.bfloat16, DEVICE)[1]


def run(products: ModuleType, operation: str, row: Any, weight: Tensor, given: Tensor, *ring: Any) -> Tensor:
    more = (given,) if operation == "gated_input_linear" else ()
    got: Tensor = getattr(products, operation)(row, weight, *more, *ring)
    return got


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_products(shape: cases.Shape, ring: WarpgroupRing, operation: str) -> None:
    if operation == "geglu_linear" and ring.num_out % 16 != 0:
        pytest.skip("eight gates and eight ups take turns")
    index = SHAPES.index(shape) + RINGS.index(ring)
    weight, row = weight_of(shape), row_of(shape.num_in, has_norm=index % 3 > 0, has_scale=index % 2 > 0)
    given = torch.randn(1, shape.num_out, device=DEVICE).bfloat16()
    got = run(kernels(), operation, row, weight, given, ring)
    stream, x = made(row)
    norm_cases.BFLOAT16.check(row.stream, stream)
    products = reference.linear(x, weight)
    if operation == "linear":
        expected = products
    else:
        expected = geglu(products) if operation == "geglu_linear" else gate_per_layer_input(products, given)
    if row.next_weight is None:  # the stream itself, a few times as large
        torch.testing.assert_close(got, expected, atol=0.25, rtol=2**-5)
    else:
        cases.HALF.check(got, expected)


@emulated_only
@pytest.mark.parametrize("seed", range(1, 4))
def test_whenever_copies_land(seed: int) -> None:
    weight, row = weight_of(SHAPES[0]), row_of(SHAPES[0].num_in)
    got = kernels(seed=seed).linear(row, weight, RINGS[1])
    cases.HALF.check(got, reference.linear(made(row)[1], weight))


@pytest.mark.parametrize("shape", cases.SERVED, ids=lambda shape: shape.name)
def test_rings_fit_into_a_multiprocessor(shape: cases.Shape) -> None:
    ring = normed_ring_of(shape.num_out, shape.num_in)
    if ring is None:
        return
    usual = warpgroup_ring_of(1, shape.num_out, shape.num_in)
    assert usual is not None
    assert (ring.num_out, ring.block_in) == (usual.num_out, usual.block_in)
    assert 4 <= ring.num_stages <= usual.num_stages
    row_bytes = 16 * 1024 * -(-shape.num_in // 1024)
    num_programs = 1 if shape.num_out <= ring.num_out * 132 else 2
    assert num_programs * (ring.num_bytes - 2 * 8 * ring.block_in * ring.num_stages + row_bytes + 1024) <= 227 << 10


def test_where_they_are_chosen() -> None:
    assert normed_ring_of(20480, 2560) == WarpgroupRing(160, 64, 7)
    assert normed_ring_of(3072, 2560) == WarpgroupRing(32, 256, 10)
    assert normed_ring_of(256, 2560) == WarpgroupRing(16, 256, 10)
    assert normed_ring_of(43008, 5376) is None, "threads have 16 columns of such a row"
    assert normed_ring_of(16384, 5376) is None
    assert normed_ring_of(30720, 3840) is None, "two programs of a multiprocessor would have no room"
    assert normed_ring_of(2560, 256) is None, "rows are worked on several at a time"
    assert normed_ring_of(262144, 2560) is None


def test_on_a_processor_norms_make_their_rows() -> None:
    row, weight = row_of(2560), torch.zeros(3072, 2560, dtype=torch.bfloat16)
    left = normed_rings.row_left_to_product(
        weight, row.residual.cpu(), row.update, row.update_weight, row.next_weight, row.eps, None
    )
    assert left is None


@emulated_only
@pytest.mark.parametrize(
    ("finding", "change"),
    [
        ("stored numbers reach a product without a fence", ("    fence_async_shared()\n", "")),
        ("a product reads what has not landed", ("part * NUM_UNITS, NUM_UNITS)", "0, NUM_UNITS)")),
        ("Tensor-likes are not close", ("inverse = _inverse_rms(values, eps, NUM_IN)", "pass")),
        ("Tensor-likes are not close", ("parts[2]", "parts[0]")),
        ("Tensor-likes are not close", ("value = _rounded(value * stream_factor, dtype)", "pass")),
    ],
)
def test_planted_faults_are_found(finding: str, change: tuple[str, str]) -> None:
    shape = SHAPES[2]
    weight, row = weight_of(shape), row_of(shape.num_in)
    with pytest.raises(AssertionError, match=finding):
        _check(kernels(change=change), row, weight)


def _check(products: ModuleType, row: RowToMake, weight: Tensor) -> None:
    stream, x = made(row)
    cases.HALF.check(products.linear(row, weight, RINGS[0]), reference.linear(x, weight))
    norm_cases.BFLOAT16.check(row.stream, stream)


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("has_scale", [True, False])
@pytest.mark.parametrize("shape", cases.SERVED, ids=lambda shape: shape.name)
def test_bits_are_those_of_a_norm_and_a_product(shape: cases.Shape, has_scale: bool, has_norm: bool) -> None:
    from facet.kernels.add_norm import invariant_add_norm
    from facet.kernels.linear import warpgroup_ring

    weight = weight_of(shape)
    given = torch.randn(1, shape.num_out, device=DEVICE).bfloat16()
    for seed in range(3):
        like = row_of(shape.num_in, has_norm=has_norm, has_scale=has_scale, seed=seed)
        arguments = (like.residual, like.update, like.update_weight, like.next_weight, like.eps, like.scale)
        row = normed_rings.row_left_to_product(weight, *arguments)
        if row is None:
            assert normed_ring_of(shape.num_out, shape.num_in) is None
            pytest.skip("others are faster")
        got = run(normed_rings, shape.operation, row, weight, given)
        stream, x = made(row, invariant_add_norm)
        usual = warpgroup_ring_of(1, shape.num_out, shape.num_in)
        assert torch.equal(row.stream, stream)
        assert torch.equal(got, run(warpgroup_ring, shape.operation, x, weight, given, usual))
