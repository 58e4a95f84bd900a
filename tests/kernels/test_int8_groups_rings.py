"""Products with shuffled 8-bit codes that come through a ring: against the reference, and bit for bit against the
kernel for few rows. Emulated on a CPU, as they are on a Hopper GPU."""

import itertools
import math
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear import cases
from facet.kernels.quantized import int8_groups
from facet.kernels.quantized.cases import Case
from facet.kernels.quantized.int8_groups import ShuffledInt8, shuffle
from facet.kernels.quantized.int8_groups.tuning import Ring, Tuning, choose_tuning, ring_of
from facet.matrix_format import MatrixFormat

pytest.importorskip("triton")
from tests.kernels.gluon_copies import COPIES
from tests.kernels.gluon_emulator import emulated
from tests.kernels.int4_machine import MEMORY
from tests.kernels.int8_groups_machine import LANGUAGES, NAMES
from tests.kernels.test_int8_groups import Q5_0, Q5_K, Q6_K, Q8_0, ROOM, SHUFFLED, WIDE_Q6_K, expected, format_of

ON_HOPPER = torch.cuda.is_available() and runs_on_hopper(torch.device("cuda"))
DEVICE = "cuda" if ON_HOPPER else "cpu"


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
    ring_with(2, 4, 1, 12),
    ring_with(1, 1, 16, 3),
)
RINGS_OF_16 = (
    ring_with(4, 2, 2, 4, row_tiles=2),
    ring_with(1, 1, 8, 4, row_tiles=2),
    ring_with(2, 4, 1, 3, is_ahead=True, row_tiles=2),
)


def emulate(change: tuple[str, str] | None = None) -> ModuleType:
    COPIES.started.clear()
    COPIES.groups.clear()
    names = [f"{SHUFFLED}.tiles", f"{SHUFFLED}.rings", f"{ROOM}.tiles", f"{ROOM}.ring_kernel", f"{ROOM}.ring"]
    own = {**NAMES, "thread_barrier": MEMORY.barrier}
    return emulated(names, *LANGUAGES, own=own, change=change)


@pytest.fixture(scope="module")
def rings() -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.quantized.int8_groups import ring

        return ring
    return emulate()


@pytest.fixture(scope="module")
def few_rows() -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.quantized.int8_groups import few_rows

        return few_rows
    names = [f"{SHUFFLED}.tiles", f"{ROOM}.tiles", f"{ROOM}.few_rows_kernel", f"{ROOM}.few_rows"]
    return emulated(names, *LANGUAGES, own=NAMES)


def product(
    room: ModuleType, operation: str, x: Tensor, matrix: ShuffledInt8, given: Tensor, cut: Ring | Tuning
) -> Tensor:
    result: Tensor = room.multiply(x, matrix, given if operation == "gated_input_linear" else None, cut)
    return result


@pytest.mark.parametrize("ring", RINGS, ids=str)
@pytest.mark.parametrize(
    ("operation", "case", "num_rows"),
    [
        ("linear", Case(format=Q8_0), 1),
        ("linear", Case(format=format_of(64, "bfloat16"), num_in=1152), 5),  # an odd number of turns, for some
        ("linear", Case(format=format_of(128), num_out=80, num_in=544), 8),  # tiles that are not there, half a block
        ("geglu_linear", Case(format=Q5_0, num_in=1024), 3),
        ("gated_input_linear", Case(format=Q8_0, num_in=64), 7),  # one block
        ("linear", Case(format=WIDE_Q6_K), 2),
        ("geglu_linear", Case(format=Q6_K, num_in=768), 6),
        ("linear", Case(format=Q5_K, num_out=80), 8),
        ("geglu_linear", Case(format=Q5_K, num_in=1280), 1),
    ],
)
def test_products(
    rings: ModuleType, few_rows: ModuleType, operation: str, case: Case, num_rows: int, ring: Ring
) -> None:
    """As the reference, and the same bits as from the kernel for few rows."""
    check(rings, few_rows, operation, case, num_rows, ring)


@pytest.mark.parametrize("ring", RINGS_OF_16, ids=str)
@pytest.mark.parametrize(
    ("operation", "case", "num_rows"),
    [
        ("linear", Case(format=Q8_0), 16),
        ("linear", Case(format=format_of(128), num_out=80, num_in=544), 9),
        ("gated_input_linear", Case(format=Q5_0, num_in=320), 13),
        ("geglu_linear", Case(format=Q6_K, num_in=768), 11),
        ("linear", Case(format=Q5_K, num_out=80), 16),
        ("geglu_linear", Case(format=Q5_K, num_in=1280), 1),
    ],
)
def test_products_of_16(
    rings: ModuleType, few_rows: ModuleType, operation: str, case: Case, num_rows: int, ring: Ring
) -> None:
    check(rings, few_rows, operation, case, num_rows, ring)


def check(rings: ModuleType, few_rows: ModuleType, operation: str, case: Case, num_rows: int, ring: Ring) -> None:
    plain = case.matrix(DEVICE)
    matrix = shuffle(plain, is_gated=operation == "geglu_linear")
    x = case.inputs(num_rows + 1, torch.bfloat16, DEVICE)[1:]
    given = torch.randn(num_rows, 3, case.num_out, dtype=torch.bfloat16, device=DEVICE)[:, 1]
    assert rings.can_run(x, matrix)
    got = product(rings, operation, x, matrix, given, ring)
    assert not COPIES.groups, "every copy is waited for"
    torch.testing.assert_close(got, expected(operation, x, plain, given), atol=1e-2, rtol=2**-6)
    tuning = Tuning(tiles=1, num_out_warps=ring.num_out_warps, num_in_warps=ring.num_in_warps)
    assert torch.equal(got, product(few_rows, operation, x, matrix, given, tuning))


@pytest.mark.parametrize("format", [Q8_0, Q6_K, Q5_K], ids=lambda format: format.line)
def test_a_row_is_the_same_in_company(rings: ModuleType, format: MatrixFormat) -> None:
    case = Case(format=format, num_out=64, num_in=1024)
    matrix, x = shuffle(case.matrix(DEVICE)), case.inputs(16, torch.bfloat16, DEVICE)
    of_16, x = rings.multiply(x, matrix, None, RINGS_OF_16[1]), x[:8]
    together = rings.multiply(x, matrix, None, RINGS[2])
    assert torch.equal(of_16[:8], together)
    for row in (0, 3, 7):
        assert torch.equal(rings.multiply(x[row : row + 1], matrix, None, RINGS[2])[0], together[row])
    apart = torch.cat([x, x[:, :1]], dim=1)[:, : x.shape[1]]
    assert torch.equal(rings.multiply(apart, matrix, None, RINGS[2]), together)


def test_what_goes_another_way(rings: ModuleType) -> None:
    case = Case(format=Q8_0)
    matrix, x = shuffle(case.matrix(DEVICE)), case.inputs(17, torch.bfloat16, DEVICE)
    assert rings.can_run(x[:16], matrix)
    assert not rings.can_run(x, matrix), "more rows than a program takes"
    assert not rings.can_run(x[:0], matrix)
    shifted = torch.zeros(matrix.codes.numel() + 1, dtype=torch.int32, device=DEVICE)[1:].view_as(matrix.codes)
    assert not rings.can_run(x[:8], replace(matrix, codes=shifted))


def test_where_rings_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(format=Q8_0)
    matrix, x = shuffle(case.matrix(DEVICE)), case.inputs(257, torch.bfloat16, DEVICE)

    def names_for(most_few_rows: float) -> list[str | None]:
        found = [int8_groups.choose_kernels(x[:rows], matrix, most_few_rows) for rows in (1, 16, 17, 64, 65, 256, 257)]
        return [None if each is None else vars(each)["__name__"].rpartition(".")[2] for each in found]

    monkeypatch.setattr(int8_groups, "runs_on_hopper", lambda _device: True)
    assert names_for(int8_groups.MAX_FEW_ROWS) == ["ring", "ring", *4 * ["wide"], None]
    assert names_for(math.inf) == ["ring", "ring", *5 * ["few_rows"]], "same bits"
    monkeypatch.setattr(int8_groups, "runs_on_hopper", lambda _device: False)
    assert names_for(int8_groups.MAX_FEW_ROWS) == [*4 * ["few_rows"], *3 * [None]]
    assert int8_groups.choose_kernels(x[:1].float(), matrix, math.inf) is None


@pytest.mark.parametrize("num_levels", [0, 2])
@pytest.mark.parametrize("shape", [*cases.E4B, *cases.LARGE], ids=lambda shape: shape.name)
def test_rings_fit_into_a_multiprocessor(shape: cases.Shape, num_levels: int) -> None:
    num_tiles, num_blocks = shape.num_out // 16, -(-shape.num_in // 64)
    ring = ring_of(num_tiles, num_blocks, num_levels, 8)
    num_programs = -(-num_tiles // (ring.tiles * ring.num_out_warps))
    at_a_time = min(max(2, 24 // ring.num_warps), -(-num_programs // 132))
    assert at_a_time * (ring.num_bytes + 1024) <= 232_448
    assert at_a_time * ring.num_warps <= 32
    of_16 = ring_of(num_tiles, num_blocks, num_levels, 16)
    assert (of_16.num_in_warps, of_16.row_tiles) == (ring.num_in_warps, 2)
    halved = -(-at_a_time * ring.tiles // of_16.tiles)
    assert halved * (of_16.num_bytes + 1024) <= 232_448
    for num_rows in (1, 8, 64):
        assert ring.num_in_warps == choose_tuning(num_tiles, num_blocks, num_rows).num_in_warps, "the same bits"


@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
@pytest.mark.parametrize(
    ("change", "format"),
    [
        *itertools.product(
            [
                ("        wait_for_warp(STAGES - 2)\n        COPY", "        wait_for_warp(STAGES - 1)\n        COPY"),
                ("            wait_for_warp(STAGES - 2)\n            COPY", "            COPY"),
                ("copied, before, turn + STAGES", "copied, offset, turn + STAGES"),
                ("turn + (STAGES - 1), FORMAT", "turn + STAGES, FORMAT"),
                ("        thread_barrier()  # sums", "        # sums"),
                ("before, offset = offset, next", "offset = next"),
                ("block + 0 * own < num_blocks", "block - in_warp + 0 * own < num_blocks"),
                ("        if turn + 1 < num_turns:\n", "        if turn + 2 < num_turns:\n"),
                ("is_live, HAS_TAIL, IN", "is_live, False, IN"),
                ("* num_blocks + in_warp)", "* num_blocks)"),
                ("ring + lane * 4,", "ring + lane // 4 * 4,"),
            ],
            [Q8_0, Q6_K, Q5_K],
        ),
        # Of coarse scales, and of minimums.
        *itertools.product([("(block & 3) * 16", "(block & 1) * 16")], [Q6_K, Q5_K]),
        (("member * LEVELS + number % 2 * (LEVELS - 1)", "member * LEVELS"), Q5_K),
    ],
    ids=lambda value: value.line if isinstance(value, MatrixFormat) else value[1].strip(),
)
def test_faults_are_found(change: tuple[str, str], format: MatrixFormat) -> None:
    rings = emulate(change)

    def check() -> None:
        for is_ahead in (False, True):
            for num_in in (1536, 1280, 1280 + 32):
                if format != Q8_0 and num_in % 256:
                    continue
                case = Case(format=format, num_out=32, num_in=num_in)
                plain, x = case.matrix(), case.inputs(3, torch.bfloat16)
                for in_warps in (2, 8):
                    got = rings.multiply(x, shuffle(plain), None, ring_with(1, 1, in_warps, 3, is_ahead=is_ahead))
                    torch.testing.assert_close(got, expected("linear", x, plain, x), atol=1e-2, rtol=2**-6)

    with pytest.raises((AssertionError, IndexError)):
        check()
