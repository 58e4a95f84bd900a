"""Products with shuffled 4-bit codes against the reference: emulated on a CPU, as they are on a GPU."""

import math
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.per_layer_input.reference import gate_per_layer_input
from facet.kernels.quantized import int4, reference, shuffled_product
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.int4.tuning import (
    MAX_WIDE_ROWS,
    Tuning,
    choose_tuning,
    rows_of_program,
)
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.matrix_format import CodeKind, MatrixFormat, ScaleFormat

pytest.importorskip("triton")
from facet.kernels.quantized.int4.dequantize import dequantize
from tests.kernels.gluon_emulator import emulated
from tests.kernels.int4_machine import LANGUAGES, NAMES

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
ROOM, SHUFFLED = "facet.kernels.quantized.int4", "facet.kernels.quantized.shuffled"

WIDE = Tuning(tiles=2, num_out_warps=2, num_in_warps=1)
DEEP = Tuning(tiles=1, num_out_warps=1, num_in_warps=4)
BOTH = Tuning(tiles=2, num_out_warps=2, num_in_warps=2)


FP4, Q4_K = FORMATS["fp4 coarse"], FORMATS["uint4 minimums"]


def format_of(group: int | None, dtype: str = "bfloat16", *, zeros: bool = False) -> MatrixFormat:
    codes: CodeKind = "uint4" if zeros else "int4"
    return MatrixFormat(codes=codes, scales=ScaleFormat(dtype=dtype, group=group), has_zeros=zeros)


@pytest.fixture(scope="module")
def few_rows() -> ModuleType:
    if HAS_GPU:
        from facet.kernels.quantized.int4 import few_rows

        return few_rows
    return emulated(
        [f"{SHUFFLED}.tiles", f"{ROOM}.tiles", f"{ROOM}.few_rows_kernel", f"{ROOM}.few_rows"], *LANGUAGES, own=NAMES
    )


def expected(operation: str, x: Tensor, matrix: QuantizedMatrix, given: Tensor) -> Tensor:
    """Rounded where the engine rounds."""
    products = reference.linear(x.float(), matrix).to(x.dtype)
    if operation == "gated_input_linear":
        return gate_per_layer_input(products, given)
    return geglu(products) if operation == "geglu_linear" else products


def run(
    room: ModuleType,
    operation: str,
    x: Tensor,
    matrix: QuantizedMatrix,
    given: Tensor,
    tuning: Any,
) -> Tensor:
    shuffled = int4.shuffle(matrix, is_gated=operation == "geglu_linear")
    result: Tensor = room.multiply(x, shuffled, given if operation == "gated_input_linear" else None, tuning)
    return result


@pytest.mark.parametrize(
    ("operation", "case", "num_rows", "tuning"),
    [
        ("linear", Case(format=format_of(32)), 1, WIDE),
        ("linear", Case(format=format_of(64), num_in=640), 11, DEEP),  # warps without a block, at the end
        ("linear", Case(format=format_of(128, "float16"), num_out=80), 64, BOTH),  # tiles that are not there
        ("linear", Case(format=format_of(None), num_in=352), 8, DEEP),  # a block that is not whole
        ("geglu_linear", Case(format=format_of(32), num_in=1024), 5, BOTH),
        ("gated_input_linear", Case(format=format_of(32)), 19, WIDE),
        ("linear", Case(format=format_of(128, "float16", zeros=True), num_in=640), 3, DEEP),
        ("geglu_linear", Case(format=format_of(32, zeros=True)), 9, BOTH),
        ("linear", Case(format=format_of(32), num_out=32, num_in=256), 70, None),  # more rows than a program takes
        ("linear", Case(format=FP4), 1, WIDE),
        ("linear", Case(format=FP4, num_out=80, num_in=656), 11, DEEP),  # tiles, blocks and inputs that are not there
        ("geglu_linear", Case(format=FP4, num_in=1024), 5, BOTH),
        ("gated_input_linear", Case(format=FP4), 19, None),
        ("linear", Case(format=Q4_K), 1, WIDE),
        ("linear", Case(format=Q4_K, num_out=80, num_in=1152), 11, DEEP),  # half of what shares a coarse scale
        ("linear", Case(format=Q4_K, num_out=80, num_in=480), 64, BOTH),  # a block that is not whole
        ("geglu_linear", Case(format=Q4_K, num_in=1024), 5, BOTH),
        ("gated_input_linear", Case(format=Q4_K), 19, None),
    ],
)
def test_equals_reference(
    few_rows: ModuleType, operation: str, case: Case, num_rows: int, tuning: Tuning | None
) -> None:
    matrix = case.matrix(DEVICE)
    x = case.inputs(num_rows + 1, torch.bfloat16, DEVICE)[1:]
    given = torch.randn(num_rows, case.num_out, dtype=torch.bfloat16, device=DEVICE)
    got = run(few_rows, operation, x, matrix, given, tuning)
    torch.testing.assert_close(got, expected(operation, x, matrix, given), atol=1e-2, rtol=2**-6)


@pytest.mark.parametrize(
    ("tuning", "format"), [(WIDE, format_of(32)), (BOTH, format_of(32)), (BOTH, FP4), (BOTH, Q4_K)], ids=str
)
def test_a_row_is_the_same_bits_in_any_company(few_rows: ModuleType, tuning: Tuning, format: MatrixFormat) -> None:
    case = Case(format=format, num_out=64, num_in=384)
    matrix, x = int4.shuffle(case.matrix(DEVICE)), case.inputs(65, torch.bfloat16, DEVICE)[1:]
    alone = few_rows.multiply(x[:1], matrix, None, tuning)
    for num_rows in (2, 16, 32, 64):
        assert torch.equal(few_rows.multiply(x[:num_rows], matrix, None, tuning)[:1], alone)


def test_only_warps_that_divide_inputs_change_the_order_of_sums(few_rows: ModuleType) -> None:
    """The same bits from any cut along outputs: rows decide about those alone."""
    case = Case(format=format_of(32), num_out=64, num_in=384)
    matrix, x = int4.shuffle(case.matrix(DEVICE)), case.inputs(8, torch.bfloat16, DEVICE)
    cuts = [Tuning(tiles=tiles, num_out_warps=warps, num_in_warps=2) for tiles, warps in product((1, 2), repeat=2)]
    first, *others = (few_rows.multiply(x, matrix, None, cut) for cut in cuts)
    assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    ("group", "num_in", "zeros"), [(32, 512, False), (64, 704, True), (128, 384, False), (None, 200, True)]
)
def test_shuffling_loses_nothing(group: int | None, num_in: int, zeros: bool, is_gated: bool) -> None:
    matrix = Case(format=format_of(group, zeros=zeros), num_in=num_in).matrix()
    back = int4.unshuffle(int4.shuffle(matrix, is_gated=is_gated))
    assert back.format == matrix.format
    for name, tensor in matrix.tensors().items():
        assert torch.equal(back.tensors()[name], tensor), name


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("num_in", [512, 656])
def test_codes_e2m1_are_shuffled_and_come_back(num_in: int, is_gated: bool) -> None:
    matrix = Case(format=FP4, num_in=num_in).matrix(DEVICE)
    shuffled = int4.shuffle(matrix, is_gated=is_gated)
    back = int4.unshuffle(shuffled).tensors()
    for name, tensor in matrix.tensors().items():
        assert torch.equal(back[name].view(torch.uint8), tensor.view(torch.uint8)), name
    torch.testing.assert_close(dequantize(shuffled, torch.float32), matrix.values(), atol=0, rtol=2**-22)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("num_in", [512, 1152, 480])
def test_minimums_are_shuffled_and_come_back(num_in: int, is_gated: bool) -> None:
    matrix = Case(format=Q4_K, num_in=num_in).matrix(DEVICE)
    shuffled = int4.shuffle(matrix, is_gated=is_gated)
    back = int4.unshuffle(shuffled).tensors()
    assert back.keys() == matrix.tensors().keys()
    for name, tensor in matrix.tensors().items():
        assert torch.equal(back[name], tensor), name
    assert torch.equal(dequantize(shuffled, torch.float32), matrix.values())
    if num_in == 512:
        num_bytes = sum(tensor.nbytes for tensor in shuffled.tensors().values())
        assert num_bytes == Q4_K.num_bytes((matrix.num_rows, num_in)), "as many as `facet plan` counts"


def test_every_scale_and_every_minimum(few_rows: ModuleType) -> None:
    """One input at a time: what comes out is a value, rounded once."""
    matrix = Case(format=Q4_K, num_out=32, num_in=256).matrix(DEVICE)
    assert matrix.minimums is not None
    x = torch.eye(256, dtype=torch.bfloat16, device=DEVICE)[:64]
    numbers = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(32, 8)
    matrix.scales.copy_(numbers)
    for minimums in (numbers.flip(0), torch.zeros_like(numbers)):
        matrix.minimums.copy_(minimums)
        got = few_rows.multiply(x, int4.shuffle(matrix), None, WIDE).float()
        expected = matrix.values()[:, :64].t()
        # 128 times the scale was there for a while.
        largest = (matrix.scales.float().amax(1) * matrix.coarse_scales.float()[:, 0]) * 2.0**-15
        torch.testing.assert_close(got, expected, atol=float(largest.max()), rtol=2**-8)


def test_every_code_e2m1_and_every_scale(few_rows: ModuleType) -> None:
    """One input at a time: what comes out is a value, which bfloat16 has exactly."""
    matrix = Case(format=FP4, num_out=16, num_in=256).matrix(DEVICE)
    codes = torch.arange(16, dtype=torch.uint8, device=DEVICE)
    matrix.codes.copy_((codes | codes << 4).repeat(8))
    scales = torch.arange(126, dtype=torch.uint8, device=DEVICE)  # all finite ones that are not negative
    assert matrix.coarse_scales is not None
    matrix.coarse_scales.fill_(0.25)
    x = torch.eye(256, dtype=torch.bfloat16, device=DEVICE)[:64]
    for first in range(0, 126, 16):
        some = scales[first : first + 16].repeat(2)[:16]
        matrix.scales.view(torch.uint8).copy_(some[:, None].expand(-1, 16))
        got = few_rows.multiply(x, int4.shuffle(matrix), None, WIDE)
        assert torch.equal(got.float(), matrix.values()[:, :64].t()), first


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(("group", "num_in", "zeros"), [(32, 512, True), (64, 704, False), (None, 1160, True)])
def test_dequantized_values_are_the_matrix(group: int | None, num_in: int, zeros: bool, is_gated: bool) -> None:
    matrix = Case(format=format_of(group, zeros=zeros), num_in=num_in).matrix(DEVICE)
    assert torch.equal(dequantize(int4.shuffle(matrix, is_gated=is_gated), torch.float32), matrix.values())


def test_rows_are_taken_in_tiles() -> None:
    matrix = Case(format=format_of(32)).matrix()
    some = int4.shuffle(matrix).rows(slice(16, 64))
    assert torch.equal(int4.unshuffle(some).values(), matrix.rows(slice(16, 64)).values())
    with pytest.raises(AssertionError, match="tiles of 16"):
        int4.shuffle(matrix).rows(slice(8, 64))


@pytest.mark.parametrize("operation", ["linear", "geglu_linear", "gated_input_linear"])
def test_many_rows_in_slices(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled_product, "_SLICE_BYTES", 2 * 256 * 40)  # 32 of 96 outputs
    case = Case(format=format_of(32), num_in=256)
    dtype = torch.bfloat16 if HAS_GPU else torch.float32  # the interpreter's bfloat16 is not the GPU's
    matrix, x = case.matrix(DEVICE), case.inputs(MAX_WIDE_ROWS + 1, dtype, DEVICE)
    given = torch.randn(len(x), case.num_out, dtype=dtype, device=DEVICE)
    shuffled = int4.shuffle(matrix, is_gated=operation == "geglu_linear")
    got = int4.multiply(x, shuffled, given if operation == "gated_input_linear" else None)
    tolerance = 2e-2 if HAS_GPU else 1e-5
    torch.testing.assert_close(got, expected(operation, x, matrix, given), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", ["int4 reordered", "int8 minimums", "fp4 powers", "int8 rows"])
def test_other_formats_are_refused(name: str) -> None:
    assert not int4.can_shuffle(FORMATS[name], 96)
    with pytest.raises(AssertionError, match="no kernel here"):
        int4.shuffle(Case(format=FORMATS[name]).matrix())


@pytest.mark.parametrize(
    ("capability", "names"),
    [((9, 0), ["few_rows", "wide", "wide", None]), ((8, 9), ["few_rows", "few_rows", None, None])],
)
def test_wide_products_are_for_hopper(
    capability: tuple[int, int], names: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device=None: capability)
    rows = (int4.MAX_FEW_ROWS, 64, MAX_WIDE_ROWS, MAX_WIDE_ROWS + 1)
    matrix = int4.shuffle(Case(format=format_of(32)).matrix())
    found = [
        int4.choose_kernels(torch.empty(num_rows, 8, dtype=torch.bfloat16), matrix, int4.MAX_FEW_ROWS)
        for num_rows in rows
    ]
    assert [None if each is None else vars(each)["__name__"].rpartition(".")[2] for each in found] == names
    everything = int4.choose_kernels(torch.empty(rows[-1], 8, dtype=torch.bfloat16), matrix, math.inf)
    assert vars(everything)["__name__"].endswith("few_rows")


def test_tuning_fills_the_card() -> None:
    assert [rows_of_program(num_rows) for num_rows in (1, 8, 9, 33, 64, 70)] == [8, 8, 16, 64, 64, 64]
    for num_tiles, num_blocks in ((2688, 42), (336, 168), (1280, 20), (160, 80), (16, 20)):
        tuning = choose_tuning(num_tiles, num_blocks, 1)
        num_warps = num_tiles * tuning.num_in_warps // tuning.tiles
        assert num_warps >= 1000 or 4 * tuning.num_in_warps > num_blocks / 2
        assert tuning.num_in_warps <= num_blocks
