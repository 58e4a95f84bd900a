"""Products of many rows of fp8 codes on Hopper: emulated on a CPU; on the card bit for bit as in Triton."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.linear import cases
from facet.kernels.per_layer_input.reference import gate_per_layer_input
from facet.kernels.quantized.eight_bits import Config, choose_in_one_order

pytest.importorskip("triton")
from tests.kernels.gluon_emulator import emulated
from tests.kernels.test_eight_bit_order import added_in_order, telling_inputs
from tests.kernels.test_eight_bit_rings import DEVICE, ON_HOPPER, exact, inputs

ROOM = "facet.kernels.quantized.eight_bits"
CONFIG = Config(128, 128, 128, num_warps=8, num_stages=3, in_turn=True, by_warpgroups=True)
# Rows, outputs, inputs, shares: whole tiles and not; several tiles of a program; more shares than have a tile.
SIZES = ((128, 128, 1536, 3), (200, 272, 400, 1), (65, 520, 1344, 4), (300, 64, 2688, 10))
emulated_only = pytest.mark.skipif(ON_HOPPER, reason="of the emulator")


def kernels(**how: Any) -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.quantized.eight_bits import many_rows

        return many_rows
    return emulated(
        ["facet.kernels.gluon_parts", f"{ROOM}.many_rows_kernel", f"{ROOM}.many_rows"],
        "facet.kernels.gluon_names",
        f"{ROOM}.language",
        own={"let_through": gate_per_layer_input, "start_after_previous": lambda is_dependent: None},
        **how,
    )


@pytest.mark.parametrize("block_in", [128, 256])
@pytest.mark.parametrize(("num_rows", "num_out", "num_in", "shares"), SIZES)
def test_sums_are_added_in_the_order_of_the_matrix(
    num_rows: int, num_out: int, num_in: int, shares: int, block_in: int
) -> None:
    """Bit for bit: a tile's sum is exact, others are not."""
    x, matrix = telling_inputs(num_rows, num_out, num_in, block_in)
    got = kernels().linear(x, matrix, replace(CONFIG, block_in=block_in, shares=shares))
    assert torch.equal(got, added_in_order(x, matrix, block_in, shares))


@pytest.mark.parametrize(("num_rows", "num_out", "num_in", "shares"), SIZES)
def test_products_and_activations(num_rows: int, num_out: int, num_in: int, shares: int) -> None:
    many, config = kernels(), replace(CONFIG, shares=shares)
    x, matrix = inputs("fp8 token", num_rows, num_out, num_in)
    given = torch.randn(num_rows, num_out, device=DEVICE).bfloat16()
    expected = exact(x, matrix)
    cases.HALF.check(many.linear(x, matrix, config), expected)
    cases.HALF.check(many.geglu_linear(x, matrix, config), geglu(expected))
    cases.HALF.check(many.gated_input_linear(x, matrix, given, config), gate_per_layer_input(expected, given))
    some = matrix.rows(slice(16, 50))
    cases.HALF.check(many.linear(x, some, config), expected[:, 16:50])


@emulated_only
@pytest.mark.parametrize("seed", range(3))
def test_whoever_is_first(seed: int) -> None:
    """Partitions take turns and copies land in any order."""
    x, matrix = telling_inputs(160, 300, 1152, 256)
    got = kernels(seed=seed).linear(x, matrix, replace(CONFIG, block_in=256, shares=2))
    assert torch.equal(got, added_in_order(x, matrix, 256, 2))


@emulated_only
@pytest.mark.parametrize(
    "change",
    [
        ("(number // STAGES & 1) ^ 1", "(number // STAGES & 1)"),
        ("    mbarrier.wait(ready.index(stage), number // STAGES & 1)\n", ""),
        ("    thread_barrier()\n    for part", "    for part"),
        ("free.index((number + part) % STAGES)", "free.index(number % STAGES)"),
        ("use_acc=not is_first", "use_acc=False"),
        ("x_codes.index(stage * 2 + HALF)", "x_codes.index(stage * 2)"),
        ("        number += num_steps(NUM_IN, BLOCK_IN)\n", "        number += 1\n"),
        ("first_row = row_group * 128 + HALF * 64", "first_row = row_group * 128"),
        ("        sums += of_share", "        sums = of_share"),
        ("gl.minimum(first + PER_SHARE, NUM_BLOCKS)", "NUM_BLOCKS"),
        ("local // WIDTH * num_out", "local // WIDTH"),
        ("out_group * (64 if IS_GATED else 128)", "out_group * 128"),
    ],
)
def test_faults_are_found(change: tuple[str, str]) -> None:
    many = kernels(change=change)
    x, matrix = telling_inputs(160, 272, 1152, 256)
    matrix.scales.copy_(torch.randint(1, 3, matrix.scales.shape))
    expected = added_in_order(x, matrix, 256, 2) * matrix.scales.flatten()
    config = replace(CONFIG, block_in=256, shares=2)

    def check() -> None:
        assert torch.equal(many.linear(x, matrix, config), expected)
        torch.testing.assert_close(many.geglu_linear(x, matrix, config), geglu(expected))

    with pytest.raises((AssertionError, IndexError)):
        check()


def test_bands_of_tiles() -> None:
    """More rows than a band has, and a shorter band at the end."""
    x, matrix = telling_inputs(2200, 136, 128, 128)
    assert torch.equal(kernels().linear(x, matrix, CONFIG), added_in_order(x, matrix, 128, 1))


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize("num_rows", [300, 4200])
@pytest.mark.parametrize("shape", [*cases.E4B[:-1], *cases.LARGE[:-1]], ids=lambda shape: shape.name)
def test_results_are_those_of_triton(shape: cases.Shape, num_rows: int) -> None:
    """Though that has the matrix on the left of a product, and this one x."""
    from facet.kernels.quantized.eight_bits import triton

    x, matrix = inputs("fp8 token", num_rows, shape.num_out, shape.num_in)
    more: tuple[Tensor, ...] = ()
    if shape.operation == "gated_input_linear":
        more = (torch.randn(num_rows, shape.num_out, device=DEVICE).bfloat16(),)
    config = choose_in_one_order(2048, shape.num_out, shape.num_in, "fp8")
    assert config is not None
    torch.cuda.synchronize()
    got, expected = (getattr(each, shape.operation)(x, matrix, *more, config) for each in (kernels(), triton))
    assert torch.equal(got, expected)


def test_what_descriptors_do_not_take() -> None:
    many = kernels()
    x, matrix = inputs("fp8 token", 3, 32, 64)
    assert many.can_run(x, matrix)
    assert not many.can_run(*inputs("int8 token", 3, 32, 64)), "other codes"
    assert not many.can_run(*inputs("fp8 token", 3, 32, 40))
    apart = torch.zeros(32 * 64 + 1, dtype=torch.uint8, device=DEVICE)[1:].view(matrix.codes.dtype).view(32, 64)
    assert not many.can_run(x, replace(matrix, codes=apart))
