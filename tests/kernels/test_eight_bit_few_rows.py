"""Few rows of bfloat16 times codes of eight bits that are widened for tensor cores: against the reference."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear import cases
from facet.kernels.quantized import eight_bits, reference
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.eight_bits import Tiles, choose_config, config
from facet.kernels.quantized.eight_bits.config import HEAD_TILES
from facet.kernels.quantized.matrix import QuantizedMatrix

pytest.importorskip("triton")
from tests.kernels import int4_machine
from tests.kernels.gluon_emulator import emulated

ROOM = "facet.kernels.quantized"
ON_HOPPER = torch.cuda.is_available() and runs_on_hopper(torch.device("cuda"))
DEVICE = "cuda" if ON_HOPPER else "cpu"
NAMES = ("int8 rows", "fp8 rows")
# Whole pairs of blocks, a block too many, inputs that end within one, fewer than a block; outputs that programs divide
# and not.
SIZES = ((64, 512), (80, 384), (70, 592), (21, 48), (130, 1040))


def add_codes(
    sums: int4_machine.Words, upper: Tensor, lower: Tensor, first_x: Tensor, second_x: Tensor, is_integer: bool
) -> int4_machine.Words:
    """What the PTX in `eight_bits/language.py` does: two words of two bfloat16 numbers of each word of four codes."""

    def widened(word: Tensor) -> int4_machine.Words:
        codes = word.unsqueeze(-1).contiguous().view(torch.int8 if is_integer else torch.float8_e4m3fn)
        pairs = codes.to(torch.bfloat16).view(torch.int32)  # a copy, [.., 2]
        return pairs.unbind(-1)

    ones, nothing = torch.ones(()), torch.zeros_like(first_x)
    more = [*widened(upper), torch.zeros_like(upper), torch.zeros_like(upper)]
    others = [*widened(lower), torch.zeros_like(lower), torch.zeros_like(lower)]
    return int4_machine.add_products(sums, more, others, [first_x, second_x, nothing, nothing], ones, ones)


@pytest.fixture(scope="module")
def few_rows() -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.quantized.eight_bits import few_rows

        return few_rows
    modules = ["shuffled.tiles", "eight_bits.few_rows_kernel", "eight_bits.few_rows"]
    names = {**int4_machine.NAMES, "add_codes": add_codes}
    languages = [*int4_machine.SHUFFLED_LANGUAGES, f"{ROOM}.eight_bits.language"]
    return emulated([f"{ROOM}.{name}" for name in modules], *languages, own=names)


TILES = (Tiles(1, 1), Tiles(2, 1), Tiles(1, 2), HEAD_TILES)


@pytest.mark.parametrize("size", range(len(SIZES)))
@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_products(few_rows: ModuleType, name: str, tiles: Tiles, size: int) -> None:
    """Each size with all tiles, and each of both with every number of rows."""
    num_out, num_in = SIZES[size]
    num_rows = (1, 8, 11)[(size + TILES.index(tiles) + NAMES.index(name)) % 3]
    case = Case(format=FORMATS[name], num_out=num_out, num_in=num_in)
    # A GPU would draw other numbers.
    matrix, x = case.matrix(), case.inputs(num_rows + 1, torch.bfloat16)[1:]
    there = QuantizedMatrix(
        format=matrix.format, **{name: tensor.to(DEVICE) for name, tensor in matrix.tensors().items()}
    )
    assert few_rows.can_run(x.to(DEVICE), there)
    cases.HALF.check(few_rows.linear(x.to(DEVICE), there, tiles).cpu(), reference.linear(x, matrix))


@pytest.mark.parametrize("name", NAMES)
def test_every_code_is_widened_exactly(few_rows: ModuleType, name: str) -> None:
    """A single one picks a column of the matrix, whose numbers are all that a byte can be."""
    matrix = QuantizedMatrix.empty(FORMATS[name], (256, 256), torch.device(DEVICE))
    every = torch.arange(256, dtype=torch.int16, device=DEVICE).to(torch.uint8)
    every[every.view(matrix.codes.dtype).float().isnan()] = 0
    matrix.scales.fill_(0.5)
    for place in (*range(4), 17, 100, 255):
        numbers = torch.zeros(256, 256, dtype=torch.uint8, device=DEVICE)
        numbers[:, place] = every
        matrix.codes.copy_(numbers.view(matrix.codes.dtype))
        x = torch.zeros(3, 256, dtype=torch.bfloat16, device=DEVICE)
        x[1, place] = 2
        got = few_rows.linear(x, matrix, Tiles(1, 1))
        assert torch.equal(got[1], matrix.codes[:, place].to(torch.bfloat16))
        assert not got[0].any()
        assert not got[2].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_in_company(few_rows: ModuleType, name: str) -> None:
    case = Case(format=FORMATS[name], num_out=48, num_in=640)
    matrix, x = case.matrix(DEVICE), case.inputs(11, torch.bfloat16)[1:].to(DEVICE)
    together = few_rows.linear(x, matrix, Tiles(2, 1))
    for row in (0, 7, 9):
        assert torch.equal(few_rows.linear(x[row : row + 1], matrix, Tiles(1, 2))[0], together[row])


def test_rows_and_codes_that_lie_apart(few_rows: ModuleType) -> None:
    case = Case(format=FORMATS["int8 rows"], num_out=48, num_in=256)
    matrix, x = case.matrix(DEVICE), case.inputs(3, torch.bfloat16).to(DEVICE)
    expected = few_rows.linear(x, matrix, Tiles(1, 1))
    apart = torch.cat([x, x[:, :2]], dim=1)[:, :-2]
    assert torch.equal(few_rows.linear(apart, matrix, Tiles(1, 1)), expected)
    some = matrix.rows(slice(16, 40))
    assert torch.equal(few_rows.linear(x, some, Tiles(1, 1)), expected[:, 16:40])
    assert not few_rows.can_run(x.half(), matrix)
    assert not few_rows.can_run(x[:, :40], matrix.columns(slice(0, 40)))


@pytest.mark.parametrize("name", NAMES)
def test_heads_go_through_it(few_rows: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bits, however many rows they are."""
    monkeypatch.setattr(eight_bits, "runs_on_hopper", lambda _: True)
    monkeypatch.setattr(eight_bits, "few_rows", few_rows, raising=False)
    monkeypatch.setattr(config, "_LEAST_TILED_OUTPUTS", 96)
    case = Case(format=FORMATS[name])
    matrix, x = case.matrix(DEVICE), case.inputs(9, torch.bfloat16)[1:].to(DEVICE)
    expected = few_rows.linear(x, matrix, HEAD_TILES)
    for num_rows in (1, 5, 8):
        assert torch.equal(eight_bits.linear(x[:num_rows], matrix, choose_config), expected[:num_rows])


def test_when_a_head_is_multiplied_in_tiles() -> None:
    def has_tiles(num_rows: int, num_out: int, *, is_plain: bool = True) -> bool:
        chosen = choose_config(num_rows, num_out, 2560, "widened", is_plain)
        return chosen is not None and chosen.tiles is not None

    assert [has_tiles(num_rows, 262144) for num_rows in (0, 1, 8, 9)] == [False, True, True, False]
    assert not has_tiles(1, 10240)
    assert not has_tiles(1, 262144, is_plain=False)
    invariant = eight_bits.choose_in_one_order(1, 262144, 2560, "widened", True)
    assert invariant is not None
    assert invariant.tiles is None
