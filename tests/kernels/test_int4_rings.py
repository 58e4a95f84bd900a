"""Products with shuffled 4-bit codes that come through a ring: against the reference, and bit for bit against the
kernel for few rows. Emulated on a CPU, as they are on a Hopper GPU."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear import cases
from facet.kernels.quantized import int4
from facet.kernels.quantized.cases import Case
from facet.kernels.quantized.int4.tuning import Ring, Tuning, choose_tuning, most_ring_rows, ring_of

pytest.importorskip("triton")
from tests.kernels.gluon_copies import COPIES, Shared, allocate_shared_memory
from tests.kernels.gluon_emulator import emulated
from tests.kernels.int4_machine import LANGUAGES, MEMORY, NAMES
from tests.kernels.test_int4 import FP4, Q4_K, ROOM, SHUFFLED, expected, format_of

ON_HOPPER = torch.cuda.is_available() and runs_on_hopper(torch.device("cuda"))
DEVICE = "cuda" if ON_HOPPER else "cpu"
OPERATIONS = ("linear", "geglu_linear", "gated_input_linear")


def ring_with(
    tiles: int, out_warps: int, in_warps: int, stages: int, *, is_ahead: bool = False, row_tiles: int = 1
) -> Ring:
    return Ring(
        tiles=tiles,
        num_out_warps=out_warps,
        num_in_warps=in_warps,
        num_stages=stages,
        is_ahead=is_ahead,
        row_tiles=row_tiles,
    )


# More turns than a ring holds, as many, fewer; one tile for a warp, and two.
RINGS = (
    ring_with(2, 2, 2, 4),
    ring_with(1, 2, 2, 2, is_ahead=True),
    ring_with(1, 1, 8, 4, is_ahead=True),
    ring_with(1, 1, 4, 6),
    ring_with(2, 4, 1, 8),
    ring_with(1, 1, 16, 3),
    ring_with(2, 2, 4, 5, is_ahead=True),
)
RINGS_OF_16 = (
    ring_with(4, 1, 2, 4, row_tiles=2),
    ring_with(2, 2, 2, 2, is_ahead=True, row_tiles=2),
    ring_with(1, 1, 8, 4, is_ahead=True, row_tiles=2),
    ring_with(2, 1, 4, 6, row_tiles=2),
    ring_with(1, 4, 1, 8, row_tiles=2),
)


@dataclass
class Order:
    """What a read needs: copies waited for, then a barrier. And a copy, that nobody reads its place."""

    is_met: bool = True
    read: set[int] = field(default_factory=set)

    def wait_for_copies(self, num_outstanding: int) -> None:
        COPIES.wait(num_outstanding)
        self.is_met = False

    def begin(self, _is_dependent: bool) -> None:
        """Another program."""
        self.is_met = True
        self.read.clear()

    def barrier(self) -> None:
        MEMORY.barrier()
        self.is_met = True
        self.read.clear()

    def copy(self, target: Shared, *args: Any, **kwargs: Any) -> None:
        assert target.numbers.data_ptr() not in self.read, "a copy to where others may still read"
        COPIES.start(target, *args, **kwargs)


ORDER = Order()


class Watched(Shared):
    def index(self, index: int) -> "Watched":
        return Watched(self.numbers[index])

    def load(self, layout: object) -> Tensor:
        assert ORDER.is_met, "others' copies may be on their way"
        ORDER.read.add(self.numbers.data_ptr())
        return super().load(layout)

    def slice(self, start: int, length: int, dim: int) -> "Watched":
        """The first begins where all of a turn's tiles do, so that a copy over any is found."""
        return Watched(self.numbers.narrow(dim, start, length))


def allocate(dtype: torch.dtype, shape: Sequence[int], layout: object) -> Watched:
    return Watched(allocate_shared_memory(dtype, shape, layout).numbers)


def emulate(change: tuple[str, str] | None = None) -> ModuleType:
    COPIES.started.clear()
    COPIES.groups.clear()
    names = {
        **NAMES,
        "allocate_shared_memory": allocate,
        "copy_to_shared": ORDER.copy,
        "let_next_start": ORDER.begin,
        "thread_barrier": ORDER.barrier,
        "wait_for_copies": ORDER.wait_for_copies,
    }
    modules = [
        f"{SHUFFLED}.tiles",
        f"{SHUFFLED}.rings",
        f"{ROOM}.tiles",
        f"{ROOM}.ring_kernel",
        f"{ROOM}.ring_16_kernel",
        f"{ROOM}.ring",
    ]
    return emulated(modules, *LANGUAGES, own=names, change=change)


@pytest.fixture(scope="module")
def rings() -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.quantized.int4 import ring

        return ring
    return emulate()


@pytest.fixture(scope="module")
def few_rows() -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.quantized.int4 import few_rows

        return few_rows
    return emulated(
        [f"{SHUFFLED}.tiles", f"{ROOM}.tiles", f"{ROOM}.few_rows_kernel", f"{ROOM}.few_rows"], *LANGUAGES, own=NAMES
    )


def product(
    room: ModuleType, operation: str, x: Tensor, matrix: int4.ShuffledInt4, given: Tensor, cut: Ring | Tuning | None
) -> Tensor:
    result: Tensor = room.multiply(x, matrix, given if operation == "gated_input_linear" else None, cut)
    return result


def tuning_of(ring: Ring) -> Tuning:
    return Tuning(tiles=1, num_out_warps=ring.num_out_warps, num_in_warps=ring.num_in_warps)


# Inputs that go through a ring in another way each.
INPUTS = (
    ("linear", Case(format=format_of(64), num_in=1152), 5),  # an odd number of turns
    ("linear", Case(format=format_of(None), num_in=352), 8),  # a block that is not whole
    ("geglu_linear", Case(format=format_of(32), num_in=2048), 3),
    ("gated_input_linear", Case(format=format_of(32), num_in=128), 7),  # one block
    ("geglu_linear", Case(format=Q4_K, num_in=1152), 6),  # half of what shares a coarse scale
)
OTHERS = (
    ("linear", Case(format=format_of(32)), 1),
    ("linear", Case(format=format_of(128, "float16"), num_out=80), 8),  # tiles that are not there
    ("geglu_linear", Case(format=format_of(128), num_in=640), 2),
    ("geglu_linear", Case(format=FP4, num_in=656), 6),
    ("linear", Case(format=Q4_K, num_out=80, num_in=480), 3),
)


@pytest.mark.parametrize(
    ("ring", "operation", "case", "num_rows"),
    [
        *((ring, *each) for ring in RINGS for each in INPUTS),
        # Each of the others with half of the rings, and each ring with two or three of them.
        *((ring, *each) for i, ring in enumerate(RINGS) for j, each in enumerate(OTHERS) if (i + j) % 2 == 0),
    ],
    ids=str,
)
def test_products(
    rings: ModuleType, few_rows: ModuleType, ring: Ring, operation: str, case: Case, num_rows: int
) -> None:
    """As the reference, and the same bits as from the kernel for few rows."""
    check(rings, few_rows, operation, case, num_rows, ring)


@pytest.mark.parametrize("ring", RINGS_OF_16, ids=str)
@pytest.mark.parametrize(
    ("operation", "case", "num_rows"),
    [
        ("linear", Case(format=format_of(32)), 16),
        ("linear", Case(format=format_of(64), num_in=1152), 9),  # an odd number of turns
        ("linear", Case(format=format_of(128, "float16"), num_out=80), 13),  # a program that goes back
        ("linear", Case(format=format_of(None), num_in=352), 16),  # a block that is not whole
        ("geglu_linear", Case(format=format_of(32), num_in=2048), 11),
        ("gated_input_linear", Case(format=format_of(32), num_in=128), 15),  # one block
        ("geglu_linear", Case(format=format_of(128), num_in=640), 1),
    ],
)
def test_products_of_16(
    rings: ModuleType, few_rows: ModuleType, operation: str, case: Case, num_rows: int, ring: Ring
) -> None:
    check(rings, few_rows, operation, case, num_rows, ring)


def check(rings: ModuleType, few_rows: ModuleType, operation: str, case: Case, num_rows: int, ring: Ring) -> None:
    plain = case.matrix(DEVICE)
    matrix = int4.shuffle(plain, is_gated=operation == "geglu_linear")
    ring = replace(ring, has_minimums=matrix.has_minimums)
    x = case.inputs(num_rows + 1, torch.bfloat16, DEVICE)[1:]
    given = torch.randn(num_rows, 3, case.num_out, dtype=torch.bfloat16, device=DEVICE)[:, 1]
    assert rings.can_run(x, matrix)
    got = product(rings, operation, x, matrix, given, ring)
    assert not COPIES.groups, "every copy is waited for"
    torch.testing.assert_close(got, expected(operation, x, plain, given), atol=1e-2, rtol=2**-6)
    assert torch.equal(got, product(few_rows, operation, x, matrix, given, tuning_of(ring)))


def test_a_row_is_the_same_in_company(rings: ModuleType) -> None:
    case = Case(format=format_of(32), num_out=64, num_in=1152)
    matrix, x = int4.shuffle(case.matrix(DEVICE)), case.inputs(16, torch.bfloat16, DEVICE)
    together, of_16 = rings.multiply(x[:8], matrix, None, RINGS[2]), rings.multiply(x, matrix, None, RINGS_OF_16[2])
    for row in (0, 3, 7):
        assert torch.equal(rings.multiply(x[row : row + 1], matrix, None, RINGS[2])[0], together[row])
    for row in (8, 15):
        assert torch.equal(rings.multiply(x[row : row + 1], matrix, None, RINGS[2])[0], of_16[row])
    assert torch.equal(of_16[:8], together)


def test_rows_that_lie_apart(rings: ModuleType) -> None:
    case = Case(format=format_of(32))
    matrix, x = int4.shuffle(case.matrix(DEVICE)), case.inputs(4, torch.bfloat16, DEVICE)
    right = rings.multiply(x, matrix, None, RINGS[0])
    assert torch.equal(rings.multiply(torch.cat([x, x], dim=1)[:, : x.shape[1]], matrix, None, RINGS[0]), right)
    assert torch.equal(rings.multiply(torch.cat([x, x[:, :1]], dim=1)[:, : x.shape[1]], matrix, None, RINGS[0]), right)


def test_what_goes_another_way(rings: ModuleType) -> None:
    case = Case(format=format_of(32))
    matrix, x = int4.shuffle(case.matrix(DEVICE)), case.inputs(17, torch.bfloat16, DEVICE)
    assert rings.can_run(x[:16], matrix)
    assert not rings.can_run(x, matrix), "more rows than a program takes"
    assert not rings.can_run(x[:0], matrix)
    assert not rings.can_run(x[:8].half(), matrix)
    assert not rings.can_run(x[:8], int4.shuffle(Case(format=format_of(32, zeros=True)).matrix(DEVICE)))
    for format in (FP4, Q4_K):
        assert rings.can_run(x[:8], int4.shuffle(Case(format=format).matrix(DEVICE)))
        assert not rings.can_run(x[:9], int4.shuffle(Case(format=format).matrix(DEVICE)))
    shifted = torch.zeros(matrix.codes.numel() + 1, dtype=torch.int32, device=DEVICE)[1:].view_as(matrix.codes)
    assert not rings.can_run(x[:8], replace(matrix, codes=shifted))


def test_where_rings_are_chosen(rings: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(format=format_of(32))
    x = case.inputs(17, torch.bfloat16, DEVICE)
    monkeypatch.setattr(int4, "runs_on_hopper", lambda _device: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: (9, 0))

    def name_for(num_rows: int, most_few_rows: float, *, zeros: bool = False) -> str:
        matrix = int4.shuffle(Case(format=format_of(32, zeros=zeros)).matrix(DEVICE))
        return vars(int4.choose_kernels(x[:num_rows], matrix, most_few_rows))["__name__"].rpartition(".")[2]

    assert [name_for(rows, int4.MAX_FEW_ROWS) for rows in (1, 8, 9)] == ["ring", "ring", "wide"]
    assert [name_for(rows, math.inf) for rows in (1, 9, 16, 17)] == [*3 * ["ring"], "few_rows"], "same bits"
    assert name_for(1, int4.MAX_FEW_ROWS, zeros=True) == "few_rows"
    for format in (FP4, Q4_K):
        matrix = int4.shuffle(Case(format=format).matrix(DEVICE))
        for most_few_rows, last in ((int4.MAX_FEW_ROWS, "wide"), (math.inf, "few_rows")):
            chosen = [int4.choose_kernels(x[:num_rows], matrix, most_few_rows) for num_rows in (1, 8, 9)]
            names = [vars(each)["__name__"].rpartition(".")[2] for each in chosen]
            assert names == ["ring", "ring", last], format.line
    of_31b = {"gate_up": (2688, 42), "qkv": (1024, 42), "down": (336, 168), "o": (336, 64)}
    assert [most_ring_rows(*sizes) for sizes in of_31b.values()] == [16, 16, 8, 8]


@pytest.mark.parametrize("has_minimums", [False, True])
@pytest.mark.parametrize("shape", [*cases.E4B, *cases.LARGE, *cases.SPARSE], ids=lambda shape: shape.name)
def test_rings_fit_into_a_multiprocessor(shape: cases.Shape, has_minimums: bool) -> None:
    num_tiles, num_blocks = shape.num_out // 16, -(-shape.num_in // 128)
    ring = ring_of(num_tiles, num_blocks, has_minimums=has_minimums)
    num_programs = -(-num_tiles // (ring.tiles * ring.num_out_warps))
    most_at_a_time = 3 if ring.tiles == 4 else max(2, 24 // ring.num_warps)
    at_a_time = min(most_at_a_time, -(-num_programs // 132))
    assert 2 <= ring.num_stages <= 16
    assert at_a_time * (ring.num_bytes + 1024) <= 232_448
    assert at_a_time * ring.num_warps <= 32
    for num_rows in (1, 8, 64):
        tuning = choose_tuning(num_tiles, num_blocks, num_rows, has_minimums=has_minimums)
        assert ring.num_in_warps == tuning.num_in_warps, "the same bits"


@pytest.mark.parametrize("shape", [*cases.E4B, *cases.LARGE, *cases.SPARSE], ids=lambda shape: shape.name)
def test_rings_of_16_rows_fit_into_a_multiprocessor(shape: cases.Shape) -> None:
    num_tiles, num_blocks = shape.num_out // 16, -(-shape.num_in // 128)
    ring = ring_of(num_tiles, num_blocks, 16)
    assert ring.row_tiles == 2
    assert ring.tiles * ring.num_out_warps <= num_tiles
    assert ring.num_stages % 2 == 0
    assert 2 <= ring.num_stages <= 16
    assert ring.num_in_warps == choose_tuning(num_tiles, num_blocks, 16).num_in_warps, "the same bits"
    at_a_time = min(-(-num_tiles // (ring.tiles * ring.num_out_warps * 132)), 232_448 // (ring.num_bytes + 1024))
    registers = {1: 120, 2: 120, 4: 152}[ring.tiles] + 24 * ring.is_ahead
    assert at_a_time >= 1
    assert ring.num_warps * 32 * registers * at_a_time <= 65_536


def test_rings_of_31b() -> None:
    assert ring_of(2688, 42, 16) == ring_with(4, 2, 2, 4, row_tiles=2), "three programs, all at a time"
    assert ring_of(1024, 42, 9) == ring_with(2, 2, 2, 12, is_ahead=True, row_tiles=2)
    assert ring_of(336, 168, 16) == ring_with(4, 1, 8, 6, is_ahead=True, row_tiles=2)
    assert ring_of(2688, 42) == ring_with(2, 2, 2, 4), "six programs on a multiprocessor, all at a time"
    assert ring_of(1024, 42) == ring_with(1, 2, 2, 11, is_ahead=True), "half of the turns"
    assert ring_of(336, 168) == ring_with(1, 1, 8, 4, is_ahead=True), "half of the memory"
    assert ring_of(160, 2) == ring_with(1, 1, 1, 3, is_ahead=True)
    of_gate_up = replace(ring_with(4, 2, 2, 3, is_ahead=True), has_minimums=True)
    assert ring_of(2688, 42, has_minimums=True) == of_gate_up, "three programs, all at a time"


@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
@pytest.mark.parametrize(
    "change",
    [
        ("        wait_for_warp(STAGES - 2)\n        COPY", "        wait_for_warp(STAGES - 1)\n        COPY"),
        ("            wait_for_warp(STAGES - 2)\n", "            wait_for_warp(STAGES - 1)\n"),
        ("            wait_for_warp(STAGES - 2)\n", ""),
        ("COPY(copied, before, turn + STAGES", "COPY(copied, offset, turn + STAGES"),
        ("turn + (STAGES - 1), FORMAT", "turn + STAGES, FORMAT"),
        ("        thread_barrier()  # sums", "        # sums"),
        ("    thread_barrier()\n    in_warp", "    in_warp"),
        ("before, offset = offset, next", "offset = next"),
        ("block + in_warp + 0 * own < num_blocks", "block + 0 * own < num_blocks"),
        ("        if turn + 1 < num_turns:\n", "        if turn + 2 < num_turns:\n"),
        ("left > CHUNK", "left > 2 * CHUNK"),
        ("is_live, HAS_TAIL)", "is_live, False)"),
        ("* num_blocks + in_warp", "* num_blocks"),
        ("ring + lane * 4,", "ring + lane // 4 * 4,"),
    ],
)
def test_faults_are_found(change: tuple[str, str]) -> None:
    rings = emulate(change)

    def check() -> None:
        for is_ahead in (False, True):
            for num_in in (1536, 1088):
                case = Case(format=format_of(32), num_out=32, num_in=num_in)
                plain, x = case.matrix(), case.inputs(3, torch.bfloat16)
                got = rings.multiply(x, int4.shuffle(plain), None, ring_with(1, 1, 2, 3, is_ahead=is_ahead))
                torch.testing.assert_close(got, expected("linear", x, plain, x), atol=1e-2, rtol=2**-6)

    with pytest.raises((AssertionError, IndexError)):
        check()


@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
@pytest.mark.parametrize(
    "change",
    [
        ("(block + in_warp) // 2 * 16", "block // 2 * 16"),
        ("ring + lane % 16 * 4", "ring + lane % 8 * 4"),
        ("ring + lane // 4 * 8", "ring + lane // 8 * 8"),
        ("(gl.cdiv(num_blocks, 2) * 16)", "(num_blocks // 2 * 16)"),
        ("copied_coarse + offset", "copied_coarse"),
    ],
)
def test_faults_of_coarse_scales_are_found(change: tuple[str, str]) -> None:
    rings = emulate(change)
    case = Case(format=Q4_K, num_out=32, num_in=1152)
    plain, x = case.matrix(), case.inputs(3, torch.bfloat16)

    def check() -> None:
        got = rings.multiply(x, int4.shuffle(plain), None, replace(ring_with(1, 1, 4, 3), has_minimums=True))
        torch.testing.assert_close(got, expected("linear", x, plain, x), atol=1e-2, rtol=2**-6)

    with pytest.raises((AssertionError, IndexError)):
        check()


@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
@pytest.mark.parametrize(
    "change",
    [
        ("        wait_for_copies(STAGES - 2)\n        #", "        wait_for_copies(STAGES - 1)\n        #"),
        ("            wait_for_copies(STAGES - 2)\n", "            wait_for_copies(STAGES - 1)\n"),
        ("            thread_barrier()\n", ""),
        ("into whose place another is copied.\n        thread_barrier()\n", "\n"),
        ("(turn // 2 + HALF - 1) % HALF, turn", "turn // 2 % HALF, turn"),
        ("turn + (STAGES - 1), NUM_BLOCKS", "turn + STAGES, NUM_BLOCKS"),
        ("mask=block + scale_warp < num_blocks", "mask=block + 0 * scale_warp < num_blocks"),
        ("gl.minimum(turn, num_turns - 1)", "gl.minimum(turn, num_turns - 2)"),
        ("        if turn + 1 < num_turns:\n", "        if turn + 2 < num_turns:\n"),
        ("* NUM_BLOCKS + in_warp", "* NUM_BLOCKS"),
        ("num_tiles - TILES * NUM_OUT_WARPS", "num_tiles - 1"),
        ("(x_places + 8 * x_stride, row + 8 < num_rows, place)", "(x_places + 8 * x_stride, row < num_rows, place)"),
        ("sums[0][INDEX], sums[2][INDEX]", "sums[0][INDEX], sums[1][INDEX]"),
        ("(NUM_BLOCKS * 8 * GROUPS)", "(NUM_BLOCKS * GROUPS)"),
    ],
)
def test_faults_of_16_rows_are_found(change: tuple[str, str]) -> None:
    rings = emulate(change)

    def check() -> None:
        for is_ahead in (False, True):
            for num_in in (1536, 1152):
                case = Case(format=format_of(32), num_out=80, num_in=num_in)
                plain, x = case.matrix(), case.inputs(11, torch.bfloat16)
                got = rings.multiply(
                    x, int4.shuffle(plain), None, ring_with(4, 1, 2, 4, is_ahead=is_ahead, row_tiles=2)
                )
                torch.testing.assert_close(got, expected("linear", x, plain, x), atol=1e-2, rtol=2**-6)

    with pytest.raises((AssertionError, IndexError)):
        check()
