"""Times the rounding of inputs to FP8 on a GPU, alone and with the products that want it, at shapes of 31B and E4B.

    python -m benchmarks.rounding_gpu           # products of few rows, then rows rounded by themselves
    python -m benchmarks.rounding_gpu --tune    # many rows in other forms as well

What a kernel does at once with something else is held against the same in two kernels, bit for bit and in time. Times
are of launches in a CUDA graph, twice each, in turn; matrices take turns so that no cache holds them.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_timing import microseconds
from benchmarks.linear_gpu import CACHE_BYTES
from benchmarks.quantized_gpu import BANDWIDTH
from facet.kernels.add_norm import triton as add_norm
from facet.kernels.add_norm import triton_rounded
from facet.kernels.geglu import geglu
from facet.kernels.linear import cases
from facet.kernels.quantized import QuantizedMatrix, eight_bits
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.eight_bits import choose_config
from facet.kernels.quantized.eight_bits.row_rounding import WholeRows, round_geglu, round_rows
from facet.kernels.rounded_rows import FP8_CODES, RoundedRows, tensor_of

FORMAT = FORMATS["fp8 token"]
WHOLE_ROWS = tuple(WholeRows(*each) for each in ((1024, 4), (1024, 8), (2048, 8), (2048, 16), (4096, 8), (4096, 16)))

Run = Callable[..., Tensor | RoundedRows]


def mlp_in_two(x: RoundedRows, gate_up: QuantizedMatrix, down: QuantizedMatrix) -> Tensor:
    hidden = eight_bits.geglu_linear(x, gate_up, choose_config)
    return eight_bits.linear(round_rows(hidden, FP8_CODES), down, choose_config)


def mlp(x: RoundedRows, gate_up: QuantizedMatrix, down: QuantizedMatrix) -> Tensor:
    hidden = eight_bits.rounded_geglu_linear(x, gate_up, choose_config, FP8_CODES)
    return eight_bits.linear(hidden, down, choose_config)


def geglu_in_two(gate_up: Tensor) -> RoundedRows:
    return round_rows(geglu(gate_up), FP8_CODES)


def matrices(shape: cases.Shape) -> list[QuantizedMatrix]:
    matrix = Case(format=FORMAT, num_out=shape.num_out, num_in=shape.num_in).matrix("cuda")
    num_copies = math.ceil(CACHE_BYTES / matrix.codes.nbytes)
    return [matrix, *(replace(matrix, codes=matrix.codes.clone()) for _ in range(num_copies))]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def compare(name: str, at_once: Run, in_two: Run, arguments: Sequence[tuple[Any, ...]]) -> None:
    torch.cuda.synchronize()
    one, two = at_once(*arguments[0]), in_two(*arguments[0])
    assert torch.equal(tensor_of(one).view(torch.uint8), tensor_of(two).view(torch.uint8)), f"{name}: other bits"
    if isinstance(one, RoundedRows) and isinstance(two, RoundedRows):
        assert torch.equal(one.scales, two.scales), f"{name}: other scales"
    del one, two
    times = [
        microseconds([partial(run, *arguments[n % len(arguments)]) for n in range(24)], 15)
        for run in (at_once, in_two, at_once, in_two)
    ]
    print(f"{name}: {times[0]:.2f}, {times[2]:.2f} us; in two kernels {times[1]:.2f}, {times[3]:.2f}", flush=True)


def measure_products() -> None:
    """down behind a gate_up that tells the largest magnitudes."""
    shapes = {shape.name: shape for shape in (*cases.LARGE, *cases.E4B)}
    for model in ("31B", "E4B"):
        pairs = list(zip(*(matrices(shapes[f"{model} {name}"]) for name in ("gate_up", "down")), strict=False))
        for num_rows in (1, 2, 8, 16, 64):
            rows = round_rows(normal(num_rows, pairs[0][0].num_inputs), FP8_CODES)
            compare(f"{model} gate_up and down, {num_rows} rows", mlp, mlp_in_two, [(rows, *pair) for pair in pairs])


def measure_many_rows(tune: bool) -> None:
    for width in (10240, 21504):
        for num_rows in (256, 2048, 8192):
            gate_up = normal(num_rows, 2 * width)
            name = f"geglu {num_rows} x {width}, floor {5 * num_rows * width / BANDWIDTH:.1f}"
            compare(name, partial(round_geglu, codes=FP8_CODES), geglu_in_two, [(gate_up,)])
            if tune:
                try_whole_rows(width, partial(round_geglu, gate_up, FP8_CODES))


def measure_norms() -> None:
    """Of many rows: in parts, in one block as wide as the row, and without rounding."""
    for width in (2560, 5376):
        for num_rows in (512, 2048, 8192):
            stream, update = normal(num_rows, width), normal(num_rows, width)
            weights = torch.rand(2, width, device="cuda") + 0.5
            factor = torch.full((1,), 0.75, device="cuda", dtype=torch.bfloat16)
            arguments = (stream, update, weights[0], weights[1], 1e-6, factor)
            in_parts = partial(triton_rounded.rounded_add_norm, *arguments, FP8_CODES)
            in_one_block = partial(add_norm.rounded_add_norm, *arguments, FP8_CODES)
            torch.cuda.synchronize()
            (new, rows), (expected, others) = in_parts(), in_one_block()
            assert (new != expected).float().mean() < 5e-3, "another stream"
            assert (rows.codes.float() * rows.scales - others.codes.float() * others.scales).abs().mean() < 1e-2
            runs = (in_parts, in_one_block, partial(add_norm.add_norm, *arguments))
            times = [microseconds([run] * 16, 15) for run in (*runs, *runs)]
            print(
                f"add_norm {num_rows} x {width}, floor {7 * num_rows * width / BANDWIDTH:.1f}: {times[0]:.1f}, "
                f"{times[3]:.1f} us; in one block {times[1]:.1f}, {times[4]:.1f}; not rounded {times[2]:.1f}, "
                f"{times[5]:.1f}",
                flush=True,
            )


def measure_rounding(tune: bool) -> None:
    for width in (2048, 8192, 10240, 16384, 21504):
        for num_rows in (1, 16, 64, 2048, 8192):
            x = normal(num_rows, width)
            time, floor = microseconds([partial(round_rows, x, FP8_CODES)] * 32), 3 * num_rows * width / BANDWIDTH
            print(f"round {num_rows} x {width}: {time:.2f} us, floor {floor:.1f}", flush=True)
            if tune and num_rows > 64:
                try_whole_rows(width, partial(round_rows, x, FP8_CODES))


def try_whole_rows(width: int, run: partial[RoundedRows]) -> None:
    for whole in WHOLE_ROWS:
        if whole.block <= width and width // whole.num_warps <= 4096:  # 128 numbers for each thread at most
            print(f"    {whole}: {microseconds([partial(run, whole)] * 16):.2f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="many rows in every form")
    options = parser.parse_args()
    torch.manual_seed(0)
    measure_products()
    measure_norms()
    measure_many_rows(options.tune)
    measure_rounding(options.tune)


if __name__ == "__main__":
    main()
