"""Products of rows of codes whose matrix comes through a ring of tiles: against the reference, and on a Hopper GPU
against the kernel in Triton."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear import cases
from facet.kernels.per_layer_input.reference import gate_per_layer_input
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.eight_bits import Ring, choose_config, choose_in_one_order, ring_of, row_codes
from facet.kernels.quantized.eight_bits.config import choose_ring
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.rounded_rows import MeasuredRows, RoundedRows

pytest.importorskip("triton")
from tests.kernels.gluon_copies import COPIES, COPYING, Shared
from tests.kernels.gluon_emulator import emulated
from tests.kernels.ordered_sums import product

ROOM = "facet.kernels.quantized.eight_bits"
ON_HOPPER = torch.cuda.is_available() and runs_on_hopper(torch.device("cuda"))
DEVICE = "cuda" if ON_HOPPER else "cpu"
ROUNDED = ("int8 token", "fp8 token")
# More inputs than a ring holds, as many, fewer; not whole tiles; more outputs than whole programs; fewer tiles than
# shares.
SIZES = ((128, 1152), (64, 512), (40, 48), (202, 592))
RINGS = (Ring(128, 4), Ring(256, 2), Ring(128, 2, shares=3), Ring(256, 3, shares=4))


@dataclass
class Product:
    """Computed when it is waited for, from what its operands hold then."""

    matrix: Shared
    x: Shared

    def finish(self) -> Tensor:
        left, right = self.matrix.numbers, self.x.numbers
        return left.int() @ right.int() if left.dtype == torch.int8 else product(left, right)


@dataclass
class Order:
    """What a product needs: copies waited for, fenced, then a barrier. And a copy, that nobody reads its place."""

    ahead: Sequence[str] = ()
    read: set[int] = field(default_factory=set)

    def wait_for_copies(self, num_outstanding: int) -> None:
        COPIES.wait(num_outstanding)
        self.ahead = ("fence", "barrier")

    def begin(self, _is_dependent: bool) -> None:
        """Another program."""
        self.read.clear()

    def step(self, name: str) -> None:
        if self.ahead and self.ahead[0] == name:
            self.ahead = self.ahead[1:]

    def fence(self) -> None:
        self.step("fence")

    def barrier(self) -> None:
        self.step("barrier")
        self.read.clear()

    def copy(self, target: Shared, *args: Any, **kwargs: Any) -> None:
        assert target.numbers.data_ptr() not in self.read, "a copy to where a product reads"
        COPIES.start(target, *args, **kwargs)

    def multiply(self, matrix: Shared, x: Shared, start: Tensor, *, use_acc: bool, is_async: bool) -> Product:
        assert is_async
        assert not use_acc, "sums of fp8 have few bits"
        assert not self.ahead, f"a product before a {self.ahead[0]}"
        self.read |= {matrix.numbers.data_ptr(), x.numbers.data_ptr()}
        return Product(matrix, x)


def wait_for_products(num_outstanding: int, deps: Sequence[Product]) -> Tensor:
    assert num_outstanding == 0
    (product,) = deps
    return product.finish()


def arrives_last(arrivals: Any, place: int, num_shares: int) -> bool:
    arrivals.numbers[place] += 1
    is_last = bool(arrivals.numbers[place] == num_shares)
    if is_last:
        arrivals.numbers[place] = 0
    return is_last


def codes_of(x: Tensor, scale: Tensor, dtype: torch.dtype, least: float, greatest: float) -> Tensor:
    steps = (x / torch.where(scale > 0, scale, 1.0)).clamp(least, greatest)
    return (steps.round() if dtype == torch.int8 else steps).to(dtype)


ORDER = Order()
NAMES = {
    **COPYING,
    "arrives_last": arrives_last,
    "codes_of": codes_of,
    "copy_to_shared": ORDER.copy,
    "fence_async_shared": ORDER.fence,
    "greater_magnitudes": lambda greatest, x: torch.maximum(greatest, x.float().abs()),
    "largest_magnitude": lambda x, axis: x.abs().amax(axis),
    "let_next_start": ORDER.begin,
    "let_through": lambda gate, up: gate_per_layer_input(gate, up),
    "scale_of": lambda greatest, divisor: greatest / divisor,
    "thread_barrier": ORDER.barrier,
    "wait_for_copies": ORDER.wait_for_copies,
    "warpgroup_mma": ORDER.multiply,
    "warpgroup_mma_wait": wait_for_products,
}


def emulate(change: tuple[str, str] | None = None) -> ModuleType:
    COPIES.started.clear()
    COPIES.groups.clear()
    return emulated([f"{ROOM}.ring_kernel", f"{ROOM}.ring"], f"{ROOM}.language", own=NAMES, change=change)


@pytest.fixture(scope="module")
def rings() -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.quantized.eight_bits import ring

        return ring
    return emulate()


def inputs(name: str, num_rows: int, num_out: int, num_in: int) -> tuple[RoundedRows, QuantizedMatrix]:
    x, matrix = plain_inputs(name, num_rows, num_out, num_in)
    codes = row_codes(matrix.format)
    scales = x.float().abs().amax(1, keepdim=True) / codes.divisor
    rounded = codes_of(x.float(), scales, codes.dtype, codes.least, codes.greatest)
    return RoundedRows(rounded, scales, torch.bfloat16), matrix


def plain_inputs(name: str, num_rows: int, num_out: int, num_in: int) -> tuple[Tensor, QuantizedMatrix]:
    case = Case(format=FORMATS[name], num_out=num_out, num_in=num_in)
    x = case.inputs(num_rows, torch.bfloat16, DEVICE)
    x[0, :7] = 1
    return x, case.matrix(DEVICE)


def exact(x: RoundedRows, matrix: QuantizedMatrix) -> Tensor:
    return ((x.codes.double() * x.scales.double()) @ matrix.values().double().T).to(x.dtype)


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products(rings: ModuleType, sizes: tuple[int, int], ring: Ring, name: str) -> None:
    """All sizes with all rings, and each of both with every number of rows."""
    num_rows = (1, 8, 19)[(SIZES.index(sizes) + RINGS.index(ring) + ROUNDED.index(name)) % 3]
    x, matrix = inputs(name, num_rows, *sizes)
    given = torch.randn(num_rows, 3, sizes[0], device=DEVICE).bfloat16()[:, 1]
    assert rings.can_run(x, matrix)
    expected = exact(x, matrix)
    cases.HALF.check(rings.linear(x, matrix, ring), expected)
    cases.HALF.check(rings.geglu_linear(x, matrix, ring), geglu(expected))
    gated = rings.gated_input_linear(x, matrix, given, ring)
    cases.HALF.check(gated, gate_per_layer_input(expected, given))
    assert not COPIES.groups, "every copy is waited for"


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("num_rows", [1, 9])
@pytest.mark.parametrize("ring", [RINGS[0], RINGS[2]], ids=str)
def test_activations_tell_their_largest_magnitudes(rings: ModuleType, ring: Ring, num_rows: int, name: str) -> None:
    x, matrix = inputs(name, num_rows, 140, 512)  # the last program has 6 columns of 32
    measured = rings.measured_geglu_linear(x, matrix, ring)
    assert isinstance(measured, MeasuredRows)
    assert torch.equal(measured.values, rings.geglu_linear(x, matrix, ring))
    largest = [part.abs().amax(1) for part in measured.values.float().split(32, dim=1)]
    assert torch.equal(measured.magnitudes, torch.stack(largest, dim=1))


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_row_that_is_rounded_on_its_way(rings: ModuleType, sizes: tuple[int, int], ring: Ring, name: str) -> None:
    """As if another kernel had rounded it, whether its magnitude is told or found."""
    x, matrix = plain_inputs(name, 1, *sizes)
    rounded, _ = inputs(name, 1, *sizes)
    given = torch.randn(1, sizes[0], device=DEVICE).bfloat16()
    parts = torch.stack([part.float().abs().amax(1) for part in x.split(32, dim=1)], dim=1)
    for row in (MeasuredRows(x, x), MeasuredRows(x, parts)):
        assert rings.can_run(row, matrix)
        assert torch.equal(rings.linear(row, matrix, ring), rings.linear(rounded, matrix, ring))
        gated = rings.gated_input_linear(row, matrix, given, ring)
        assert torch.equal(gated, rings.gated_input_linear(rounded, matrix, given, ring))
    zeros = torch.zeros_like(x)
    assert not rings.linear(MeasuredRows(zeros, zeros), matrix, ring).any()
    assert not COPIES.groups, "every copy is waited for"


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize(
    "change",
    [
        ("x + first * BLOCK_IN, row_codes", "x, row_codes"),
        ("put_row(row_codes, x_tiles, turn)\n        wait", "put_row(row_codes, x_tiles, turn - 1)\n        wait"),
        ("            sums *= row_scale\n", "            sums *= 1.0\n"),
    ],
)
@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
def test_faults_in_rounding_are_found(change: tuple[str, str], name: str) -> None:
    rings = emulate(change)
    x, matrix = plain_inputs(name, 1, *SIZES[0])
    rounded, _ = inputs(name, 1, *SIZES[0])
    assert not torch.equal(rings.linear(MeasuredRows(x, x), matrix, RINGS[2]), rings.linear(rounded, matrix, RINGS[2]))


@pytest.mark.parametrize("name", ROUNDED)
def test_rows_that_lie_apart(rings: ModuleType, name: str) -> None:
    x, matrix = inputs(name, 6, *SIZES[0])
    expected, bytes_of = rings.linear(x, matrix, RINGS[0]), x.codes.view(torch.uint8)
    for apart in (torch.cat([bytes_of] * 2, dim=1)[:, : x.codes.shape[1]], torch.cat([bytes_of, bytes_of[:, :1]], 1)):
        codes = apart[:, : x.codes.shape[1]].view(x.codes.dtype)
        assert torch.equal(rings.linear(x._replace(codes=codes), matrix, RINGS[0]), expected)
    some = rings.linear(x, matrix.rows(slice(16, 34)), RINGS[0])
    assert torch.equal(some, expected[:, 16:34])


@pytest.mark.parametrize("name", ROUNDED)
def test_a_row_is_the_same_in_company(rings: ModuleType, name: str) -> None:
    x, matrix = inputs(name, 11, *SIZES[3])
    together = rings.linear(x, matrix, RINGS[2])
    for row in (0, 7, 10):
        alone = RoundedRows(x.codes[row : row + 1], x.scales[row : row + 1], x.dtype)
        assert torch.equal(rings.linear(alone, matrix, RINGS[2])[0], together[row])


def test_what_cannot_be_copied_16_bytes_at_a_time(rings: ModuleType) -> None:
    x, matrix = inputs("int8 token", 1, 32, 64)
    assert rings.can_run(x, matrix)
    assert not rings.can_run(inputs("fp8 token", 1, 32, 64)[0], matrix), "other codes"
    assert not rings.can_run(*inputs("int8 token", 1, 32, 40))
    assert not rings.can_run(x, replace(matrix, codes=torch.zeros(32, 72, dtype=torch.int8)[:, :64]))
    assert not rings.can_run(x, replace(matrix, codes=torch.zeros(32 * 64 + 1, dtype=torch.int8)[1:].view(32, 64)))


def test_rings_fit_into_a_multiprocessor() -> None:
    for shape in (*cases.E4B, *cases.LARGE, *cases.SPARSE):
        ring = ring_of(shape.num_out, shape.num_in)
        num_programs = min(6, -(-shape.num_out // 64) * ring.shares / 132)
        assert 2 <= ring.num_stages <= 10
        assert ring.num_bytes * num_programs <= 192 << 10
        assert ring.num_bytes <= 227 << 10
    assert ring_of(43008, 5376) == Ring(128, 3), "many programs of few tiles"
    assert ring_of(5376, 21504) == Ring(256, 5, shares=3), "few outputs, deep rings"
    assert ring_of(2560, 256) == Ring(256, 2), "no more than there are tiles"


def test_where_rings_are_chosen() -> None:
    chosen = [choose_config(num_rows, 5376, 21504, "fp8") for num_rows in (1, 8, 9)]
    assert [each and each.ring for each in chosen] == [ring_of(5376, 21504)] * 2 + [None]
    assert choose_ring(1, 43008, 5376) is None, "more programs than have room for deep rings"
    for sums in ("exact", "fp8", "widened"):
        config = choose_in_one_order(1, 5376, 21504, sums)
        assert config is not None
        assert config.ring == ring_of(5376, 21504), "sums are exact, or of the same tiles with any number of rows"


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize("shape", [*cases.E4B[:-1], *cases.LARGE[:-1]], ids=lambda shape: shape.name)
def test_results_are_those_of_triton(rings: ModuleType, shape: cases.Shape, num_rows: int, name: str) -> None:
    """Of integers bit for bit. Those of fp8 are sums of the same tiles if both have tiles as wide."""
    from facet.kernels.quantized.eight_bits import triton

    x, matrix = inputs(name, num_rows, shape.num_out, shape.num_in)
    more: tuple[Tensor, ...] = ()
    if shape.operation == "gated_input_linear":
        more = (torch.randn(num_rows, shape.num_out, device=DEVICE).bfloat16(),)
    tiles = choose_config(num_rows, shape.num_out, shape.num_in, "fp8" if name == "fp8 token" else "exact")
    assert tiles is not None
    torch.cuda.synchronize()
    got = getattr(rings, shape.operation)(x, matrix, *more, ring_of(shape.num_out, shape.num_in))
    expected = getattr(triton, shape.operation)(x, matrix, *more, tiles)
    if name == "int8 token":
        assert torch.equal(got, expected)
    else:
        cases.HALF.check(got, expected)


@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize(
    "change",
    [
        ("wait_for_copies(STAGES - 2)", "wait_for_copies(STAGES - 1)"),
        ("matrix_tiles, turn + (STAGES - 1),", "matrix_tiles, turn + STAGES,"),
        ("x_tiles.index(stage)", "x_tiles.index((turn + 1) % STAGES)"),
        ("        fence_async_shared()\n        thread_barrier()", "        thread_barrier()"),
        ("        fence_async_shared()\n        thread_barrier()", "        fence_async_shared()"),
        ("column = first * BLOCK_IN +", "column ="),
        ("sums_of_tile + share *", "sums_of_tile + 0 *"),
        ("local // 16 * 8 + local % 8\n        return", "local // 2\n        return"),
    ],
)
def test_faults_are_found(change: tuple[str, str], name: str) -> None:
    rings = emulate(change)
    x, matrix = inputs(name, 3, *SIZES[0])
    expected = geglu(exact(x, matrix))

    def check() -> None:
        for ring in (RINGS[0], RINGS[2]):
            cases.HALF.check(rings.geglu_linear(x, matrix, ring), expected)

    with pytest.raises(AssertionError):
        check()
