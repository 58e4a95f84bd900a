"""Products with matrices of eight bits, and rows rounded, as Triton computes them: against the references."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.moe.reference import sum_of_chosen
from facet.kernels.per_layer_input.reference import gate_per_layer_input
from facet.kernels.quantized import eight_bits, reference
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.eight_bits import ChooseConfig, Config, choose_config, choose_in_one_order, row_codes
from facet.kernels.quantized.eight_bits.config import WIDENED_ROW
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.rounding import round_inputs
from facet.kernels.rounded_rows import MeasuredRows, RoundedRows
from facet.kernels.tolerance import Tolerance

ROUNDED = ("int8 token", "fp8 token")
NAMES = ("int8 rows", "int8 token", "fp8 rows", "fp8 token")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIG = Config(16, 32, 128, num_warps=4, num_stages=2)
IN_SHARES = replace(CONFIG, shares=3)
SUMS = Tolerance(absolute=2e-3, relative=2e-3, why="float16 results of float32 sums in another order")


def product(
    x: Tensor, matrix: QuantizedMatrix, name: str, given: Tensor | None = None, config: Config = CONFIG
) -> Tensor:
    """On whatever runs kernels here; all tensors are those of the host."""
    from facet.kernels.quantized.eight_bits import triton
    from facet.kernels.quantized.eight_bits.row_rounding import round_rows

    there = QuantizedMatrix(
        format=matrix.format, **{name: tensor.to(DEVICE) for name, tensor in matrix.tensors().items()}
    )
    inputs = x.to(DEVICE)
    rows = inputs if matrix.format.rounding is None else round_rows(inputs, row_codes(matrix.format))
    if name == "gated_input_linear":
        assert given is not None
        return triton.gated_input_linear(rows, there, given.to(DEVICE), config).cpu()
    run = triton.geglu_linear if name == "geglu_linear" else triton.linear
    return run(rows, there, config).cpu()


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize(("num_rows", "width"), [(1, 320), (5, 2400), (66, 320)])
def test_rows_are_rounded_as_the_definition_says(name: str, num_rows: int, width: int) -> None:
    case = Case(format=FORMATS[name], num_in=width)
    x = case.inputs(num_rows, torch.float16)
    x[-1] *= 100
    check_rows(eight_bits.round_rows(x.to(DEVICE), case.format), x, case)


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize(("num_rows", "width"), [(3, 320), (2, 2112), (2, 4096), (2, 24592)])
def test_gated_activations_are_rounded_as_in_two_steps(name: str, num_rows: int, width: int) -> None:
    """Bit for bit, also where the last part of a row is short, and where a program cannot hold the row."""
    from facet.kernels.geglu import triton
    from facet.kernels.quantized.eight_bits.row_rounding import round_geglu, round_rows

    codes = row_codes(FORMATS[name])
    gate_up = Case(format=FORMATS[name], num_in=2 * width).inputs(num_rows, torch.float16).to(DEVICE)
    got, expected = round_geglu(gate_up, codes), round_rows(triton.geglu(gate_up), codes)
    assert torch.equal(got.codes.view(torch.uint8), expected.codes.view(torch.uint8))
    assert torch.equal(got.scales, expected.scales)
    assert (expected.scales.flatten() > 0).tolist() == [False] + [True] * (num_rows - 1), "a row of zeros, and others"


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("num_rows", [1, 65])
def test_a_nan_spoils_its_row(name: str, num_rows: int) -> None:
    """And is not lost, whichever program finds it."""
    x = torch.ones(num_rows, 2400, dtype=torch.float16)
    x[0, 2100] = torch.nan
    rows = eight_bits.round_rows(x.to(DEVICE), FORMATS[name])
    numbers = rows.codes.cpu().float() * rows.scales.cpu()
    assert numbers[0].isnan().all()
    assert not numbers[1:].isnan().any()


@pytest.mark.parametrize("name", ROUNDED)
def test_norms_round_what_they_return(name: str) -> None:
    from facet.kernels.add_norm import triton as add_norm
    from facet.kernels.rms_norm import triton as rms_norm

    case = Case(format=FORMATS[name], num_in=320)
    x, update = case.inputs(5, torch.float16), case.inputs(5, torch.float16, seed=2)
    weight, factor = torch.rand(320) + 0.5, torch.tensor(0.5, dtype=torch.float16)
    codes = row_codes(case.format)
    there = [tensor.to(DEVICE) for tensor in (x, update, weight, factor)]
    plain = rms_norm.rms_norm(there[0], there[2], 1e-6)
    check_rows(rms_norm.rounded_rms_norm(there[0], there[2], 1e-6, codes), plain.cpu(), case)
    arguments = (there[0], there[1], there[2], there[2], 1e-6, there[3])
    new, normed = add_norm.add_norm(*arguments)
    same, rounded = add_norm.rounded_add_norm(*arguments, codes)
    assert torch.equal(new, same)
    assert normed is not None
    check_rows(rounded, normed.cpu(), case)


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("width", [320, 2112, 4352])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_norms_of_many_rows_round_what_they_return(name: str, width: int, is_scaled: bool) -> None:
    """Sums are of another order than those of few rows, but little depends on it."""
    from facet.kernels.add_norm import triton, triton_rounded

    case = Case(format=FORMATS[name], num_in=width)
    x, update = (case.inputs(3, torch.float16, seed=seed).to(DEVICE) for seed in (1, 2))
    factors = torch.rand(2, width, device=DEVICE) + 0.5
    factor = torch.tensor(0.75, dtype=torch.float16, device=DEVICE) if is_scaled else None
    arguments = (x, update, factors[0], factors[1], 1e-6, factor)
    new, rows = triton_rounded.rounded_add_norm(*arguments, row_codes(case.format))
    expected, normed = triton.add_norm(*arguments)
    assert normed is not None
    assert (new != expected).float().mean() <= 5e-3
    SUMS.check(new.cpu(), expected.cpu())
    numbers = (rows.codes.float() * rows.scales).to(x.dtype).cpu()
    rounded = round_inputs(normed.cpu(), case.matrix())
    assert (numbers != rounded).float().mean() <= 2e-2
    assert (numbers.float() - rounded.float()).norm() <= 4e-3 * rounded.float().norm()


def check_rows(rows: RoundedRows, x: Tensor, case: Case) -> None:
    numbers = (rows.codes.cpu().float() * rows.scales.cpu()).to(x.dtype)
    assert torch.equal(numbers, round_inputs(x, case.matrix()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("num_in", "num_rows", "num_out", "config"), [(512, 1, 96, IN_SHARES), (336, 5, 70, CONFIG), (512, 20, 34, CONFIG)]
)
def test_products_and_activations(name: str, num_in: int, num_rows: int, num_out: int, config: Config) -> None:
    case = Case(format=FORMATS[name], num_in=num_in, num_out=num_out)
    matrix, x = case.matrix(), case.inputs(num_rows, torch.float16)
    x[0, :7] = 1
    given = torch.randn(num_rows, num_out).to(x.dtype)
    expected = reference.linear(x, matrix)
    SUMS.check(product(x, matrix, "linear", config=config), expected)
    SUMS.check(product(x, matrix, "geglu_linear", config=config), geglu(expected))
    SUMS.check(product(x, matrix, "gated_input_linear", given, config), gate_per_layer_input(expected, given))
    some = matrix.rows(slice(16, 34))
    SUMS.check(product(x, some, "linear", config=config), expected[:, 16:34])


@pytest.mark.parametrize("name", ["int8 rows", "fp8 rows"])
@pytest.mark.parametrize(("num_in", "num_out"), [(512, 96), (336, 70), (4096, 6), (1040, 5)])
def test_one_row_in_float32_arithmetic(name: str, num_in: int, num_out: int) -> None:
    """Tiles that are whole and not, several and one; outputs that programs divide and not."""
    case = Case(format=FORMATS[name], num_in=num_in, num_out=num_out)
    matrix, x = case.matrix(DEVICE), case.inputs(2, torch.float16)[1:].to(DEVICE)
    got = eight_bits.linear(x, matrix, lambda *_: WIDENED_ROW)
    SUMS.check(got.cpu(), reference.linear(x, matrix).cpu())
    apart = torch.cat([x[:, :2], x], dim=1)[:, 2:]  # words of four inputs lie across those that are loaded at once
    assert torch.equal(eight_bits.linear(apart, matrix, lambda *_: WIDENED_ROW), got)


@pytest.mark.parametrize("codes", ["int8", "fp8"])
def test_one_row_widens_every_code_exactly(codes: str) -> None:
    """A single one picks a column of the matrix, whose numbers are all that a byte can be."""
    matrix = QuantizedMatrix.empty(FORMATS[f"{codes} rows"], (256, 512), torch.device(DEVICE))
    every = torch.arange(256, dtype=torch.int16, device=DEVICE).to(torch.uint8)
    every[every.view(matrix.codes.dtype).float().isnan()] = 0
    for place in range(4):
        numbers = torch.zeros(256, 512, dtype=torch.uint8, device=DEVICE)
        numbers[:, 8 + place] = every
        matrix.codes.copy_(numbers.view(matrix.codes.dtype))
        matrix.scales.fill_(0.5)
        x = torch.zeros(1, 512, dtype=torch.float16, device=DEVICE)
        x[0, 8 + place] = 2
        got = eight_bits.linear(x, matrix, lambda *_: WIDENED_ROW)
        assert torch.equal(got[0], matrix.codes[:, 8 + place].half())


def test_when_a_row_is_widened() -> None:
    chosen = [choose_config(num_rows, 262144, 5376, "widened", is_plain=True) for num_rows in (0, 1, 2)]
    assert [each is not None and each.is_vector for each in chosen] == [False, True, False]
    rounded = choose_config(1, 262144, 5376, "fp8", is_plain=True)
    assert rounded is not None
    assert not rounded.is_vector
    invariant = choose_in_one_order(1, 262144, 5376, "widened", is_plain=True)
    assert invariant is not None
    assert not invariant.is_vector, "one order of sums"


def test_when_pytorch_multiplies() -> None:
    """Many rows of fp8, if outputs are as many as its product takes."""
    chosen = [choose_config(num_rows, num_out, 2560, "fp8") for num_rows, num_out in ((64, 256), (65, 256), (65, 8))]
    assert [each is None for each in chosen] == [False, True, False]
    assert choose_config(65, 256, 2560, "exact") is not None, "int8"


@pytest.mark.parametrize("name", ROUNDED)
def test_a_row_is_the_same_in_company(name: str) -> None:
    case = Case(format=FORMATS[name])
    matrix, x = case.matrix(), case.inputs(21, torch.float16)
    together = product(x, matrix, "linear", config=IN_SHARES)
    for row in (0, 1, 20):
        assert torch.equal(product(x[row : row + 1], matrix, "linear", config=IN_SHARES)[0], together[row])


@pytest.mark.parametrize("name", [*ROUNDED, *(() if DEVICE == "cpu" else ("int8 rows", "fp8 rows"))])
@pytest.mark.parametrize("operation", ["linear", "geglu_linear"])
def test_tiles_change_no_bit(name: str, operation: str) -> None:
    """Exact sums have the same in any order. Widened codes are added in one chain by tensor cores, products of fp8 in
    the order of the matrix (`test_eight_bit_order.py`)."""
    case = Case(format=FORMATS[name], num_out=192, num_in=1536)
    matrix, x = case.matrix(DEVICE), case.inputs(258, torch.bfloat16 if DEVICE == "cuda" else torch.float16).to(DEVICE)
    multiply = getattr(eight_bits, operation)
    together = multiply(x, matrix, choose_in_one_order)
    for num_rows in (1, 9, 17, 33, 65):  # one for each configuration
        assert torch.equal(multiply(x[-num_rows:], matrix, choose_in_one_order), together[-num_rows:]), num_rows


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("choose", [choose_config, choose_in_one_order])
def test_a_row_behind_an_activation_is_the_same_in_company(name: str, choose: ChooseConfig) -> None:
    """Though it is rounded by its product when it is alone, and by a kernel before when it is not."""
    gate_up = Case(format=FORMATS[name], num_out=160, num_in=512)
    down = Case(format=FORMATS[name], num_out=64, num_in=80)
    matrices = gate_up.matrix(DEVICE), down.matrix(DEVICE)
    x = gate_up.inputs(3, torch.float16).to(DEVICE)

    def mlp(rows: Tensor) -> Tensor:
        hidden = eight_bits.rounded_geglu_linear(rows, matrices[0], choose, row_codes(down.format))
        assert isinstance(hidden, MeasuredRows)
        return eight_bits.linear(hidden, matrices[1], choose)

    together = mlp(x)
    assert together[1:].isfinite().all()
    for row in range(3):
        assert torch.equal(mlp(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("num_rows", [1, 19])
@pytest.mark.parametrize("config", [CONFIG, IN_SHARES])
def test_activations_tell_their_largest_magnitudes(name: str, num_rows: int, config: Config) -> None:
    from facet.kernels.quantized.eight_bits import triton
    from facet.kernels.quantized.eight_bits.row_rounding import round_rows

    case = Case(format=FORMATS[name], num_in=512, num_out=100)  # the last program has 2 columns of 16
    matrix, x = case.matrix(DEVICE), case.inputs(num_rows + 1, torch.float16)[1:].to(DEVICE)
    rows = eight_bits.round_rows(x, case.format)
    measured = triton.measured_geglu_linear(rows, matrix, config)
    assert torch.equal(measured.values, triton.geglu_linear(rows, matrix, config))
    largest = [part.abs().amax(1) for part in measured.values.float().split(16, dim=1)]
    assert torch.equal(measured.magnitudes, torch.stack(largest, dim=1))
    codes = row_codes(case.format)
    got, expected = round_rows(measured, codes), round_rows(measured.values, codes)
    assert torch.equal(got.codes.view(torch.uint8), expected.codes.view(torch.uint8))
    assert torch.equal(got.scales, expected.scales)


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("num_rows", [1, 9])
def test_experts(name: str, num_rows: int) -> None:
    """Against the reference, expert by expert."""
    from facet.kernels.moe import triton
    from facet.kernels.moe.config import TileConfig
    from facet.kernels.moe.triton_groups import ExpertMatrices

    num_experts, num_chosen, hidden, width = 5, 2, 64, 48
    gate_up = Case(format=FORMATS[name], num_out=2 * width, num_in=hidden, num_experts=num_experts).matrix()
    down = Case(format=FORMATS[name], num_out=hidden, num_in=width, num_experts=num_experts).matrix(seed=1)
    x = Case(format=FORMATS[name], num_in=hidden).inputs(num_rows, torch.float16)
    chosen = torch.rand(num_rows, num_experts).argsort(-1)[:, :num_chosen]
    weights = torch.rand(num_rows, num_chosen)

    def run_expert(rows: Tensor, expert: int) -> Tensor:
        return reference.linear(geglu(reference.linear(rows, gate_up.expert(expert))), down.expert(expert))

    expected = sum_of_chosen(x, weights, chosen, run_expert)
    tile = TileConfig(block_rows=16, block_out=32, block_in=32, num_warps=4, num_stages=2)
    got = triton.run_rounded_experts(
        eight_bits.round_rows(x.to(DEVICE), FORMATS[name]),
        weights.to(DEVICE),
        chosen.to(DEVICE),
        ExpertMatrices(gate_up.codes.to(DEVICE), gate_up.scales.to(DEVICE)),
        ExpertMatrices(down.codes.to(DEVICE), down.scales.to(DEVICE)),
        lambda rows: eight_bits.round_rows(rows, FORMATS[name]),
        (tile, tile),
    )
    # A hidden number between two codes may fall to either side, and those of fp8 are up to an eighth of it apart: one
    # such number was once 0.0101 of the whole.
    assert (got.cpu().float() - expected.float()).norm() <= 0.03 * expected.float().norm()


@pytest.mark.parametrize("name", ROUNDED)
def test_experts_of_a_row_do_not_depend_on_company(name: str) -> None:
    num_experts, num_chosen, hidden, width = 8, 2, 64, 48
    gate_up = Case(format=FORMATS[name], num_out=2 * width, num_in=hidden, num_experts=num_experts).matrix(DEVICE)
    down = Case(format=FORMATS[name], num_out=hidden, num_in=width, num_experts=num_experts).matrix(DEVICE, seed=1)
    x = Case(format=FORMATS[name], num_in=hidden).inputs(80, torch.float16).to(DEVICE)
    chosen = torch.rand(80, num_experts).argsort(-1)[:, :num_chosen].to(DEVICE)
    weights = torch.rand(80, num_chosen).to(DEVICE)
    together = eight_bits.invariant_run_experts(x, weights, chosen, gate_up, down)
    for rows in (slice(3, 4), slice(70, 80)):
        got = eight_bits.invariant_run_experts(x[rows], weights[rows], chosen[rows], gate_up, down)
        assert torch.equal(got, together[rows])


def test_which_formats_are_served() -> None:
    served = {name for name, format in FORMATS.items() if eight_bits.serves(format, 512)}
    assert served == set(NAMES)
    assert not eight_bits.serves(FORMATS["fp8 token"], 520)


def test_rounded_rows_say_what_they_stand_for() -> None:
    x = torch.zeros(3, 32, dtype=torch.bfloat16)
    rows = row_codes(FORMATS["fp8 token"]).empty(x)
    assert isinstance(rows, RoundedRows)
    assert (rows.codes.dtype, rows.scales.shape, rows.dtype) == (torch.float8_e4m3fn, (3, 1), torch.bfloat16)
