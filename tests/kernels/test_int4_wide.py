"""Products of tens of rows with shuffled 4-bit codes: emulated on a CPU, as they are on a Hopper GPU."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.linear import cases
from facet.kernels.quantized.cases import Case
from facet.kernels.quantized.int4 import shuffle
from facet.kernels.quantized.int4.tuning import choose_wide_tuning
from facet.kernels.quantized.shuffled.wide_tuning import WideTuning
from facet.matrix_format import MatrixFormat

pytest.importorskip("triton")
from facet.kernels.arrivals import counters_on
from tests.kernels.gluon_emulator import emulated
from tests.kernels.int4_machine import LANGUAGES, NAMES
from tests.kernels.test_int4 import DEVICE, FP4, HAS_GPU, Q4_K, ROOM, SHUFFLED, expected, format_of, run

MODULES = [f"{SHUFFLED}.tiles", f"{ROOM}.tiles", f"{SHUFFLED}.wide_loop", f"{ROOM}.wide_kernel", f"{ROOM}.wide"]


@pytest.fixture(scope="module")
def wide() -> ModuleType:
    if HAS_GPU:
        from facet.kernels.quantized.int4 import wide

        return wide
    return emulated(MODULES, *LANGUAGES, own=NAMES)


def tuning(rows: int, programs: int, *, tiles: int = 4, stages: int = 4, turn_in: int = 128) -> WideTuning:
    return WideTuning(rows=rows, tiles=tiles, programs=programs, stages=stages, turn_in=turn_in)


@pytest.mark.parametrize(
    ("operation", "case", "num_rows", "tuning"),
    [
        ("linear", Case(format=format_of(32), num_in=640), 20, None),
        ("linear", Case(format=format_of(64), num_out=80), 40, tuning(32, 2, stages=3)),  # tiles that are not there
        ("geglu_linear", Case(format=format_of(None, "float16"), num_in=352), 33, None),  # a block that is not whole
        ("geglu_linear", Case(format=format_of(32), num_in=896), 17, tuning(32, 3)),  # which share both tile groups
        ("gated_input_linear", Case(format=format_of(128), num_out=64, num_in=384), 9, tuning(16, 1)),
        ("linear", Case(format=format_of(128, "float16", zeros=True), num_in=640), 17, None),
        ("linear", Case(format=format_of(32, zeros=True), num_in=640), 33, tuning(16, 6)),
        ("geglu_linear", Case(format=format_of(64, zeros=True)), 20, tuning(32, 5, stages=3)),
        ("linear", Case(format=FP4, num_out=80, num_in=656), 20, tuning(32, 3, stages=5)),
        ("geglu_linear", Case(format=FP4, num_in=640), 9, None),
        ("gated_input_linear", Case(format=FP4), 70, tuning(64, 3)),
        ("linear", Case(format=Q4_K, num_out=80, num_in=1152), 20, tuning(32, 5, stages=3)),
        ("geglu_linear", Case(format=Q4_K, num_in=480), 9, None),
        ("linear", Case(format=Q4_K, num_out=272, num_in=768), 18, tuning(32, 3, tiles=16)),
        ("gated_input_linear", Case(format=Q4_K), 33, None),
        ("linear", Case(format=format_of(32), num_in=640), 16, tuning(16, 4, tiles=8)),
        # Turns of two blocks, of which the last may have one.
        ("linear", Case(format=format_of(32), num_in=1152), 20, tuning(32, 5, turn_in=256)),
        ("linear", Case(format=format_of(64, zeros=True), num_in=1024), 9, tuning(16, 3, turn_in=256)),
        ("geglu_linear", Case(format=FP4, num_in=640), 9, tuning(16, 4, stages=3, turn_in=256)),
        ("linear", Case(format=Q4_K, num_out=80, num_in=1152), 33, tuning(32, 3, turn_in=256)),
    ],
)
def test_equals_reference(
    wide: ModuleType, operation: str, case: Case, num_rows: int, tuning: WideTuning | None
) -> None:
    matrix = case.matrix(DEVICE)
    x = case.inputs(num_rows, torch.bfloat16, DEVICE)
    given = torch.randn(num_rows, case.num_out, dtype=torch.bfloat16, device=DEVICE)
    for _ in range(2):  # counters are zero again
        got = run(wide, operation, x, matrix, given, tuning)
        torch.testing.assert_close(got, expected(operation, x, matrix, given), atol=2e-2, rtol=2**-6)


def test_ends_of_tile_groups_anywhere(wide: ModuleType) -> None:
    """As many programs as there may be: of whole tile groups, of parts of one, and of ends of two."""
    case = Case(format=format_of(32), num_out=176, num_in=608)  # three tile groups of five turns
    matrix, x = case.matrix(DEVICE), case.inputs(16, torch.bfloat16, DEVICE)
    given = x[:, :1]
    for programs in (1, 2, 4, 7, 14, 15):
        got = run(wide, "linear", x, matrix, given, tuning(16, programs))
        torch.testing.assert_close(got, expected("linear", x, matrix, given), atol=2e-2, rtol=2**-6)


@pytest.mark.parametrize("format", [format_of(32), format_of(64, "float16", zeros=True), FP4, Q4_K], ids=str)
def test_every_code(wide: ModuleType, format: MatrixFormat) -> None:
    """One input at a time: what comes out is a value, rounded once. Codes less minimums have an error of 2^-13 of a
    scale before they are rounded."""
    matrix = Case(format=format, num_out=64, num_in=256).matrix(DEVICE)
    codes = torch.arange(256, device=DEVICE).to(torch.uint8)
    matrix.codes.copy_((codes[:128] + 37 * torch.arange(64, device=DEVICE)[:, None]).to(torch.uint8))
    if format is FP4:
        scales = torch.arange(1024, device=DEVICE) % 126  # all finite ones that are not negative
        matrix.scales.view(torch.uint8).copy_(scales.view(64, 16).to(torch.uint8))
        assert matrix.coarse_scales is not None
        matrix.coarse_scales.fill_(0.25)
    for rows in torch.eye(256, dtype=torch.bfloat16, device=DEVICE).split(64):
        got = wide.multiply(rows, shuffle(matrix), None, tuning(64, 2))
        values = rows.float() @ matrix.values().t()
        if format is Q4_K:
            scales = matrix.scales.float() * matrix.coarse_scales.float().repeat_interleave(8, dim=1)
            torch.testing.assert_close(got.float(), values, atol=float(scales.max()) * 2**-12, rtol=2**-8)
        else:
            assert torch.equal(got, values.to(got.dtype))


@pytest.mark.skipif(HAS_GPU, reason="faults are planted in emulated kernels")
@pytest.mark.parametrize(
    "change",
    [
        ("wait_for_copies(STAGES - 3)", "wait_for_copies(STAGES - 2)"),  # the next turn has not come
        ("COPY(sources, targets, before,", "COPY(sources, targets, stage,"),  # into the place of this turn
        ("gl.store(counter, 0)", "gl.store(counter, 2)"),
        ("gl.where(each == earliest, 1, 0)", "gl.where(each == latest, 1, 0)"),
        ("values_of_chunk(held, NUMBER % 2 * 2 + 1, FORMAT)", "values_of_chunk(held, NUMBER % 2 * 2, FORMAT)"),
    ],
)
def test_planted_faults_are_found(change: tuple[str, str]) -> None:
    changed = emulated(MODULES, *LANGUAGES, own=NAMES, change=change)
    case = Case(format=format_of(32), num_out=128, num_in=1024)
    matrix, x = case.matrix(), case.inputs(32, torch.bfloat16)

    def is_right(x: Tensor) -> bool:
        got = run(changed, "linear", x, matrix, x, tuning(16, 3))
        return torch.allclose(got.float(), expected("linear", x, matrix, x).float(), atol=2e-2, rtol=2**-6)

    try:
        assert not (is_right(x[:16]) and is_right(x[16:]))
    finally:
        counters_on(x.device, 1).zero_()


@pytest.mark.parametrize("num_rows", [9, 17, 32, 64, 65, 128, 256])
@pytest.mark.parametrize("shape", [*cases.E4B, *cases.LARGE], ids=lambda shape: shape.name)
def test_tuning_fills_the_card(shape: cases.Shape, num_rows: int) -> None:
    num_tiles, num_blocks = shape.num_out // 16, -(-shape.num_in // 128)
    found = choose_wide_tuning(num_tiles, num_blocks, num_rows)
    num_row_groups = -(-num_rows // found.rows)
    num_turns = -(-num_tiles // found.tiles) * -(-num_blocks * 128 // found.turn_in)
    assert 1 <= found.programs <= num_turns
    at_a_time = found.programs * num_row_groups * found.tiles / 132  # warps of a multiprocessor
    assert at_a_time <= 16
    assert at_a_time >= 7 or num_turns < 8 * 264 or found.tiles == 4
    assert num_row_groups * -(-num_tiles // found.tiles) <= 4096, "there is a counter for each"
    zeros = 0 if "lm_head" in shape.name else 64  # no file has zeros for its head
    stage = (found.tiles * (1024 + 128 + zeros) + found.rows * 256) * found.turn_in // 128
    result = min(8192, found.tiles * 16 * found.rows * 2) // (2 if shape.operation == "geglu_linear" else 1)
    num_programs = -(-found.programs * num_row_groups // 132)  # of a multiprocessor
    assert num_programs * (found.stages * stage + result + 1024) <= 232_448
