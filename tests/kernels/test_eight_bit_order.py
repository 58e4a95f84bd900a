"""The order in which products of fp8 codes are added under `--batch-invariant`: the matrix's, whatever the number of
rows and the kernel."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from facet.kernels.linear import cases
from facet.kernels.quantized import eight_bits
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.eight_bits import Config, Ring, choose_config, choose_in_one_order
from facet.kernels.quantized.eight_bits.config import choose_ring
from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.rounded_rows import RoundedRows
from facet.runner import warm_up

pytest.importorskip("triton")
from tests.kernels.test_eight_bit_rings import DEVICE, ON_HOPPER, emulate

SHAPES = (*cases.E4B, *cases.LARGE, *cases.SPARSE)
ROWS = (1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 300, 2048)
# With whole shares; with a short tile and a share without any; with several of those.
SIZES = ((96, 1536, 3), (70, 1344, 4), (64, 2688, 10))
# A warpgroup multiplies 64 outputs: with fewer, a tile has no sum of its own.
CONFIGS = (
    Config(16, 64, 0, num_warps=4, num_stages=2),
    Config(64, 64, 0, num_warps=4, num_stages=3),
    Config(16, 64, 0, num_warps=4, num_stages=2, in_turn=True),
    Config(128, 128, 0, num_warps=8, num_stages=3, in_turn=True),
)


def telling_inputs(num_rows: int, num_out: int, num_in: int, block_in: int) -> tuple[RoundedRows, QuantizedMatrix]:
    """Small integers, in each tile of a row times a power of two: a tile's sum is exact, its sum with others is not."""
    generator = torch.Generator().manual_seed(0)
    powers = torch.randint(-9, 7, (num_rows + num_out, -(-num_in // block_in)), generator=generator).float()
    numbers = torch.randint(-4, 5, (num_rows + num_out, num_in), generator=generator).float()
    numbers *= powers.exp2().repeat_interleave(block_in, 1)[:, :num_in]
    codes = numbers.to(torch.float8_e4m3fn)
    assert torch.equal(codes.float(), numbers)
    matrix = QuantizedMatrix.empty(FORMATS["fp8 token"], (num_out, num_in), torch.device(DEVICE))
    matrix.codes.copy_(codes[num_rows:])
    matrix.scales.fill_(1)
    return RoundedRows(codes[:num_rows].to(DEVICE), torch.ones(num_rows, 1, device=DEVICE), torch.float32), matrix


def added_in_order(x: RoundedRows, matrix: QuantizedMatrix, block_in: int, shares: int) -> Tensor:
    """The definition."""
    num_rows, num_in = x.codes.shape
    num_tiles = -(-num_in // block_in)
    per_share = -(-num_tiles // shares)
    total = torch.zeros(num_rows, matrix.num_rows, device=DEVICE)
    for first in range(0, num_tiles, per_share):
        of_share = torch.zeros_like(total)
        for tile in range(first, min(first + per_share, num_tiles)):
            columns = slice(tile * block_in, (tile + 1) * block_in)
            of_share += (x.codes[:, columns].double() @ matrix.codes[:, columns].double().T).float()
        total += of_share
    return total


@pytest.mark.parametrize("block_in", [128, 256])
@pytest.mark.parametrize(("num_out", "num_in", "shares"), SIZES)
def test_every_kernel_adds_in_the_order_of_the_matrix(num_out: int, num_in: int, shares: int, block_in: int) -> None:
    from facet.kernels.quantized.eight_bits import triton

    x, matrix = telling_inputs(11, num_out, num_in, block_in)
    expected = added_in_order(x, matrix, block_in, shares)
    other = added_in_order(x, matrix, block_in, 1)
    assert not torch.equal(other, expected), "the inputs tell orders apart"
    for config in CONFIGS:
        same_order = replace(config, block_in=block_in, shares=shares)
        assert torch.equal(triton.linear(x, matrix, same_order), expected), config
        assert torch.equal(triton.linear(x, matrix, replace(same_order, shares=1)), other), config


@pytest.mark.parametrize("block_in", [128, 256])
@pytest.mark.parametrize(("num_out", "num_in", "shares"), SIZES)
def test_rings_add_in_the_order_of_the_matrix(num_out: int, num_in: int, shares: int, block_in: int) -> None:
    if ON_HOPPER:
        from facet.kernels.quantized.eight_bits import ring as rings
    else:
        rings = emulate()
    x, matrix = telling_inputs(8, num_out, num_in, block_in)
    got = rings.linear(x, matrix, Ring(block_in, 3, shares))
    assert torch.equal(got, added_in_order(x, matrix, block_in, shares))


def test_the_order_is_chosen_by_the_matrix() -> None:
    """Also where it goes through a ring. Few rows are divided as usual."""
    for shape in SHAPES:
        orders = set()
        for num_rows in ROWS:
            config = choose_in_one_order(num_rows, shape.num_out, shape.num_in, "fp8")
            assert config is not None, "PyTorch's product has an order of its own"
            assert num_rows > 32 or config == choose_config(num_rows, shape.num_out, shape.num_in, "fp8")
            assert config.ring == choose_ring(num_rows, shape.num_out, shape.num_in)
            orders.add((config.block_in, config.shares))
            if config.ring is not None:
                orders.add((config.ring.block_in, config.ring.shares))
        assert len(orders) == 1, shape


def test_steps_before_the_first_request_meet_all_configurations() -> None:
    """That compile a kernel of their own. Captured steps meet those of up to 32 rows."""
    passes = {sum(step.query_lens) for step in (*warm_up.PASSES, warm_up.LONG_PROMPT)}
    for shape in SHAPES:
        met, needed = (
            {choose_in_one_order(num_rows, shape.num_out, shape.num_in, "fp8") for num_rows in rows}
            for rows in (passes, (33, 64, 65, 100, 129, 500, 1500, 2048, 8192))
        )
        assert needed <= met, shape


def test_shares_are_taken_in_turn_where_programs_are_many() -> None:
    chosen = [choose_in_one_order(num_rows, 5376, 21504, "fp8") for num_rows in (128, 256, 512)]
    assert [each is not None and (each.shares, each.in_turn) for each in chosen] == [(3, False), (3, True), (3, True)]
    for shape in SHAPES:
        for num_rows in ROWS:
            config = choose_in_one_order(num_rows, shape.num_out, shape.num_in, "fp8")
            assert config is not None
            assert config.tile_bytes(1) * config.num_stages <= 227 << 10, "of shared memory"


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize(
    "shape", [*cases.E4B[:-1], *cases.LARGE[:-1], *cases.SPARSE[:-2]], ids=lambda shape: shape.name
)
def test_a_row_has_the_same_bits_in_any_company(shape: cases.Shape) -> None:
    case = Case(format=FORMATS["fp8 token"], num_out=shape.num_out, num_in=shape.num_in)
    matrix, x = case.matrix(DEVICE), case.inputs(ROWS[-1], torch.bfloat16, DEVICE)
    given = torch.randn(ROWS[-1], shape.num_out, device=DEVICE).bfloat16()
    torch.cuda.synchronize()

    def multiply(num_rows: int) -> Tensor:
        """The last of them."""
        if shape.operation == "gated_input_linear":
            return eight_bits.gated_input_linear(x[-num_rows:], matrix, given[-num_rows:], choose_in_one_order)
        return getattr(eight_bits, shape.operation)(x[-num_rows:], matrix, choose_in_one_order)

    together = multiply(ROWS[-1])
    for num_rows in ROWS:
        assert torch.equal(multiply(num_rows), together[-num_rows:]), num_rows
