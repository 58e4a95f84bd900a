"""Products of warpgroups whose tiles come through a ring: against the reference, and on a GPU against other chains."""

from types import ModuleType
from typing import Any

import pytest
import torch

from facet.kernels.geglu.reference import geglu
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear import cases, reference
from facet.kernels.linear.config import choose_chain
from facet.kernels.linear.ring_config import (
    WarpgroupRing,
    choose_ring,
    choose_usual_ring,
    ring_of,
    warpgroup_ring_of,
)
from facet.kernels.per_layer_input.reference import gate_per_layer_input

pytest.importorskip("triton")
from tests.kernels.gluon_copies import nothing
from tests.kernels.gluon_emulator import emulated
from tests.kernels.gluon_units import UNITS
from tests.kernels.test_rings import run

ROOM = "facet.kernels.linear"
ON_HOPPER = torch.cuda.is_available() and runs_on_hopper(torch.device("cuda"))
DEVICE = "cuda" if ON_HOPPER else "cpu"
pytestmark = pytest.mark.skipif(torch.cuda.is_available() and not ON_HOPPER, reason="emulated where there is no GPU")
emulated_only = pytest.mark.skipif(ON_HOPPER, reason="about the emulator")

NAMES = {"let_next_start": nothing, "let_through": gate_per_layer_input, "wait_for_previous": nothing, **UNITS}
# More tiles than a ring holds, as many, fewer, one; not whole tiles; more outputs than whole programs.
SHAPES = (
    cases.Shape("long", 48, 1152),
    cases.Shape("ragged", 80, 1216),
    cases.Shape("as long", 32, 512),
    cases.Shape("short", 16, 64),
)
RINGS = (
    WarpgroupRing(16, 128, 4),
    WarpgroupRing(32, 128, 2),
    WarpgroupRing(16, 256, 3),
    WarpgroupRing(8, 128, 5),
)
# The same with more rows in a program.
TALL_RINGS = (
    WarpgroupRing(16, 128, 4, num_rows=16),
    WarpgroupRing(32, 256, 2, num_rows=16),
    WarpgroupRing(16, 64, 3, num_rows=32),
    WarpgroupRing(128, 64, 3, num_rows=64),
)
# And with numbers of outputs that are no power of two.
UNEVEN_RINGS = (
    WarpgroupRing(24, 128, 3),
    WarpgroupRing(48, 64, 4, num_rows=16),
    WarpgroupRing(160, 64, 3, num_rows=32),
)


ALL_RINGS = RINGS + TALL_RINGS + UNEVEN_RINGS


def kernels(**how: Any) -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.linear import warpgroup_ring

        return warpgroup_ring
    names = ("warpgroup_ring_parts", "warpgroup_ring_kernel", "warpgroup_ring")
    modules = ["facet.kernels.gluon_parts", *(f"{ROOM}.{name}" for name in names)]
    return emulated(modules, "facet.kernels.gluon_names", f"{ROOM}.language", f"{ROOM}.units", own=NAMES, **how)


OPERATIONS = ("linear", "geglu_linear", "gated_input_linear")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("ring", ALL_RINGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_products(shape: cases.Shape, ring: WarpgroupRing, operation: str) -> None:
    """Every shape with every ring and operation; any two of the three with each number of rows, between them."""
    chosen = (SHAPES.index(shape) + (ALL_RINGS).index(ring) + OPERATIONS.index(operation)) % 3
    num_rows = (ring.num_rows // 2 + 5 if ring in TALL_RINGS else 1, ring.num_rows, 2 * ring.num_rows + 3)[chosen]
    if operation == "geglu_linear" and ring.num_out % 16 != 0:
        pytest.skip("eight gates and eight ups take turns")
    x, weight = shape.inputs(num_rows, torch.bfloat16, DEVICE)
    given = torch.randn(num_rows, 3, shape.num_out, device=DEVICE).bfloat16()[:, 1]
    rings = kernels()
    assert rings.can_run(x, weight)
    got = run(rings, operation, x, weight, given, ring)
    products = reference.linear(x, weight)
    if operation == "linear":
        expected = products
    else:
        expected = geglu(products) if operation == "geglu_linear" else gate_per_layer_input(products, given)
    cases.HALF.check(got, expected)


@emulated_only
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("ring", [RINGS[0], RINGS[3], *TALL_RINGS[1:], UNEVEN_RINGS[0]], ids=str)
def test_whenever_copies_land(ring: WarpgroupRing, seed: int) -> None:
    x, weight = SHAPES[0].inputs(3, torch.bfloat16)
    cases.HALF.check(kernels(seed=seed).linear(x, weight, ring), reference.linear(x, weight))


def test_rows_that_lie_apart() -> None:
    x, weight = SHAPES[0].inputs(6, torch.bfloat16, DEVICE)
    rings, ring = kernels(), RINGS[0]
    expected = rings.linear(x, weight, ring)
    wide = torch.cat([x, x], dim=1)
    moved = torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x)
    for apart in (wide[:, : x.shape[1]], torch.cat([x, x[:, :1]], dim=1)[:, :-1], moved):
        assert torch.equal(rings.linear(apart, weight, ring), expected)
    assert torch.equal(rings.linear(x, torch.cat([weight, weight], dim=1)[:, : x.shape[1]], ring), expected)


def test_what_descriptors_cannot_tell() -> None:
    rings = kernels()
    x, weight = torch.zeros(1, 128, dtype=torch.bfloat16), torch.zeros(32, 128, dtype=torch.bfloat16)
    assert rings.can_run(x, weight)
    assert not rings.can_run(x.float(), weight.float())
    assert not rings.can_run(x[:, :96], weight[:, :96]), "not whole 64s of inputs"
    assert not rings.can_run(x, weight[:24]), "nor whole eights of gates and of ups"
    assert not rings.can_run(x, torch.zeros(32 * 128 + 1, dtype=torch.bfloat16)[1:].view(32, 128))
    assert not rings.can_run(x, torch.zeros(32, 132, dtype=torch.bfloat16)[:, :128])


@pytest.mark.parametrize("num_rows", [1, 8, 9, 16, 17, 32, 33, 64, 65, 128])
def test_rings_fit_into_a_multiprocessor(num_rows: int) -> None:
    for shape in cases.SERVED:
        ring = warpgroup_ring_of(num_rows, shape.num_out, shape.num_in)
        if ring is None:
            continue
        num_programs = 1 if shape.num_out <= ring.num_out * 132 else 2
        assert 2 <= ring.num_stages <= 10
        assert num_programs * (ring.num_bytes + 2048) <= 227 << 10
        if shape.operation == "geglu_linear":
            assert ring.num_out % 16 == 0, "eight gates and eight ups take turns"


def test_rings_as_timed() -> None:
    assert warpgroup_ring_of(8, 2560, 10240) == WarpgroupRing(40, 256, 8)
    assert warpgroup_ring_of(1, 256, 2560) == WarpgroupRing(16, 256, 10)
    assert warpgroup_ring_of(1, 2048, 2560) == WarpgroupRing(32, 256, 10)
    assert warpgroup_ring_of(1, 2560, 2048) == WarpgroupRing(32, 256, 8), "no more than there are tiles"
    assert warpgroup_ring_of(8, 1536, 12288) == WarpgroupRing(16, 512, 7)
    assert warpgroup_ring_of(8, 3840, 15360) == WarpgroupRing(32, 256, 10)
    assert warpgroup_ring_of(8, 5376, 21504) == WarpgroupRing(48, 256, 7)
    assert warpgroup_ring_of(8, 30720, 3840) == WarpgroupRing(128, 128, 3), "two programs of a multiprocessor"
    assert warpgroup_ring_of(16, 2560, 2048) == WarpgroupRing(32, 256, 8, num_rows=16)
    assert warpgroup_ring_of(32, 2560, 10240) == WarpgroupRing(40, 256, 5, num_rows=32)
    assert warpgroup_ring_of(64, 2560, 2048) == WarpgroupRing(32, 256, 4, num_rows=64)
    assert warpgroup_ring_of(64, 2560, 10240) == WarpgroupRing(40, 128, 8, num_rows=64)
    assert warpgroup_ring_of(64, 4224, 2816) == WarpgroupRing(64, 128, 6, num_rows=64)
    assert warpgroup_ring_of(64, 256, 2560) == WarpgroupRing(16, 256, 10), "rows are divided where programs are few"
    assert warpgroup_ring_of(100, 256, 2560) == WarpgroupRing(16, 256, 10, num_rows=16)
    assert warpgroup_ring_of(100, 2560, 256) == WarpgroupRing(64, 256, 2, num_rows=32)


def test_programs_are_as_even_as_tiles_allow() -> None:
    """One for each multiprocessor: of so many outputs, there are tiles that are sums of two powers of two."""
    assert warpgroup_ring_of(8, 5376, 8192) == WarpgroupRing(48, 256, 7)
    assert warpgroup_ring_of(8, 20480, 2560) == WarpgroupRing(160, 64, 7)
    assert warpgroup_ring_of(64, 24576, 1536) == WarpgroupRing(192, 64, 6, num_rows=64)
    assert warpgroup_ring_of(8, 12288, 1536) == WarpgroupRing(96, 128, 8)
    assert warpgroup_ring_of(8, 8704, 3840) == WarpgroupRing(80, 128, 9), "as many gates as ups, eight at a time"
    assert warpgroup_ring_of(8, 2816, 8192) == WarpgroupRing(48, 256, 7), "one for each pair of multiprocessors"


@pytest.mark.parametrize(
    ("num_out", "num_in", "least_rows", "most_rows"),
    [(256, 2560, 1, 128), (2560, 256, 9, 128), (3072, 2560, 1, 64), (20480, 2560, 1, 64), (5376, 21504, 1, 64)],
)
def test_where_they_are_chosen(num_out: int, num_in: int, least_rows: int, most_rows: int) -> None:
    """By numbers of rows. Below are rings of warps, beyond none."""
    for num_rows in (1, 8, 9, 16, 17, 32, 33, 64, 65, 128):
        chosen = choose_ring(num_rows, num_out, num_in)
        if num_rows < least_rows:
            assert chosen == ring_of(num_out, num_in)
        else:
            assert chosen == warpgroup_ring_of(num_rows, num_out, num_in)
            assert (chosen is not None) == (num_rows <= most_rows)
    assert choose_ring(0, num_out, num_in) is choose_ring(129, num_out, num_in) is None


def test_where_others_are_better() -> None:
    assert choose_ring(8, 43008, 5376) is choose_ring(16, 43008, 5376) is None, "tiles of chains divide it evenly"
    assert choose_ring(8, 262144, 2560) is None, "all read it as fast as memory gives it"
    for num_rows in (1, 8, 32):
        for num_out, num_in in ((3072, 2560), (3840, 15360), (2560, 256)):
            assert choose_usual_ring(num_rows, num_out, num_in) == choose_ring(num_rows, num_out, num_in)
        for num_out, num_in in ((5376, 21504), (1536, 12288)):
            assert choose_usual_ring(num_rows, num_out, num_in) is None, "cuBLAS splits long sums"


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize("num_rows", [1, 8, 13, 32, 33, 100, 128])
@pytest.mark.parametrize("shape", cases.SERVED, ids=lambda shape: shape.name)
def test_bits_are_those_of_a_chain(shape: cases.Shape, num_rows: int) -> None:
    from facet.kernels.linear import triton
    from facet.kernels.linear.telling_rows import telling_rows

    ring = warpgroup_ring_of(num_rows, shape.num_out, shape.num_in)
    if ring is None:
        pytest.skip("others are faster")
    _, weight = shape.inputs(num_rows, torch.bfloat16, DEVICE)
    x = telling_rows(weight, num_rows)
    given = torch.randn(num_rows, shape.num_out, device=DEVICE).bfloat16()
    chain = choose_chain(num_rows, shape.num_out, shape.num_in, 2)
    torch.cuda.synchronize()
    got, expected = (
        run(products, shape.operation, x, weight, given, tiles)
        for products, tiles in ((kernels(), ring), (triton, chain))
    )
    assert torch.equal(got, expected)


FAULTS = {
    "a product reads what has not landed": ("    mbarrier.wait(ready.index(slot), tile // ready.shape[0] & 1)\n", ""),
    "an operand changed under a product": (
        "wait(1, deps=(_start(sums, x, weights, ring, tile),",
        "wait(2, deps=(_start(sums, x, weights, ring, tile),",
    ),
    "other warps of the partition may still read": ("            thread_barrier()  # now", "            pass  # now"),
    "nobody arrives": ("num_own_out(weights) + rows_of_product(x)", "num_own_out(weights) + 24"),
    "a copy was never waited for": ("if next_tile < NUM_TILES:", "if next_tile < NUM_TILES + 1:"),
    "Tensor-likes are not close": ("copy_tile(x, [first_row, tile *", "copy_tile(x, [first_row, slot *"),
}


@emulated_only
@pytest.mark.parametrize("ring", [RINGS[0], TALL_RINGS[1], UNEVEN_RINGS[0]], ids=str)
@pytest.mark.parametrize("finding", FAULTS)
def test_planted_faults_are_found(finding: str, ring: WarpgroupRing) -> None:
    x, weight = SHAPES[0].inputs(3, torch.bfloat16)
    rings = kernels(change=FAULTS[finding])
    with pytest.raises(AssertionError, match=finding):
        cases.HALF.check(rings.linear(x, weight, ring), reference.linear(x, weight))
