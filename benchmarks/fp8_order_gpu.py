"""Times products of many fp8 rows whose sums are in one order, whatever the number of rows, beside PyTorch's.

    python -m benchmarks.fp8_order_gpu --shapes E4B --rows 64 100 256 512 2048

The first line of a shape and a number of rows is what `--batch-invariant` chooses. Then come other configurations in
the same order, and PyTorch's product, which is the usual choice from 65 rows on. Each says whether its bits are those
of 8 rows, and PyTorch's also how many of its results differ from those of tiles that are added in one chain, with
scales of one.

Times are of launches inside a CUDA graph that walks over copies of a matrix, as in `quantized_gpu`.
"""

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_timing import microseconds
from benchmarks.linear_gpu import CACHE_BYTES
from benchmarks.quantized_gpu import Job, compile_for, inputs, name_of, run
from facet.kernels.linear import cases
from facet.kernels.quantized import QuantizedMatrix
from facet.kernels.quantized.eight_bits import Config, choose_in_one_order
from facet.kernels.rounded_rows import RoundedRows

SHAPES = (*cases.E4B[:-1], *cases.LARGE[:-1])
FEW_ROWS = 8


def candidates(shape: cases.Shape, num_rows: int) -> list[Config]:
    chosen = choose_in_one_order(num_rows, shape.num_out, shape.num_in, "fp8")
    assert chosen is not None
    order: dict[str, Any] = {"block_in": chosen.block_in, "shares": chosen.shares}
    halves = 256 // chosen.block_in  # twice as many tiles of half the width are on their way
    large = Config(128, 128, **order, num_warps=8, num_stages=3 * halves, in_turn=True)
    flat = Config(128, 64, **order, num_warps=4, num_stages=2 * halves)
    found = [
        chosen,
        replace(large, by_warpgroups=True),
        large,
        replace(flat, in_turn=True),
        flat,
        replace(flat, num_stages=3),
        Config(64, 64, **order, num_warps=4, num_stages=3 * halves),
    ]
    if chosen.shares == 1 and chosen.block_in == 128:
        found.append(Config(128, 128, **order, num_warps=4, num_stages=3, in_turn=True))
    return list(dict.fromkeys(found))


def of_orders(shape: cases.Shape, x: RoundedRows, matrix: QuantizedMatrix, given: Tensor) -> str:
    """Of which order PyTorch's bits are."""
    plain, ones = replace(matrix, scales=torch.ones_like(matrix.scales)), torch.ones_like(x.scales)
    rows = RoundedRows(x.codes, ones, x.dtype)
    torch.cuda.synchronize()
    theirs = run(shape, rows, plain, given, None)
    said = []
    for block_in in (128, 256):
        ours = run(shape, rows, plain, given, Config(64, 64, block_in, num_warps=4, num_stages=3))
        said.append(f"{float((ours != theirs).float().mean()):.2%} other than a chain of {block_in}")
    return ", ".join(said)


def measure(shape: cases.Shape, num_rows: int) -> None:
    num_bytes = shape.num_out * shape.num_in
    num_copies = max(1, math.ceil(CACHE_BYTES / num_bytes))
    x, _, matrix, given = inputs(shape, "fp8", num_rows, shape.num_out)
    assert isinstance(x, RoundedRows)
    few = RoundedRows(x.codes[-FEW_ROWS:], x.scales[-FEW_ROWS:], x.dtype)
    alone = run(
        shape, few, matrix, given[-FEW_ROWS:], choose_in_one_order(FEW_ROWS, shape.num_out, shape.num_in, "fp8")
    )
    num_launches = max(num_copies, min(32, math.ceil(2e9 / num_bytes / max(1, num_rows / 128))))
    copies = [matrix, *(replace(matrix, codes=matrix.codes.clone()) for _ in range(num_copies - 1))]
    for index, config in enumerate([*candidates(shape, num_rows), None]):
        try:
            got = run(shape, x, matrix, given, config)
        except Exception as error:
            print(f"{shape.name} {config}: {str(error)[:200]}", flush=True)
            continue
        bits = "the same bits" if torch.equal(got[-FEW_ROWS:], alone) else "OTHER BITS"
        time = microseconds(
            [partial(run, shape, x, copies[n % num_copies], given, config) for n in range(num_launches)]
        )
        speed = 2 * num_rows * num_bytes / time / 1e6
        name = ("chosen: " if index == 0 else "") + name_of(config)
        more = "" if config is not None else f" ({of_orders(shape, x, matrix, given)})"
        print(
            f"{shape.name:25} {num_rows:5} rows: {time:7.1f} us, {speed:5.0f} TFLOP/s, {bits}, {name}{more}", flush=True
        )
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=[""], help="those whose names contain one of these")
    parser.add_argument("--rows", nargs="+", type=int, default=[64, 100, 256, 512, 2048])
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    options = parser.parse_args()
    shapes = [shape for shape in SHAPES if any(part in shape.name for part in options.shapes)]
    jobs = {
        (shape.num_in, shape.operation, config): Job(shape, "fp8", num_rows, config)
        for shape in shapes
        for num_rows in options.rows
        for config in candidates(shape, num_rows)
    }
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_for, jobs.values()))
    for shape in shapes:
        for num_rows in options.rows:
            measure(shape, num_rows)


if __name__ == "__main__":
    main()
