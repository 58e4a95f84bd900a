"""Times products of tens of rows with 4-bit codes on a Hopper GPU at the shapes of 31B and E4B: INT4, NVFP4 and Q4_K.

    python -m benchmarks.int4_wide_gpu                         # what would be chosen, some minutes
    python -m benchmarks.int4_wide_gpu --only "31B gate_up"
    python -m benchmarks.int4_wide_gpu --tune --only 31B       # other tunings, too; the best four of each
    python -m benchmarks.int4_wide_gpu --formats Q4_K --rows 16 64

"ring" is the ring of 16 rows, for INT4; "values" are slices brought to bfloat16 and multiplied by cuBLAS, which is also
timed with bfloat16 weights, without activation. Every product is first held against the reference; what it is off that
is printed. Times are of launches inside a CUDA graph that walks over copies of the matrix, more of them than the
second-level cache holds.

Microseconds on an H200, and before this loop (fixed shares of a tile's blocks, two barriers in a turn, values made
after the wait for the product before):

    rows               16          32          64           128           bfloat16
    31B gate_up INT4   45.8 48.8   53.7 60     77.2 76      137  130      109 to 119
                Q4_K   66.7 88     75.4        97.3 113
    31B down    INT4   27.0 34.9   33.3 35.8   42.9 43.4    75.6 71.8     59 to 68
                Q4_K   37.3 52.6   41.6        55.9 65.1
    31B qkv     INT4   21.5 23.7   23.9        29.3         50.0          43 to 47
    31B o       INT4   14.9 14.0   16.7 20.6   21.6 21.6    37.7 35.3     26 to 29
    E4B gate_up INT4   15.0 15.3   18.9        24.8         43.2          29 to 32
    E4B down    INT4   12.1 15.4   13.7        18.5         32.6          18 to 21
    E4B qkv     INT4    6.9 6.7     7.5         9.4         12.9          7.3 to 7.8
    E4B o       INT4    6.0 5.8     6.6         8.3         11.4          6.3 to 6.7
"""

import argparse
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_timing import microseconds
from benchmarks.int4_chain import format_of
from benchmarks.int4_gpu import (
    BANDWIDTH,
    SHAPES,
    WIDE_TUNINGS,
    Cut,
    Shape,
    expected_output,
    run,
    wide_tunings_for,
)
from benchmarks.linear_gpu import CACHE_BYTES
from facet.kernels.quantized import int4, reference
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.int4.dequantize import dequantize
from facet.kernels.quantized.int4.tuning import MAX_WIDE_ROWS, choose_wide_tuning, ring_of
from facet.kernels.quantized.shuffled.wide_tuning import WideTuning
from facet.kernels.quantized.shuffled_product import multiply_values

ROWS = (16, 32, 64, 128, 256)
NAMES = {"INT4": format_of(32), "NVFP4": FORMATS["fp4 coarse"], "Q4_K": FORMATS["uint4 minimums"]}


def tunings_for(shape: Shape, num_rows: int, *, is_tuned: bool) -> list[WideTuning]:
    """The one that would be chosen, then others."""
    chosen = choose_wide_tuning(shape.num_tiles, -(-shape.num_in // 128), num_rows)
    return [chosen, *(wide_tunings_for(shape, num_rows, chosen, WIDE_TUNINGS) if is_tuned else [])]


def compile_for(job: tuple[str, str, WideTuning]) -> None:
    """Into Triton's cache on disk: few outputs stand for many, and one program for all."""
    name, operation, tuning = job
    shape = Shape("", 256, 256, operation)
    case = Case(format=NAMES[name], num_out=shape.num_out, num_in=shape.num_in)
    matrix = int4.shuffle(case.matrix("cuda"), is_gated=operation == "geglu_linear")
    x, given = (torch.zeros(tuning.rows, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    try:
        run(shape, x, matrix, given, replace(tuning, programs=1))
    except Exception as error:
        print(f"FAILED: {job}: {error}")


def measure(name: str, shape: Shape, rows: Sequence[int], *, is_tuned: bool) -> None:
    format, is_gated = NAMES[name], shape.operation == "geglu_linear"
    plain = Case(format=format, num_out=shape.num_out, num_in=shape.num_in).matrix("cuda")
    matrix = int4.shuffle(plain, is_gated=is_gated)
    num_bytes = format.num_bytes((shape.num_out, shape.num_in))
    num_copies = max(1, math.ceil(CACHE_BYTES / num_bytes))
    num_launches = max(num_copies, min(64, math.ceil(4e9 / num_bytes)))
    copies = [matrix]
    for _ in range(num_copies - 1):
        copies.append(matrix.with_tensors({key: tensor.clone() for key, tensor in matrix.tensors().items()}))
    values = plain.values().bfloat16()
    weights = [values, *(values.clone() for _ in range(min(7, math.ceil(CACHE_BYTES / values.nbytes)) - 1))]
    floor = num_bytes / BANDWIDTH * 1e6

    def time(product: Callable[[int4.ShuffledInt4], object]) -> float:
        return microseconds([partial(product, copies[i % num_copies]) for i in range(num_launches)])

    for num_rows in rows:
        x = torch.randn(num_rows, shape.num_in, device="cuda", dtype=torch.bfloat16)
        given = torch.randn(num_rows, shape.num_out, device="cuda", dtype=torch.bfloat16)
        expected = expected_output(shape, reference.linear(x.float(), plain).bfloat16(), given).float()

        def by_way_of(cut: Cut, matrix: int4.ShuffledInt4, x: Tensor = x, given: Tensor = given) -> Tensor:
            return run(shape, x, matrix, given, cut)

        library = microseconds([partial(functional.linear, x, weights[i % len(weights)]) for i in range(num_launches)])
        by_values = time(partial(multiply_values, x, per_layer_input=None, dequantize=dequantize))
        head = f"{name:5} {shape.name:24} {num_rows:4} rows  floor {floor:5.1f}  cuBLAS {library:6.1f}"
        head += f"  values {by_values:6.1f}"
        cuts: list[Cut] = list(tunings_for(shape, num_rows, is_tuned=is_tuned))
        num_shown = 1
        if name == "INT4" and num_rows <= 16:
            cuts.insert(0, ring_of(shape.num_tiles, -(-shape.num_in // 128), num_rows))
            num_shown = 2
        lines = []
        for cut in cuts:
            try:
                distance = float((by_way_of(cut, matrix).float() - expected).norm() / expected.norm())
            except Exception as error:
                print(f"FAILED: {name} {shape.name}, {num_rows} rows, {cut}: {error}")
                continue
            if not distance < 6e-3:
                print(f"WRONG: {name} {shape.name}, {num_rows} rows, {cut}: relative error {distance}")
                continue
            taken = time(partial(by_way_of, cut))
            lines.append((taken, f"{taken:7.1f} us {num_bytes / taken / 1e6:5.2f} TB/s  {distance:.1e}  {cut}"))
        for _, line in [*lines[:num_shown], *sorted(lines[num_shown:])[:4]]:
            print(f"{head}  {line}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", nargs="+", default=list(NAMES), choices=list(NAMES))
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help=f"up to {MAX_WIDE_ROWS}")
    parser.add_argument("--tune", action="store_true", help="also time other tunings")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile; 0: when first timed")
    options = parser.parse_args()
    shapes = [shape for shape in SHAPES if options.only in shape.name]
    if options.workers:
        jobs = {
            (name, shape.operation, replace(tuning, programs=1))
            for name in options.formats
            for shape in shapes
            for num_rows in options.rows
            for tuning in tunings_for(shape, num_rows, is_tuned=options.tune)
        }
        with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(compile_for, sorted(jobs, key=str)))
    print(f"{torch.cuda.get_device_name()}, relative error against float32 sums")
    for name in options.formats:
        for shape in shapes:
            measure(name, shape, options.rows, is_tuned=options.tune)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
