"""Times products with 4-bit codes on a GPU at the shapes of E4B and 31B, against the bytes they read and cuBLAS.

    python benchmarks/int4_gpu.py                    # what the engine would use, under a minute
    python benchmarks/int4_gpu.py --tune             # a handful of tunings for each shape; the best four lines of each
    python benchmarks/int4_gpu.py --only gate_up --rows 1 8 16
    python -m benchmarks.int4_gpu --rings            # few rows through rings, also half as deep and as deep as they
                                                     # can be, beside the kernel for few rows, alone and in layers
                                                     # (int4_chain.py); with --tune, other rings too
    python -m benchmarks.int4_gpu --rings --rows 16  # beside the wide kernel, too
    python -m benchmarks.int4_wide_gpu               # tens of rows, in INT4, NVFP4 and Q4_K

Every kernel is first checked against the reference. Times are of launches inside a CUDA graph that walks over copies of
the matrix, more of them than the second-level cache holds. cuBLAS multiplies by bfloat16 weights, without activation.
"""

import argparse
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import int4_chain
from benchmarks.gpu_timing import microseconds
from benchmarks.int4_chain import deepest_ring_of, format_of, half_ring_of
from benchmarks.linear_gpu import CACHE_BYTES
from facet.kernels.geglu.reference import geglu
from facet.kernels.per_layer_input.reference import gate_per_layer_input
from facet.kernels.quantized import int4, reference
from facet.kernels.quantized.cases import Case
from facet.kernels.quantized.int4.tuning import (
    MAX_FEW_ROWS,
    MAX_WIDE_ROWS,
    Ring,
    Tuning,
    choose_tuning,
    choose_wide_tuning,
    ring_of,
    rows_of_program,
)
from facet.kernels.quantized.shuffled.wide_tuning import WideTuning

ROWS = (1, 4, 8, 16, 32, 64, 128, 256)
ROWS_OF_RINGS = (1, 4, 8)
Cut = Tuning | WideTuning | Ring
BANDWIDTH = 4.3e12  # bytes a second that an H200 reads at best
TUNINGS = tuple(
    Tuning(tiles=tiles, num_out_warps=num_out_warps, num_in_warps=num_in_warps)
    for tiles, num_out_warps, num_in_warps in (
        (1, 4, 1),
        (2, 4, 1),
        (1, 2, 2),
        (2, 2, 2),
        (1, 4, 2),
        (1, 1, 4),
        (2, 1, 4),
        (1, 2, 4),
        (1, 1, 8),
        (2, 1, 8),
        (1, 1, 16),
    )
)


# Of shared memory: that of a program, and what all programs of a multiprocessor have on their way.
MOST_RING_BYTES, LEAST_RING_BYTES = 227 << 10, 64 << 10
# Rows and tiles of a program, programs, stages and inputs of a turn.
WIDE_TUNINGS = (
    *((16, 8, 264, 4, 128), (16, 8, 264, 8, 128), (16, 16, 132, 6, 128), (16, 4, 528, 5, 128)),
    *((16, 8, 264, 4, 256), (16, 8, 264, 3, 256), (16, 16, 132, 4, 256), (16, 4, 528, 3, 256)),
    *((16, 4, 396, 4, 256), (32, 4, 264, 3, 256), (32, 4, 264, 5, 128)),
    *((32, 8, 264, 4, 128), (32, 8, 264, 5, 128), (32, 16, 132, 5, 128), (32, 16, 132, 7, 128), (32, 4, 396, 5, 128)),
    *((32, 8, 264, 3, 256), (32, 16, 132, 4, 256), (32, 16, 132, 3, 256)),
    *((64, 16, 132, 4, 128), (64, 16, 132, 6, 128), (64, 8, 264, 4, 128), (64, 4, 264, 4, 128), (64, 16, 132, 3, 256)),
    *((128, 16, 132, 3, 128), (128, 8, 132, 5, 128), (128, 8, 132, 4, 128), (128, 4, 264, 3, 128)),
)


@dataclass(frozen=True)
class Shape:
    name: str
    num_out: int
    num_in: int
    operation: str = "linear"

    @property
    def num_tiles(self) -> int:
        return self.num_out // 16

    def case(self, group: int) -> Case:
        return Case(format=format_of(group), num_out=self.num_out, num_in=self.num_in)


SHAPES = (
    Shape("31B gate_up", 43008, 5376, "geglu_linear"),
    Shape("31B down", 5376, 21504),
    Shape("31B qkv", 16384, 5376),
    Shape("31B o", 5376, 8192),
    Shape("E4B gate_up", 20480, 2560, "geglu_linear"),
    Shape("E4B down", 2560, 10240),
    Shape("E4B qkv", 3072, 2560),
    Shape("E4B o", 2560, 2048),
    Shape("E4B per-layer gate", 256, 2560, "gated_input_linear"),
    Shape("E4B per-layer projection", 2560, 256),
)


def run(shape: Shape, x: Tensor, matrix: int4.ShuffledInt4, given: Tensor, tuning: Cut | None) -> Tensor:
    """Without a tuning as the engine does it."""
    from facet.kernels.quantized.int4 import few_rows, ring, wide

    per_layer_input = given if shape.operation == "gated_input_linear" else None
    if tuning is None:
        return int4.multiply(x, matrix, per_layer_input)
    if isinstance(tuning, WideTuning):
        return wide.multiply(x, matrix, per_layer_input, tuning)
    if isinstance(tuning, Ring):
        return ring.multiply(x, matrix, per_layer_input, tuning)
    return few_rows.multiply(x, matrix, per_layer_input, tuning)


def expected_output(shape: Shape, products: Tensor, given: Tensor) -> Tensor:
    if shape.operation == "gated_input_linear":
        return gate_per_layer_input(products, given)
    return geglu(products) if shape.operation == "geglu_linear" else products


def chosen_for(shape: Shape, num_rows: int) -> Cut:
    choose = choose_tuning if num_rows <= MAX_FEW_ROWS else choose_wide_tuning
    return choose(shape.num_tiles, -(-shape.num_in // 128), num_rows)


def tunings_for(shape: Shape, num_rows: int) -> list[Cut]:
    """Those with half to four times the warps that keep memory busy, and registers for their sums."""
    found: list[Cut] = []
    if num_rows > MAX_FEW_ROWS:
        chosen = choose_wide_tuning(shape.num_tiles, -(-shape.num_in // 128), num_rows)
        return list(wide_tunings_for(shape, num_rows, chosen, WIDE_TUNINGS))
    for tuning in TUNINGS:
        num_warps = shape.num_tiles * tuning.num_in_warps // tuning.tiles
        fits = tuning.tiles * rows_of_program(num_rows) <= 64
        if fits and tuning.num_in_warps * 2 <= shape.num_in // 128 and 800 <= num_warps <= 8000:
            found.append(tuning)
    return found or [chosen_for(shape, num_rows)]


def wide_tunings_for(
    shape: Shape, num_rows: int, chosen: WideTuning, tunings: Sequence[tuple[int, int, int, int, int]]
) -> list[WideTuning]:
    """Others than the chosen one, with programs that end where tile groups do, or do not."""
    found = []
    for rows, tiles, programs, stages, turn_in in tunings:
        num_groups, num_row_groups = -(-shape.num_tiles // tiles), -(-num_rows // rows)
        most = min(programs // num_row_groups, num_groups * -(-shape.num_in // turn_in) // 4)
        if num_row_groups > 4 or rows > 2 * num_rows or most < 1:
            continue
        for number in {most, most // num_groups * num_groups or most, min(most, 4 * num_groups)}:
            other = WideTuning(rows=rows, tiles=tiles, programs=number, stages=stages, turn_in=turn_in)
            if other != chosen:
                found.append(other)
    return found


def rivals_of_rings(shape: Shape, num_rows: int) -> list[Cut]:
    """The kernel for few rows, whose bits rings have, and where rows are more the one that is chosen without rings."""
    of_few_rows = choose_tuning(shape.num_tiles, -(-shape.num_in // 128), num_rows)
    return [of_few_rows] if num_rows <= MAX_FEW_ROWS else [of_few_rows, chosen_for(shape, num_rows)]


def rings_for(shape: Shape, num_rows: int, is_tuned: bool) -> list[Ring]:
    """The one that would be chosen, one half as deep and one as deep as can be; tuned, also others of the same bits:
    with more and fewer warps, tiles and turns, and inputs loaded ahead or not."""
    num_blocks = -(-shape.num_in // 128)
    rings = [choose(shape.num_tiles, num_blocks, num_rows) for choose in (ring_of, half_ring_of, deepest_ring_of)]
    chosen, found = rings[0], list(dict.fromkeys(rings))
    if not is_tuned:
        return found
    # Rings of 16 rows may be the better ones of 8: x is read for more tiles at once.
    found = list(dict.fromkeys((*found, ring_of(shape.num_tiles, num_blocks, 16))))
    most_turns = -(-shape.num_in // (128 * chosen.num_in_warps)) + 2
    for tiles, num_out_warps, num_stages in product((1, 2, 4), (1, 2, 4), (3, 4, 6, 8, 12)):
        for is_ahead in (False, True):
            ring = replace(chosen, tiles=tiles, num_out_warps=num_out_warps, num_stages=num_stages, is_ahead=is_ahead)
            num_programs = -(-shape.num_tiles // (tiles * num_out_warps))
            fits = ring.num_bytes <= MOST_RING_BYTES and ring.num_warps <= 16 and num_stages <= most_turns
            fits = fits and num_stages % chosen.row_tiles == 0
            if chosen.row_tiles == 1:
                fits = fits and not (is_ahead and tiles == 4)
            else:
                fits = fits and tiles * num_out_warps <= shape.num_tiles and not (ring.num_warps == 16 and tiles == 4)
            fills = ring.num_bytes * min(8, num_programs / 132) >= LEAST_RING_BYTES or num_stages + 1 >= most_turns
            if fits and fills and num_programs <= 800 and ring not in found:
                found.append(ring)
    return found


@dataclass(frozen=True)
class Job:
    """A kernel to compile: shapes of few outputs stand for those of many."""

    shape: Shape
    num_rows: int
    group: int
    tuning: Cut


def compile_for(job: Job) -> None:
    """Into Triton's cache on disk."""
    shape = replace(job.shape, num_out=256)
    matrix = int4.shuffle(shape.case(job.group).matrix("cuda"), is_gated=shape.operation == "geglu_linear")
    x = torch.zeros(job.num_rows, shape.num_in, device="cuda", dtype=torch.bfloat16)
    given = torch.zeros(job.num_rows, 256, device="cuda", dtype=torch.bfloat16)
    # No more programs than so few outputs have turns for.
    tuning = replace(job.tuning, programs=1) if isinstance(job.tuning, WideTuning) else job.tuning
    try:
        run(shape, x, matrix, given, tuning)
    except Exception as error:
        print(f"{job}: {error}")


def measure(shape: Shape, rows: Sequence[int], group: int, is_tuned: bool, rings: bool) -> None:
    case = shape.case(group)
    plain = case.matrix("cuda")
    matrix = int4.shuffle(plain, is_gated=shape.operation == "geglu_linear")
    num_bytes = case.format.num_bytes((shape.num_out, shape.num_in))
    num_copies = max(1, math.ceil(CACHE_BYTES / num_bytes))
    num_launches = max(num_copies, min(64, math.ceil(4e9 / num_bytes)))
    copies = [matrix] + [
        replace(matrix, codes=matrix.codes.clone(), scales=matrix.scales.clone()) for _ in range(num_copies - 1)
    ]
    values = plain.values().bfloat16()
    weights = [values, *(values.clone() for _ in range(min(7, math.ceil(CACHE_BYTES / values.nbytes)) - 1))]
    floor = num_bytes / BANDWIDTH * 1e6
    for num_rows in rows:
        x = torch.randn(num_rows, shape.num_in, device="cuda", dtype=torch.bfloat16)
        given = torch.randn(num_rows, shape.num_out, device="cuda", dtype=torch.bfloat16)
        expected = expected_output(shape, reference.linear(x.float(), plain).bfloat16(), given).float()
        library = microseconds([partial(functional.linear, x, weights[i % len(weights)]) for i in range(num_launches)])
        tunings: list[Cut | None] = [None]
        if rings:
            tunings = [*rivals_of_rings(shape, num_rows), *rings_for(shape, num_rows, is_tuned)]
        elif is_tuned and num_rows <= MAX_WIDE_ROWS:
            tunings += tunings_for(shape, num_rows)
        lines: list[tuple[float, str]] = []
        of_few_rows: Tensor | None = None
        for tuning in tunings:
            try:
                got = run(shape, x, matrix, given, tuning)
            except Exception as error:
                print(f"FAILED: {shape.name}, {num_rows} rows, {tuning}: {error}")
                continue
            distance = float((got.float() - expected).norm() / expected.norm())
            if not distance < 6e-3:
                print(f"WRONG: {shape.name}, {num_rows} rows, {tuning}: relative error {distance}")
                continue
            time = microseconds(
                [partial(run, shape, x, copies[i % num_copies], given, tuning) for i in range(num_launches)]
            )
            how = str(tuning or chosen_for(shape, num_rows)) + (" (chosen)" if tuning is None else "")
            if isinstance(tuning, Ring):
                is_same = of_few_rows is not None and torch.equal(got, of_few_rows)
                how = f"{'same bits' if is_same else 'OTHER BITS'}  {how}"
            elif isinstance(tuning, Tuning):
                of_few_rows = got
            lines.append((time, f"{time:7.1f} us {num_bytes / time / 1e6:5.2f} TB/s  {distance:.1e}  {how}"))
        # Whatever their times: what is chosen, and what else is asked for.
        kept = len(rivals_of_rings(shape, num_rows)) + len(rings_for(shape, num_rows, False)) if rings else 1
        for _, line in [*lines[:kept], *sorted(lines[kept:])[:4]]:
            head = f"{shape.name:18} {num_rows:4} rows  floor {floor:5.1f}  cuBLAS {library:6.1f} "
            print(head, line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true", help="also time other tunings")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument(
        "--rings", action="store_true", help="time rings beside the kernel for few rows, on a Hopper GPU"
    )
    parser.add_argument("--rows", type=int, nargs="+", help=f"{ROWS}, of rings {ROWS_OF_RINGS}")
    parser.add_argument("--group", type=int, default=32, choices=(16, 32, 64, 128), help="16: NVFP4")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile; 0: compile when first timed")
    options = parser.parse_args()
    rows = options.rows or (ROWS_OF_RINGS if options.rings else ROWS)
    shapes = [shape for shape in SHAPES if options.only in shape.name]
    if options.workers:
        jobs = {}
        for shape in shapes:
            for num_rows in rows:
                tunings = {chosen_for(shape, num_rows)}
                if options.rings:
                    tunings.update(rivals_of_rings(shape, num_rows))
                    tunings.update(rings_for(shape, num_rows, options.tune))
                elif options.tune:
                    tunings.update(tunings_for(shape, num_rows))
                for tuning in tunings:
                    if isinstance(tuning, WideTuning):
                        kind, is_ragged = tuning.rows, False
                    else:
                        kind = rows_of_program(num_rows)
                        is_ragged = -(-shape.num_in // 128) % (2 * tuning.num_in_warps) != 0
                    # Rings of 16 rows are made for a number of inputs.
                    num_in = shape.num_in if isinstance(tuning, Ring) and tuning.row_tiles > 1 else 0
                    jobs[shape.operation, kind, tuning, is_ragged, num_in] = Job(shape, kind, options.group, tuning)
        with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(compile_for, jobs.values()))
    print(f"{torch.cuda.get_device_name()}, int4 in groups of {options.group}, relative error against float32 sums")
    for shape in shapes:
        measure(shape, rows, options.group, options.tune, options.rings)
        torch.cuda.empty_cache()
    if options.rings:
        for layer in int4_chain.LAYERS:
            if not options.only or options.only in layer.name:
                int4_chain.measure(layer, rows, options.group)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
