"""Products with shuffled 8-bit codes in groups against the reference: emulated on a CPU, as they are on a GPU."""

from dataclasses import replace
from itertools import product
from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.per_layer_input.reference import gate_per_layer_input
from facet.kernels.quantized import int8_groups, reference, shuffled_product
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.int8_groups import can_shuffle, shuffle, unshuffle
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.matrix_format import MatrixFormat, ScaleFormat

pytest.importorskip("triton")
from facet.kernels.quantized.int8_groups.dequantize import dequantize
from facet.kernels.quantized.int8_groups.tuning import MAX_WIDE_ROWS, Tuning, choose_tuning
from facet.kernels.quantized.widen import widen
from tests.kernels.gluon_emulator import emulated
from tests.kernels.int8_groups_machine import LANGUAGES, NAMES

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
ROOM, SHUFFLED = "facet.kernels.quantized.int8_groups", "facet.kernels.quantized.shuffled"

WIDE = Tuning(tiles=2, num_out_warps=2, num_in_warps=1)
DEEP = Tuning(tiles=1, num_out_warps=1, num_in_warps=4)
BOTH = Tuning(tiles=2, num_out_warps=2, num_in_warps=2)


def format_of(group: int, dtype: str = "float16", bits: int | None = None) -> MatrixFormat:
    return MatrixFormat(codes="int8", scales=ScaleFormat(dtype=dtype, group=group), stored_bits=bits)


Q8_0, Q5_0 = format_of(32), format_of(32, bits=5)
# Codes of eight bits, and as files have them.
WIDE_Q6_K, WIDE_Q5_K = FORMATS["int8 groups"], FORMATS["int8 minimums"]
Q6_K, Q5_K = replace(WIDE_Q6_K, stored_bits=6), replace(WIDE_Q5_K, stored_bits=5)


@pytest.fixture(scope="module")
def few_rows() -> ModuleType:
    if HAS_GPU:
        from facet.kernels.quantized.int8_groups import few_rows

        return few_rows
    names = [f"{SHUFFLED}.tiles", f"{ROOM}.tiles", f"{ROOM}.few_rows_kernel", f"{ROOM}.few_rows"]
    return emulated(names, *LANGUAGES, own=NAMES)


def expected(operation: str, x: Tensor, matrix: QuantizedMatrix, given: Tensor) -> Tensor:
    """Rounded where the engine rounds."""
    products = reference.linear(x.float(), matrix).to(x.dtype)
    if operation == "gated_input_linear":
        return gate_per_layer_input(products, given)
    return geglu(products) if operation == "geglu_linear" else products


def run(room: ModuleType, operation: str, x: Tensor, matrix: QuantizedMatrix, given: Tensor, tuning: object) -> Tensor:
    shuffled = shuffle(matrix, is_gated=operation == "geglu_linear")
    result: Tensor = room.multiply(x, shuffled, given if operation == "gated_input_linear" else None, tuning)
    return result


@pytest.mark.parametrize(
    ("operation", "case", "num_rows", "tuning"),
    [
        ("linear", Case(format=Q8_0), 1, WIDE),
        ("linear", Case(format=Q8_0, num_in=352), 11, DEEP),  # warps without a block, and half a block
        ("linear", Case(format=format_of(64, "bfloat16"), num_out=80), 64, BOTH),  # tiles that are not there
        ("linear", Case(format=format_of(128, "bfloat16"), num_in=640), 8, DEEP),
        ("linear", Case(format=format_of(128), num_in=544), 3, BOTH),  # half of a pair of blocks
        ("geglu_linear", Case(format=Q5_0, num_in=1024), 5, BOTH),
        ("gated_input_linear", Case(format=Q8_0), 19, WIDE),
        ("linear", Case(format=Q8_0, num_out=32, num_in=256), 70, None),  # more rows than a program takes
        ("linear", Case(format=WIDE_Q6_K), 1, WIDE),
        ("linear", Case(format=Q6_K, num_out=80, num_in=768), 11, DEEP),
        ("geglu_linear", Case(format=Q6_K, num_in=1024), 5, BOTH),
        ("gated_input_linear", Case(format=Q6_K), 33, None),
        ("linear", Case(format=WIDE_Q5_K), 1, WIDE),
        ("linear", Case(format=Q5_K, num_out=80, num_in=768), 11, DEEP),
        ("geglu_linear", Case(format=Q5_K, num_in=1024), 5, BOTH),
        ("gated_input_linear", Case(format=Q5_K), 33, None),
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


@pytest.mark.parametrize("tuning", [WIDE, BOTH], ids=str)
@pytest.mark.parametrize("format", [Q8_0, Q6_K, Q5_K], ids=lambda format: format.line)
def test_a_row_is_the_same_bits_in_any_company(few_rows: ModuleType, tuning: Tuning, format: MatrixFormat) -> None:
    case = Case(format=format, num_out=64, num_in=256)
    matrix, x = shuffle(case.matrix(DEVICE)), case.inputs(65, torch.bfloat16, DEVICE)[1:]
    alone = few_rows.multiply(x[:1], matrix, None, tuning)
    for num_rows in (2, 16, 32, 64):
        assert torch.equal(few_rows.multiply(x[:num_rows], matrix, None, tuning)[:1], alone)


def test_only_warps_that_divide_inputs_change_the_order_of_sums(few_rows: ModuleType) -> None:
    """The same bits from any cut along outputs: rows decide about those alone."""
    case = Case(format=Q8_0, num_out=64, num_in=384)
    matrix, x = shuffle(case.matrix(DEVICE)), case.inputs(8, torch.bfloat16, DEVICE)
    cuts = [Tuning(tiles=tiles, num_out_warps=warps, num_in_warps=2) for tiles, warps in product((1, 2), repeat=2)]
    first, *others = (few_rows.multiply(x, matrix, None, cut) for cut in cuts)
    assert all(torch.equal(other, first) for other in others)
    for num_tiles, num_blocks in ((2688, 84), (336, 336), (1280, 40), (160, 160), (16, 40)):
        assert len({choose_tuning(num_tiles, num_blocks, rows).num_in_warps for rows in (1, 16, 64, 2000)}) == 1


def test_every_code_and_every_scale(few_rows: ModuleType) -> None:
    """One input at a time: what comes out is a value, rounded."""
    for format in (Q8_0, WIDE_Q6_K, Q6_K):
        matrix = Case(format=format, num_out=16, num_in=256).matrix(DEVICE)
        codes = torch.arange(256, device=DEVICE).to(torch.int8)
        matrix.codes.copy_(codes // 4 if format.stored_bits else codes)
        if matrix.coarse_scales is not None:
            scales = torch.arange(256, device=DEVICE).to(torch.int8)
            matrix.scales.copy_(scales.view(16, 16))
        for rows in torch.eye(256, dtype=torch.bfloat16, device=DEVICE).split(64):
            got = few_rows.multiply(rows, shuffle(matrix), None, WIDE)
            assert torch.equal(got, (rows.float() @ matrix.values().t()).to(got.dtype)), format.line


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    ("format", "num_in"),
    [(Q8_0, 352), (Q5_0, 512), (format_of(64, "bfloat16"), 704), (format_of(128), 640)]
    + [(format, num_in) for format in (WIDE_Q6_K, Q6_K, WIDE_Q5_K, Q5_K) for num_in in (512, 1280)],
)
def test_shuffling_loses_nothing(format: MatrixFormat, num_in: int, is_gated: bool) -> None:
    matrix = Case(format=format, num_in=num_in).matrix()
    shuffled = shuffle(matrix, is_gated=is_gated)
    if num_in == 512:
        assert sum(tensor.nbytes for tensor in shuffled.tensors().values()) == format.num_bytes((96, 512))
    back = unshuffle(shuffled)
    assert back.format == matrix.format
    assert set(back.tensors()) == set(matrix.tensors())
    for name, tensor in matrix.tensors().items():
        assert torch.equal(back.tensors()[name], tensor), name
        assert back.tensors()[name].dtype == tensor.dtype


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    ("format", "num_in"),
    [(Q8_0, 352), (Q5_0, 512), (format_of(64, "bfloat16"), 704), (format_of(128), 640)]
    + [(format, 768) for format in (WIDE_Q6_K, Q6_K, WIDE_Q5_K, Q5_K)],
)
def test_dequantized_values_are_the_matrix(format: MatrixFormat, num_in: int, is_gated: bool) -> None:
    matrix = Case(format=format, num_in=num_in).matrix(DEVICE)
    values = dequantize(shuffle(matrix, is_gated=is_gated), torch.float32)
    torch.testing.assert_close(values, matrix.values(), atol=1e-8, rtol=2**-22)
    assert torch.equal(values, widen(matrix, torch.float32))


@pytest.mark.parametrize("ids", [[5], [[0, 95], [7, 7]], [96, 3, 0], []])
@pytest.mark.parametrize(
    ("format", "num_in"), [(Q8_0, 352), (format_of(128), 640), (WIDE_Q6_K, 1280), (Q6_K, 256), (Q5_K, 768)]
)
def test_rows_are_looked_up_bit_for_bit(format: MatrixFormat, num_in: int, ids: list[int]) -> None:
    matrix, token_ids = Case(format=format, num_in=num_in).matrix(DEVICE), torch.tensor(ids, device=DEVICE).long()
    expected = matrix.values()[torch.where(token_ids < 96, token_ids, 0)]
    assert torch.equal(int8_groups.look_up(token_ids, shuffle(matrix)), expected)


def test_large_matrices_are_shuffled_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = Case(format=Q6_K).matrix()
    whole = shuffle(matrix)
    monkeypatch.setattr("facet.kernels.quantized.int8_groups.shuffled._STEP_BYTES", 512 * 40)
    assert torch.equal(shuffle(matrix).codes, whole.codes)


@pytest.mark.parametrize("operation", ["linear", "geglu_linear", "gated_input_linear"])
def test_many_rows_in_slices(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled_product, "_SLICE_BYTES", 2 * 256 * 40)  # 32 of 96 outputs
    case = Case(format=Q6_K, num_in=256)
    dtype = torch.bfloat16 if HAS_GPU else torch.float32  # the interpreter's bfloat16 is not the GPU's
    matrix, x = case.matrix(DEVICE), case.inputs(MAX_WIDE_ROWS + 1, dtype, DEVICE)
    given = torch.randn(len(x), case.num_out, dtype=dtype, device=DEVICE)
    shuffled = shuffle(matrix, is_gated=operation == "geglu_linear")
    got = int8_groups.multiply(x, shuffled, given if operation == "gated_input_linear" else None)
    tolerance = 2e-2 if HAS_GPU else 1e-5
    torch.testing.assert_close(got, expected(operation, x, matrix, given), atol=tolerance, rtol=tolerance)


def test_rows_are_taken_in_tiles() -> None:
    matrix = Case(format=Q5_K).matrix()
    some = shuffle(matrix).rows(slice(16, 64))
    assert torch.equal(unshuffle(some).values(), matrix.rows(slice(16, 64)).values())
    with pytest.raises(AssertionError, match="tiles of 16"):
        shuffle(matrix).rows(slice(8, 64))


@pytest.mark.parametrize("name", ["int4 groups", "uint4 minimums", "int8 rows", "int8 token zeros", "fp8 blocks"])
def test_other_formats_are_refused(name: str) -> None:
    assert not can_shuffle(FORMATS[name], (96, 512))
    with pytest.raises(AssertionError, match="no kernel here"):
        shuffle(Case(format=FORMATS[name]).matrix())
    assert not can_shuffle(Q8_0, (96, 520))
    assert not can_shuffle(Q8_0, (90, 512))
    assert not can_shuffle(Q6_K, (96, 352))
    assert not can_shuffle(Q8_0, (4, 96, 512))


def test_codes_of_more_bits_than_the_format_says_are_found() -> None:
    matrix = Case(format=Q6_K).matrix()
    matrix.codes[3, 5] = 64
    with pytest.raises(AssertionError, match="as few bits"):
        shuffle(matrix)
