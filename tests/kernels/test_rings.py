"""Products whose weight comes through a ring of tiles: against the reference, and on a GPU against chains in Triton."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear import cases, reference
from facet.kernels.linear.config import choose_chain
from facet.kernels.linear.ring_config import Ring, choose_ring, choose_usual_ring, ring_of
from facet.kernels.per_layer_input.reference import gate_per_layer_input

pytest.importorskip("triton")
from tests.kernels.gluon_copies import COPIES, COPYING
from tests.kernels.gluon_emulator import emulated
from tests.kernels.ordered_sums import product

ROOM = "facet.kernels.linear"
ON_HOPPER = torch.cuda.is_available() and runs_on_hopper(torch.device("cuda"))
DEVICE = "cuda" if ON_HOPPER else "cpu"
NAMES = {
    **COPYING,
    "let_through": lambda gate, up: gate_per_layer_input(gate, up),
    "mma_v2": lambda left, right, sums: sums + product(left, right),
}
# More inputs than a ring holds, as many, fewer; not whole tiles; more outputs than whole programs.
SHAPES = (
    cases.Shape("long", 48, 1152),
    cases.Shape("as long", 32, 512),
    cases.Shape("short", 40, 48),
    cases.Shape("ragged", 38, 592),
)
RINGS = (Ring(8, 128, 4), Ring(16, 128, 2), Ring(8, 256, 3, num_warps=2))


@pytest.fixture(scope="module")
def rings() -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.linear import ring

        return ring
    return emulated([f"{ROOM}.ring_kernel", f"{ROOM}.ring"], f"{ROOM}.language", own=NAMES)


def run(kernels: ModuleType, operation: str, x: Tensor, weight: Tensor, given: Tensor, config: object) -> Tensor:
    more = (given,) if operation == "gated_input_linear" else ()
    got: Tensor = getattr(kernels, operation)(x, weight, *more, config)
    return got


@pytest.mark.parametrize("operation", ["linear", "geglu_linear", "gated_input_linear"])
@pytest.mark.parametrize("num_rows", [1, 8, 19])
@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_products(rings: ModuleType, shape: cases.Shape, ring: Ring, num_rows: int, operation: str) -> None:
    x, weight = shape.inputs(num_rows, torch.bfloat16, DEVICE)
    given = torch.randn(num_rows, 3, shape.num_out, device=DEVICE).bfloat16()[:, 1]
    assert rings.can_run(x, weight)
    got = run(rings, operation, x, weight, given, ring)
    products = reference.linear(x, weight)
    if operation == "linear":
        expected = products
    else:
        expected = geglu(products) if operation == "geglu_linear" else gate_per_layer_input(products, given)
    cases.HALF.check(got, expected)
    assert not COPIES.groups, "every copy is waited for"


def test_rows_that_lie_apart(rings: ModuleType) -> None:
    x, weight = SHAPES[0].inputs(6, torch.bfloat16, DEVICE)
    for apart in (torch.cat([x, x], dim=1)[:, : x.shape[1]], torch.cat([x, x[:, :1]], dim=1)[:, :-1]):
        assert torch.equal(rings.linear(apart, weight, RINGS[0]), rings.linear(x, weight, RINGS[0]))


def test_what_cannot_be_copied_16_bytes_at_a_time(rings: ModuleType) -> None:
    x, weight = torch.zeros(1, 64, dtype=torch.bfloat16), torch.zeros(32, 64, dtype=torch.bfloat16)
    assert rings.can_run(x, weight)
    assert not rings.can_run(x.float(), weight.float())
    assert not rings.can_run(x[:, :40], weight[:, :40])
    assert not rings.can_run(x, torch.zeros(32 * 64 + 1, dtype=torch.bfloat16)[1:].view(32, 64))
    assert not rings.can_run(x, torch.zeros(32, 72, dtype=torch.bfloat16)[:, :64])


def test_rings_fit_into_a_multiprocessor() -> None:
    for shape in (*cases.E4B, *cases.LARGE, *cases.SPARSE):
        ring = ring_of(shape.num_out, shape.num_in)
        assert 2 <= ring.num_stages <= 10
        assert ring.tile_bytes * ring.num_stages <= 227 << 10
    assert ring_of(2560, 10240) == Ring(8, 128, 10), "few outputs, deep rings"
    assert ring_of(8192, 2816) == Ring(8, 128, 8)
    assert ring_of(20480, 2560) == Ring(8, 256, 3), "many outputs, wide tiles"
    assert ring_of(2560, 256) == Ring(8, 128, 2), "no more than there are tiles"


def test_where_rings_are_chosen() -> None:
    """Where inputs are few, and rows no more than a tile has."""
    for choose in (choose_ring, choose_usual_ring):
        assert choose(1, 2560, 256) == choose(8, 2560, 256) == ring_of(2560, 256)
        assert choose(0, 2560, 256) is None
        assert choose(9, 2560, 256) != ring_of(2560, 256)
    assert choose_ring(8, 262144, 2560) is None


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize("shape", [*cases.E4B, *cases.LARGE, *cases.SPARSE], ids=lambda shape: shape.name)
def test_bits_are_those_of_a_chain(rings: ModuleType, shape: cases.Shape, num_rows: int) -> None:
    from facet.kernels.linear import triton
    from facet.kernels.linear.telling_rows import telling_rows

    _, weight = shape.inputs(num_rows, torch.bfloat16, DEVICE)
    x = telling_rows(weight, num_rows)
    given = torch.randn(num_rows, shape.num_out, device=DEVICE).bfloat16()
    ring = ring_of(shape.num_out, shape.num_in)
    chain = choose_chain(num_rows, shape.num_out, shape.num_in, 2)
    torch.cuda.synchronize()
    got, expected = (
        run(kernels, shape.operation, x, weight, given, config) for kernels, config in ((rings, ring), (triton, chain))
    )
    assert torch.equal(got, expected)


@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
@pytest.mark.parametrize(
    "change",
    [
        ("wait_for_copies(STAGES - 2)", "wait_for_copies(STAGES - 1)"),
        ("weight_tiles, tile + STAGES,", "weight_tiles, tile + STAGES + 1,"),
        ("x_tiles.index((tile + 1) % STAGES)", "x_tiles.index(tile % STAGES)"),
        ("sums = mma_v2(left, right, sums)\n    wait", "wait"),
    ],
)
def test_faults_are_found(change: tuple[str, str]) -> None:
    rings = emulated([f"{ROOM}.ring_kernel", f"{ROOM}.ring"], f"{ROOM}.language", own=NAMES, change=change)
    x, weight = SHAPES[0].inputs(3, torch.bfloat16)
    with pytest.raises(AssertionError):
        cases.HALF.check(rings.linear(x, weight, RINGS[0]), reference.linear(x, weight))
