"""Matrices in few bits: what their codes mean, products with them, and how inputs are rounded."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels import quantized
from facet.kernels.linear.invariant import linear as invariant_linear
from facet.kernels.quantized import cases, cpu, gpu, join_rows, reference, stack
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.matrix import QuantizedMatrix, decode, decode_bytes
from facet.kernels.quantized.quantize import quantize
from facet.kernels.quantized.rounding import round_inputs, to_int8
from facet.matrix_format import MatrixFormat, ScaleFormat

NAMES = tuple(FORMATS)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
linear = partial(quantized.linear, in_one_chain=False)


def by_the_formula(matrix: QuantizedMatrix, row: int, column: int) -> float:
    """(code - zero) * scale - minimum, one number at a time."""
    format = matrix.format
    code: float
    if format.code_bits == 4:
        byte = int(matrix.codes[row, column // 2])
        nibble = byte >> 4 if column % 2 else byte & 15
        code = {"int4": nibble - 8, "uint4": nibble, "fp4": E2M1[nibble]}[format.codes]
    else:
        code = float(matrix.codes[row, column])

    def at(tensor: Tensor | None, of: ScaleFormat | None, default: float) -> float:
        if tensor is None:
            return default
        assert of is not None
        return float(tensor[row, 0 if of.group is None else column // of.group])

    fine, coarse = format.scales, format.coarse_scales
    scale = at(matrix.scales, fine, 1.0) * at(matrix.coarse_scales, coarse, 1.0)
    minimum = at(matrix.minimums, fine, 0.0) * at(matrix.coarse_minimums, coarse, 1.0)
    return (code - at(matrix.zeros, fine, 0.0)) * scale - minimum


@pytest.mark.parametrize("name", NAMES)
def test_values_are_what_the_formula_says(name: str) -> None:
    matrix = Case(format=FORMATS[name]).matrix()
    values = matrix.values()
    for row, column in ((0, 0), (0, 1), (3, 31), (5, 32), (17, 300), (95, 511)):
        place = column if matrix.order is None else int(matrix.order[column])
        assert values[row, place].item() == pytest.approx(by_the_formula(matrix, row, column), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_product_is_that_of_the_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "TILE_VALUES", 40 * 512)  # tiles of 40, 40 and 16 rows
    case = Case(format=FORMATS[name])
    matrix, x = case.matrix(), case.inputs(5, torch.float32)
    expected = functional.linear(round_inputs(x, matrix), matrix.values())
    if matrix.output_scale is not None:
        expected = (expected / matrix.output_scale).round().clamp(-128, 127) * matrix.output_scale
    cases.FLOAT32.check(linear(x, matrix, functional.linear), expected)
    some = linear(x, matrix.rows(slice(10, 30)), functional.linear)
    cases.FLOAT32.check(some, expected[:, 10:30])
    half = linear(x.to(torch.bfloat16), matrix, functional.linear)
    assert half.dtype == torch.bfloat16
    assert (half.float() - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.parametrize("name", NAMES)
def test_company_changes_no_bit_where_that_is_promised(name: str) -> None:
    case = Case(format=FORMATS[name])
    matrix, x = case.matrix(), case.inputs(21, torch.float32)
    together = quantized.linear(x, matrix, invariant_linear, in_one_chain=True)
    for row in (0, 1, 20):
        alone = quantized.linear(x[row : row + 1], matrix, invariant_linear, in_one_chain=True)
        assert torch.equal(alone[0], together[row])


def test_a_last_group_may_be_short() -> None:
    """200 inputs in groups of 128, as block scales leave them."""
    case = Case(format=FORMATS["fp8 blocks"], num_in=200)
    matrix, x = case.matrix(), case.inputs(3, torch.float32)
    assert matrix.scales.shape == (96, 2)
    assert matrix.values()[7, 150].item() == pytest.approx(by_the_formula(matrix, 7, 150))
    cases.FLOAT32.check(
        linear(x, matrix, functional.linear), functional.linear(round_inputs(x, matrix), matrix.values())
    )


@pytest.mark.parametrize("name", ["int8 token", "int8 token zeros"])
def test_sums_of_integers_are_the_same_product(name: str) -> None:
    case = Case(format=FORMATS[name])
    matrix, x = case.matrix(), case.inputs(9, torch.float32)
    assert cpu.is_of_integers(matrix)
    cases.FLOAT32.check(cpu.int8_linear(x, matrix), reference.linear(x, matrix))


@pytest.mark.skipif(not cpu.has_vectors(), reason="PyTorch has no fast kernel for this processor")
class TestFewRowsOnAProcessor:
    MATRIX = Case(format=FORMATS["int8 rows"]).matrix()

    @pytest.mark.parametrize("num_rows", [1, cpu.MAX_FEW_ROWS])
    def test_they_are_multiplied_by_codes(self, num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
        x = Case(format=self.MATRIX.format).inputs(num_rows, torch.bfloat16)
        monkeypatch.setattr(reference, "linear", refuse)
        found = cpu.linear(x, self.MATRIX, functional.linear, in_one_chain=False)
        expected = x.float() @ self.MATRIX.values().t()
        assert found.dtype == torch.bfloat16
        assert (found.float() - expected).norm() <= 6e-3 * expected.norm()  # rounded twice

    @pytest.mark.parametrize(
        ("num_rows", "dtype", "in_one_chain"),
        [
            (cpu.MAX_FEW_ROWS + 1, torch.bfloat16, False),
            (1, torch.float32, False),  # not vectorised
            (1, torch.bfloat16, True),
        ],
    )
    def test_others_are_multiplied_by_values(
        self, num_rows: int, dtype: torch.dtype, in_one_chain: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: False)
        x = Case(format=self.MATRIX.format).inputs(num_rows, dtype)
        found = cpu.linear(x, self.MATRIX, functional.linear, in_one_chain=in_one_chain)
        assert torch.equal(found, reference.linear(x, self.MATRIX))


def test_codes_of_fp4_become_their_numbers() -> None:
    found = decode(torch.arange(16, dtype=torch.uint8), "fp4")
    assert found.tolist() == list(E2M1)
    assert torch.equal(found.signbit(), torch.arange(16) >= 8)


def test_codes_of_fp8_become_their_numbers() -> None:
    """All but the two that are none."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    codes = codes[~codes.float().isnan()]
    found = decode_bytes(codes)
    assert len(codes) == 254
    assert torch.equal(found, codes.float())
    assert torch.equal(found.signbit(), codes.float().signbit())


class TestTilesInBfloat16:
    @pytest.fixture(autouse=True)
    def has_products(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: True)

    @pytest.mark.parametrize("name", [name for name in NAMES if FORMATS[name].rounding != "int8_token"])
    def test_a_product_is_that_of_the_values(self, name: str) -> None:
        case = Case(format=FORMATS[name])
        matrix, x = case.matrix(), case.inputs(cpu.MAX_FEW_ROWS + 1, torch.bfloat16)
        found = cpu.linear(x, matrix, functional.linear, in_one_chain=False)
        assert found.dtype == torch.bfloat16
        values = matrix.values()
        loses_digits = not torch.equal(values.bfloat16().float(), values)
        assert torch.equal(found, reference.linear(x, matrix)) is not loses_digits
        expected = round_inputs(x, matrix).float() @ matrix.values().t()
        step = 0.0 if matrix.output_scale is None else float(matrix.output_scale)
        assert (found.float() - expected).norm() <= 4e-3 * expected.norm() + step * expected.numel() ** 0.5

    @pytest.mark.parametrize(
        ("name", "dtype", "in_one_chain"),
        [
            ("int4 groups", torch.float32, False),
            ("int4 groups", torch.bfloat16, True),  # company must change no bit
        ],
    )
    def test_others_are_multiplied_in_float32(self, name: str, dtype: torch.dtype, in_one_chain: bool) -> None:
        case = Case(format=FORMATS[name])
        matrix, x = case.matrix(), case.inputs(cpu.MAX_FEW_ROWS + 1, dtype)
        found = cpu.linear(x, matrix, functional.linear, in_one_chain=in_one_chain)
        assert torch.equal(found, reference.linear(x, matrix))


def test_only_plain_rows_of_integers_are_multiplied_as_such() -> None:
    found = {name for name, format in FORMATS.items() if cpu.is_of_integers(Case(format=format).matrix())}
    assert found == {"int8 token", "int8 token zeros"}


@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_counted_as_they_are(name: str) -> None:
    for num_experts in (None, 3):
        case = Case(format=FORMATS[name], num_experts=num_experts)
        found = sum(tensor.nbytes for tensor in case.matrix().tensors().values())
        stack_shape = () if num_experts is None else (num_experts,)
        assert case.format.num_bytes((*stack_shape, 96, 512)) == found


@pytest.mark.parametrize("name", ["int4 groups", "uint4 minimums", "fp4 coarse", "fp8 static"])
def test_parts_make_a_whole(name: str) -> None:
    case = Case(format=FORMATS[name], num_experts=3)
    experts = case.matrix()
    again = stack([experts.expert(index) for index in range(3)])
    upper, lower = experts.rows(slice(0, 40)), experts.rows(slice(40, None))
    for other in (again, join_rows([upper, lower])):
        assert torch.equal(other.values(), experts.values())
    copy = QuantizedMatrix.empty(case.format, (3, 96, 512), torch.device("cpu"))
    copy.copy_rows(lower, slice(40, None))
    copy.copy_rows(upper, slice(0, 40))
    assert torch.equal(copy.values(), experts.values())


class TestRounding:
    def test_int8_rows_have_their_own_scales(self) -> None:
        x = torch.tensor([[0.0, 0.0], [127.5, -127.5], [1.0, 0.5]])
        codes, scales = to_int8(x)
        assert codes.tolist() == [[0, 0], [127, -128], [127, 64]]
        assert scales.flatten().tolist() == [0.0, 1.0, pytest.approx(1 / 127.5)]

    def test_halves_go_to_the_even_code(self) -> None:
        assert to_int8(torch.tensor([[0.5, 1.5, 2.5, -0.5]]), torch.tensor(1.0)).codes.tolist() == [[0, 2, 2, 0]]

    def test_a_scale_of_zero_rounds_nothing(self) -> None:
        case = Case(format=FORMATS["fp8 static"])
        matrix, x = case.matrix(), case.inputs(2, torch.float32)
        assert matrix.input_scale is not None
        assert not torch.equal(round_inputs(x, matrix), x)
        matrix.input_scale.fill_(0.0)
        assert torch.equal(round_inputs(x, matrix), x)

    @pytest.mark.parametrize("name", ["int8 token", "fp8 token", "fp8 blocks"])
    def test_a_row_is_rounded_by_itself(self, name: str) -> None:
        case = Case(format=FORMATS[name])
        matrix, x = case.matrix(), case.inputs(4, torch.float32)
        assert torch.equal(round_inputs(x * torch.tensor([[1.0], [1.0], [9.0], [0.01]]), matrix)[1],
                           round_inputs(x[1:2], matrix)[0])  # fmt: skip


class TestQuantize:
    def test_groups_are_as_q4_0_defines_them(self) -> None:
        """Number by number: scale = -(largest by magnitude) / 8, code = trunc(x / scale + 8.5)."""
        values = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
        values[1, :32] = 0
        format = MatrixFormat(codes="int4", scales=ScaleFormat(dtype="float16", group=32))
        found = quantize(values, format)
        codes = torch.stack((found.codes & 15, found.codes >> 4), -1).flatten(-2)
        for row in range(4):
            for group in range(2):
                numbers = values[row, 32 * group : 32 * group + 32].tolist()
                scale = max(numbers, key=abs) / -8
                expected = [min(15, int(number / scale + 8.5)) if scale else 8 for number in numbers]
                assert codes[row, 32 * group : 32 * group + 32].tolist() == expected
                assert found.scales[row, group].item() == pytest.approx(scale, rel=2**-11)

    @pytest.mark.parametrize(("codes", "error"), [("int8", 1 / 254), ("fp8", 1 / 28)])
    def test_rows_come_back_within_half_a_step(self, codes: str, error: float) -> None:
        values = torch.randn(6, 100, generator=torch.Generator().manual_seed(1))
        values[2] = 0
        found = quantize(values, MatrixFormat(codes=codes, scales=cases.ROW))  # type: ignore[arg-type]
        largest = values.abs().amax(-1, keepdim=True)
        assert ((found.values() - values).abs() <= error * largest + 1e-9).all()
        assert found.values()[2].eq(0).all()


# A last group may be short only where formats say so.
WIDTHS = [(name, 512) for name in NAMES]
WIDTHS += [(name, 200) for name in NAMES if FORMATS[name].scales.group in (None, 128)]


@pytest.mark.parametrize(("name", "num_in"), WIDTHS)
def test_widened_values_are_those_of_the_matrix(name: str, num_in: int) -> None:
    """In Triton's interpreter, or on a GPU."""
    pytest.importorskip("triton")
    from facet.kernels.quantized.widen import widen

    format = FORMATS[name]
    matrix = replace(Case(format=format, num_out=20, num_in=num_in).matrix(), order=None)
    there = QuantizedMatrix(format=format, **{name: tensor.to(DEVICE) for name, tensor in matrix.tensors().items()})
    expected = matrix.values()
    assert torch.allclose(widen(there, torch.float32).cpu(), expected, rtol=1e-6, atol=0)
    assert torch.equal(widen(there.rows(slice(3, 9)), torch.float16).cpu(), expected[3:9].half())


@pytest.mark.parametrize(("name", "num_in"), WIDTHS)
@pytest.mark.parametrize("num_rows", [1, 20])
def test_a_product_of_few_rows_is_that_of_the_values(
    name: str, num_in: int, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows that lie apart, and nothing but NaN around them."""
    pytest.importorskip("triton")
    from facet.kernels.quantized import few_rows

    monkeypatch.setattr(few_rows, "MIN_OUTPUTS", 40)
    case = Case(format=FORMATS[name], num_out=40, num_in=num_in)
    matrix, x = case.matrix(), case.inputs(num_rows + 1, torch.float16)[1:]
    there = QuantizedMatrix(
        format=matrix.format, **{name: tensor.to(DEVICE) for name, tensor in matrix.tensors().items()}
    )
    memory = torch.full((num_rows + 2, num_in + 8), math.nan, dtype=x.dtype, device=DEVICE)
    memory[1:-1, :num_in] = x.to(DEVICE)
    expected = reference.linear(x.float(), matrix)
    got = gpu.linear(memory[1:-1, :num_in], there, refuse, in_one_chain=False).cpu()
    assert (got.float() - expected).norm() <= 0.01 * expected.norm()


def refuse(*_operands: Tensor) -> Tensor:
    raise AssertionError("few rows have a kernel of their own")


@pytest.mark.skipif(DEVICE == "cpu", reason="sums are those of tensor cores")
@pytest.mark.parametrize("name", ["uint4 minimums", "int8 groups", "fp4 powers", "fp8 blocks"])
def test_few_rows_have_the_bits_of_many(name: str) -> None:
    """Where nobody asks for it, on Hopper; and on all cards where it has to be so."""
    from facet.kernels.quantized import few_rows

    case = Case(format=FORMATS[name], num_out=few_rows.MIN_OUTPUTS, num_in=5120)
    matrix, x = case.matrix(DEVICE), case.inputs(200, torch.bfloat16, DEVICE)
    many = gpu.linear(x, matrix, invariant_linear, in_one_chain=True)
    for num_rows in (1, 8, 17, 33, 64):
        some = x[-num_rows:]
        if few_rows.is_one_chain(x.device):
            assert torch.equal(gpu.linear(some, matrix, refuse, in_one_chain=True), many[-num_rows:]), num_rows
        assert torch.equal(gpu.linear(some, matrix, invariant_linear, in_one_chain=True), many[-num_rows:]), num_rows


@pytest.mark.parametrize("are_few", [True, False])
def test_which_rows_are_few(are_few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from facet.kernels.quantized import few_rows

    monkeypatch.setattr(few_rows, "MIN_OUTPUTS", 96)
    monkeypatch.setattr(few_rows, "is_one_chain", lambda _device: are_few)
    case = Case(format=FORMATS["int8 groups"])
    matrix, x = case.matrix(DEVICE), case.inputs(2, torch.float16, DEVICE)
    asked = []

    def product(x: Tensor, weight: Tensor) -> Tensor:
        asked.append(weight)
        return functional.linear(x, weight)

    gpu.linear(x, matrix, product, in_one_chain=True)
    assert len(asked) == (not are_few), "another order of sums, where one is promised"
    gpu.linear(x, matrix, refuse, in_one_chain=False)
    gpu.linear(x, matrix.rows(slice(0, 95)), product, in_one_chain=False)
    assert len(asked) == 2 - are_few, "too few outputs"


@pytest.mark.parametrize("name", ["uint4 zeros", "int4 reordered", "int8 static", "fp8 blocks"])
def test_a_product_by_widened_rows_is_that_of_the_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from facet.kernels.quantized import few_rows

    monkeypatch.setattr(gpu, "_SLICE_BYTES", 2 * 512 * 40)  # 40, 40 and 16 rows
    case = Case(format=FORMATS[name])
    matrix, x = case.matrix(), case.inputs(few_rows.MAX_ROWS + 1, torch.float16)
    there = QuantizedMatrix(
        format=matrix.format, **{name: tensor.to(DEVICE) for name, tensor in matrix.tensors().items()}
    )
    expected = reference.linear(x.float(), matrix)
    got = gpu.linear(x.to(DEVICE), there, functional.linear, in_one_chain=False).cpu()
    assert (got.float() - expected).norm() <= 0.01 * expected.norm()
