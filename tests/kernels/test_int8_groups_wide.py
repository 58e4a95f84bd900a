"""Products of tens of rows with shuffled 8-bit codes in groups: emulated on a CPU, as they are on a Hopper GPU."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.linear import cases
from facet.kernels.quantized.cases import Case
from facet.kernels.quantized.int8_groups import shuffle
from facet.kernels.quantized.int8_groups.tuning import choose_wide_tuning, num_turns_of
from facet.kernels.quantized.shuffled.wide_tuning import WideTuning

pytest.importorskip("triton")
from facet.kernels.arrivals import counters_on
from tests.kernels.gluon_emulator import emulated
from tests.kernels.int8_groups_machine import LANGUAGES, NAMES
from tests.kernels.test_int8_groups import (
    DEVICE,
    HAS_GPU,
    Q5_0,
    Q5_K,
    Q6_K,
    Q8_0,
    ROOM,
    SHUFFLED,
    WIDE_Q5_K,
    WIDE_Q6_K,
    expected,
    format_of,
    run,
)

MODULES = [
    f"{SHUFFLED}.tiles",
    "facet.kernels.quantized.shuffled.wide_loop",
    f"{ROOM}.tiles",
    f"{ROOM}.wide_kernel",
    f"{ROOM}.wide",
]


@pytest.fixture(scope="module")
def wide() -> ModuleType:
    if HAS_GPU:
        from facet.kernels.quantized.int8_groups import wide

        return wide
    return emulated(MODULES, *LANGUAGES, own=NAMES)


def tuning(rows: int, programs: int, *, tiles: int = 4, stages: int = 4) -> WideTuning:
    return WideTuning(rows=rows, tiles=tiles, programs=programs, stages=stages)


@pytest.mark.parametrize(
    ("operation", "case", "num_rows", "tuning"),
    [
        ("linear", Case(format=Q8_0, num_in=640), 20, None),
        ("linear", Case(format=Q8_0, num_out=80, num_in=352), 40, tuning(32, 2, stages=3)),  # tiles, half a block
        ("geglu_linear", Case(format=Q5_0, num_in=1024), 17, tuning(32, 3)),  # which share both tile groups
        ("gated_input_linear", Case(format=Q8_0, num_out=64, num_in=384), 9, tuning(16, 1)),
        ("linear", Case(format=format_of(64, "bfloat16"), num_out=240, num_in=448), 33, tuning(16, 10)),
        ("linear", Case(format=format_of(128), num_in=544), 12, tuning(16, 4, stages=5)),  # half of a pair of blocks
        ("linear", Case(format=WIDE_Q6_K), 20, None),
        ("linear", Case(format=Q6_K, num_out=80, num_in=768), 70, tuning(64, 5)),
        ("geglu_linear", Case(format=Q6_K, num_in=1024), 9, tuning(16, 9, tiles=8)),
        ("gated_input_linear", Case(format=Q6_K), 33, None),
        ("linear", Case(format=WIDE_Q5_K), 20, None),
        ("linear", Case(format=Q5_K, num_out=272, num_in=768), 18, tuning(32, 3, tiles=16)),
        ("geglu_linear", Case(format=Q5_K, num_in=1024), 9, tuning(16, 5)),
        ("gated_input_linear", Case(format=Q5_K), 33, None),
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
    case = Case(format=Q8_0, num_out=176, num_in=608)  # three tile groups of five turns, the last of one block
    matrix, x = case.matrix(DEVICE), case.inputs(16, torch.bfloat16, DEVICE)
    given = x[:, :1]
    for programs in (1, 2, 4, 7, 14, 15):
        got = run(wide, "linear", x, matrix, given, tuning(16, programs))
        torch.testing.assert_close(got, expected("linear", x, matrix, given), atol=2e-2, rtol=2**-6)


def test_every_code_and_every_scale(wide: ModuleType) -> None:
    """One input at a time: what comes out is a value, rounded once."""
    for format in (Q8_0, format_of(128, "bfloat16"), Q6_K):
        matrix = Case(format=format, num_out=64, num_in=256).matrix(DEVICE)
        codes = torch.arange(256, device=DEVICE).to(torch.int8)
        matrix.codes.copy_(codes // 4 if format.stored_bits else codes)
        if matrix.coarse_scales is not None:
            scales = torch.arange(1024, device=DEVICE).to(torch.int8)
            matrix.scales.copy_(scales.view(64, 16))
        for rows in torch.eye(256, dtype=torch.bfloat16, device=DEVICE).split(64):
            got = wide.multiply(rows, shuffle(matrix), None, tuning(64, 2))
            assert torch.equal(got, (rows.float() @ matrix.values().t()).to(got.dtype)), format.line


@pytest.mark.skipif(HAS_GPU, reason="faults are planted in emulated kernels")
@pytest.mark.parametrize(
    "change",
    [
        ("wait_for_copies(STAGES - 3)", "wait_for_copies(STAGES - 2)"),  # the next turn has not come
        ("COPY(sources, targets, before,", "COPY(sources, targets, stage,"),  # into the place of this turn
        ("gl.store(counter, 0)", "gl.store(counter, 2)"),
        ("gl.where(each == earliest, 1, 0)", "gl.where(each == latest, 1, 0)"),
    ],
)
def test_planted_faults_are_found(change: tuple[str, str]) -> None:
    changed = emulated(MODULES, *LANGUAGES, own=NAMES, change=change)
    case = Case(format=Q8_0, num_out=128, num_in=1024)
    matrix, x = case.matrix(), case.inputs(32, torch.bfloat16)

    def is_right(x: Tensor) -> bool:
        got = run(changed, "linear", x, matrix, x, tuning(16, 3))
        return torch.allclose(got.float(), expected("linear", x, matrix, x).float(), atol=2e-2, rtol=2**-6)

    try:
        assert not (is_right(x[:16]) and is_right(x[16:]))
    finally:
        counters_on(x.device, 1).zero_()


@pytest.mark.parametrize("num_rows", [1, 17, 32, 64, 65, 128, 256])
@pytest.mark.parametrize("shape", [*cases.E4B, *cases.LARGE], ids=lambda shape: shape.name)
def test_tuning_fills_the_card(shape: cases.Shape, num_rows: int) -> None:
    num_tiles, num_blocks = shape.num_out // 16, -(-shape.num_in // 64)
    found = choose_wide_tuning(num_tiles, num_blocks, num_rows)
    num_row_groups = -(-num_rows // found.rows)
    num_turns = -(-num_tiles // found.tiles) * num_turns_of(num_blocks)
    assert 1 <= found.programs <= num_turns
    at_a_time = found.programs * num_row_groups * found.tiles / 132  # warps of a multiprocessor
    assert at_a_time <= 16
    assert at_a_time >= 7 or num_turns < 8 * 264 or found.tiles == 4
    assert num_row_groups * -(-num_tiles // found.tiles) <= 4096, "there is a counter for each"
    stage = found.tiles * (2048 + 256) + found.rows * 256
    result = min(8192, found.tiles * 16 * found.rows * 2)
    num_programs = -(-found.programs * num_row_groups // 132)  # of a multiprocessor
    assert num_programs * (found.stages * stage + result + 1024) <= 232_448
