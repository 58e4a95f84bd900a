"""Times matrix products in one chain of sums (`--batch-invariant`) on a GPU, by tile, against the usual ones.

    python -m benchmarks.chains_gpu [--only "E4B down"] [--rows 1 8 32] [--output chains.json]

Usual is what runs without the flag. Unsplit is cuBLAS told not to split sums. Every tile's bits are compared with those
of the tile that is built in. Times are of launches inside a CUDA graph, every weight read from memory.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_timing import microseconds
from benchmarks.linear_gpu import CACHE_BYTES, Job, compile_for, run
from facet.kernels import linear
from facet.kernels.linear import cases
from facet.kernels.linear.config import NUM_DOT_ROWS, Config, choose_chain
from facet.kernels.linear.ring_config import MAX_WARP_ROWS, Ring, ring_of

ROWS = (1, 8, 16, 17, 24, 32, 48, 64, 100)
# Rows of a tile; then outputs, inputs, warps and stages.
TILES: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    16: (
        (16, 128, 1, 8),
        (16, 256, 1, 6),
        (16, 256, 2, 6),
        (16, 512, 2, 4),
        (16, 512, 4, 3),
        (16, 512, 4, 5),
        (32, 128, 2, 6),
        (32, 128, 2, 8),
        (32, 256, 2, 5),
        (32, 256, 4, 5),
        (64, 128, 4, 4),
        (64, 128, 4, 6),
    ),
    32: (
        (16, 128, 1, 8),
        (16, 256, 2, 5),
        (16, 512, 4, 3),
        (32, 128, 2, 6),
        (32, 128, 4, 5),
        (32, 256, 2, 5),
        (32, 256, 4, 4),
        (64, 128, 4, 4),
        (64, 128, 4, 6),
    ),
    64: ((32, 128, 4, 5), (64, 128, 4, 4), (64, 64, 4, 6)),
}


RINGS = tuple(Ring(MAX_WARP_ROWS, *sizes) for sizes in ((128, 4), (128, 6), (128, 8), (128, 10), (128, 16), (256, 3)))


def tiles_for(num_rows: int, shape: cases.Shape) -> list[Config | Ring]:
    """As many rows as there are at least, but no tile of rows that are not there."""
    height = next((height for height in TILES if num_rows <= height), 64)
    rings: list[Config | Ring] = []
    if num_rows <= MAX_WARP_ROWS:
        rings = list(dict.fromkeys((ring_of(shape.num_out, shape.num_in), *RINGS)))
    return rings + [
        Config(
            is_dot=True,
            block_out=block_out,
            block_in=block_in,
            num_warps=num_warps,
            num_stages=num_stages,
            num_rows=height,
        )
        for block_out, block_in, num_warps, num_stages in TILES[height]
    ]


def jobs_for(shapes: Sequence[cases.Shape], rows: Sequence[int]) -> list[Job]:
    """Each kernel to compile once."""
    jobs, seen = [], set()
    for shape in shapes:
        for num_rows in rows:
            for config in tiles_for(num_rows, shape):
                kernel = (shape.num_in, shape.operation, config)
                if kernel not in seen:
                    seen.add(kernel)
                    jobs.append(Job(shape, num_rows, (config,)))
    return jobs


def usual(shape: cases.Shape, x: Tensor, weight: Tensor, given: Tensor) -> Tensor:
    if shape.operation == "gated_input_linear":
        return linear.gated_input_linear(x, weight, given)
    return linear.geglu_linear(x, weight) if shape.operation == "geglu_linear" else linear.linear(x, weight)


class Weights:
    """Copies of a weight, more than the second-level cache holds."""

    def __init__(self, shape: cases.Shape) -> None:
        num_bytes = 2 * shape.num_out * shape.num_in
        num_copies = max(1, math.ceil(CACHE_BYTES / num_bytes))
        _, weight = shape.inputs(1, torch.bfloat16, "cuda")
        self._copies = [weight, *(weight.clone() for _ in range(num_copies - 1))]
        self._num_launches = max(num_copies, min(64, math.ceil(4e9 / num_bytes)))

    @property
    def first(self) -> Tensor:
        return self._copies[0]

    def time(self, call: Callable[[Tensor], object]) -> float:
        return microseconds(
            [partial(call, self._copies[index % len(self._copies)]) for index in range(self._num_launches)]
        )


def inputs(shape: cases.Shape, num_rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator("cuda").manual_seed(num_rows)
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16, generator=generator)
    return make(num_rows, shape.num_in), make(num_rows, shape.num_out)


def time_chains(shape: cases.Shape, num_rows: int, weights: Weights) -> tuple[float, dict[Config | Ring, float]]:
    """Unsplit cuBLAS, and every tile whose bits are those of the one that is built in."""
    x, given = inputs(shape, num_rows)
    built_in = choose_chain(num_rows, shape.num_out, shape.num_in, 2)
    expected = run(shape, x, weights.first, given, built_in)
    times: dict[Config | Ring, float] = {}
    for config in dict.fromkeys((built_in, *tiles_for(num_rows, shape))):
        try:
            got = run(shape, x, weights.first, given, config)
        except Exception:  # it did not compile, which compile_for has reported
            continue
        if not torch.equal(got, expected):
            print(f"OTHER BITS: {shape.name}, {num_rows} rows, {config}")
            continue
        times[config] = weights.time(lambda weight, config=config: run(shape, x, weight, given, config))  # type: ignore[misc]
    return weights.time(lambda weight: functional.linear(x, weight)), times


def name_of(config: Config | Ring) -> str:
    if isinstance(config, Ring):
        return f"ring of {config.num_stages} x {config.block_in}"
    return f"{config.num_rows}x{config.block_out}x{config.block_in} {config.num_warps}w {config.num_stages}s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where all results go, as JSON")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    options = parser.parse_args()
    shapes = [shape for shape in (*cases.E4B, *cases.LARGE, *cases.SPARSE) if options.only in shape.name]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_for, jobs_for(shapes, options.rows)))
    usuals = {}
    for shape in shapes:
        weights = Weights(shape)
        for num_rows in options.rows:
            x, given = inputs(shape, num_rows)
            usuals[shape.name, num_rows] = weights.time(
                lambda weight, shape=shape, x=x, given=given: usual(shape, x, weight, given)  # type: ignore[misc]
            )
    linear.never_split_sums()  # from here on
    table = Table(title=f"{torch.cuda.get_device_name()}, bfloat16, µs")
    for column in ("shape", "rows", "usual", "unsplit", "built in", "best", "tile", "rings"):
        table.add_column(column, justify="left" if column in ("shape", "tile", "rings") else "right", no_wrap=True)
    results = []
    for shape in shapes:
        weights = Weights(shape)
        for num_rows in options.rows:
            unsplit, times = time_chains(shape, num_rows, weights)
            best = min(times, key=times.__getitem__)
            first = next(iter(times.values()))
            table.add_row(
                shape.name,
                str(num_rows),
                *(f"{time:.1f}" for time in (usuals[shape.name, num_rows], unsplit, first, times[best])),
                name_of(best) if num_rows <= NUM_DOT_ROWS or times[best] < unsplit else "cuBLAS",
                " ".join(
                    f"{config.num_stages}x{config.block_in} {time:.1f}"
                    for config, time in times.items()
                    if isinstance(config, Ring)
                ),
            )
            results.append(
                {
                    "shape": asdict(shape),
                    "num_rows": num_rows,
                    "usual": usuals[shape.name, num_rows],
                    "unsplit": unsplit,
                    "tiles": {name_of(config): time for config, time in times.items()},
                }
            )
    Console(width=190).print(table)
    if options.output:
        options.output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
