"""Times products with 8-bit codes in groups (GGUF's Q8_0, Q6_K, Q5_K) on a GPU at the shapes of E4B and 31B.

    python -m benchmarks.int8_groups_gpu                      # some minutes
    python -m benchmarks.int8_groups_gpu --only 31B --formats Q8_0 --rows 1 8
    python -m benchmarks.int8_groups_gpu --only 31B --rows 16 32 64 128 256   # tens of rows
    python -m benchmarks.int8_groups_gpu --tune               # a handful of tunings and rings for each; the best four

Up to 16 rows there are the ring, the kernel for few rows, whose bits it has, and from 9 rows on the wide kernel; for
more rows the latter two. "values" are slices brought to bfloat16 and multiplied by cuBLAS, "any format" is what serves
formats without kernels of their own, and cuBLAS multiplies by bfloat16 weights, without activation. Kernels are first
checked against the reference; what they are off it is printed, and beside "values". Times are of launches inside a CUDA
graph that walks over copies of the matrix, more of them than the second-level cache holds. First, what brings a matrix
to bfloat16 is timed alone, beside the bytes that it reads and writes.

The engine takes rings up to 16 rows, from 17 on the wide kernel, and values from 257 on: a guess where it has not been
timed. The last lines say where another way of those takes less time.
"""

import argparse
import math
from dataclasses import replace
from functools import partial
from itertools import product
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_timing import microseconds
from benchmarks.int4_gpu import BANDWIDTH, SHAPES, TUNINGS, Shape, expected_output, wide_tunings_for
from benchmarks.linear_gpu import CACHE_BYTES
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.quantized import QuantizedMatrix, gpu, int8_groups, reference, shuffled_product
from facet.kernels.quantized.cases import Case
from facet.kernels.quantized.int8_groups import few_rows, ring, wide
from facet.kernels.quantized.int8_groups.dequantize import dequantize
from facet.kernels.quantized.int8_groups.tuning import (
    MAX_RING_ROWS,
    Ring,
    Tuning,
    choose_tuning,
    choose_wide_tuning,
    ring_of,
    rows_of_program,
)
from facet.kernels.quantized.shuffled.wide_tuning import WideTuning
from facet.kernels.quantized.shuffled_product import multiply_values
from facet.model.gguf.types import BY_NAME

ROWS = (1, 4, 8, 16, 32, 64, 128, 256)
Cut = Ring | Tuning | WideTuning
# Of shared memory: that of a program.
MOST_RING_BYTES = 227 << 10
# Rows and tiles of a program, programs, stages and inputs of a turn.
WIDE_TUNINGS = (
    *((16, 8, 264, 4, 128), (16, 16, 132, 5, 128), (32, 8, 264, 4, 128), (32, 16, 132, 4, 128), (32, 4, 396, 4, 128)),
    *(
        (64, 16, 132, 4, 128),
        (64, 16, 132, 3, 128),
        (64, 8, 264, 3, 128),
        (64, 4, 264, 4, 128),
        (128, 16, 132, 3, 128),
        (128, 8, 132, 4, 128),
    ),
)
LEAST_WIDE_ROWS = 9  # that are timed
MOST_ROWS_OF_MANY_LAUNCHES = 64  # of the kernel for few rows


def room_of(cut: Cut) -> ModuleType:
    return ring if isinstance(cut, Ring) else wide if isinstance(cut, WideTuning) else few_rows


def run(room: ModuleType, shape: Shape, x: Tensor, matrix: int8_groups.ShuffledInt8, given: Tensor, how: Cut) -> Tensor:
    result: Tensor = room.multiply(x, matrix, given if shape.operation == "gated_input_linear" else None, how)
    return result


def run_any_format(shape: Shape, x: Tensor, matrix: QuantizedMatrix, given: Tensor) -> Tensor:
    products = gpu.linear(x, matrix, functional.linear, in_one_chain=False)
    return expected_output(shape, products, given) if shape.operation != "linear" else products


def run_values(shape: Shape, x: Tensor, matrix: int8_groups.ShuffledInt8, given: Tensor) -> Tensor:
    """As the engine multiplies many rows."""
    return multiply_values(x, matrix, given if shape.operation == "gated_input_linear" else None, dequantize)


def dequantize_slices(matrix: int8_groups.ShuffledInt8) -> None:
    for part in shuffled_product.slices(matrix):
        dequantize(part, torch.bfloat16)


def tunings_for(shape: Shape, num_rows: int) -> list[Tuning]:
    """Those with half to four times the warps that keep memory busy, and registers for their sums."""
    found = []
    for tuning in (*TUNINGS, Tuning(tiles=4, num_out_warps=2, num_in_warps=2)):
        num_warps = shape.num_tiles * tuning.num_in_warps // tuning.tiles
        fits = tuning.tiles * rows_of_program(num_rows) <= 64
        if fits and tuning.num_in_warps * 2 <= shape.num_in // 64 and 800 <= num_warps <= 8000:
            found.append(tuning)
    return found


def rings_for(shape: Shape, chosen: Ring) -> list[Ring]:
    """Others of the same bits: with more and fewer tiles, warps and turns, and inputs loaded ahead or not."""
    found = [replace(chosen, is_ahead=not chosen.is_ahead)]
    most_turns = -(-shape.num_in // (64 * chosen.num_in_warps)) + 2
    for tiles, num_out_warps, num_stages in product((1, 2, 4), (1, 2, 4), (3, 4, 6, 8, 12)):
        other = replace(chosen, tiles=tiles, num_out_warps=num_out_warps, num_stages=num_stages)
        num_programs = -(-shape.num_tiles // (tiles * num_out_warps))
        fits = other.num_bytes <= MOST_RING_BYTES and other.num_warps <= 16 and num_stages <= most_turns
        if fits and num_programs <= 1600 and other != chosen:
            found.append(other)
    return found


def measure(name: str, shape: Shape, rows: list[int], *, is_tuned: bool) -> list[str]:
    """Prints lines; returns where the engine takes another way than the fastest."""
    format = BY_NAME[name].format
    assert format is not None
    case = Case(format=format, num_out=shape.num_out, num_in=shape.num_in)
    plain = case.matrix("cuda")
    matrix = int8_groups.shuffle(plain, is_gated=shape.operation == "geglu_linear")
    num_bytes = format.num_bytes((shape.num_out, shape.num_in))
    num_copies = max(1, math.ceil(CACHE_BYTES / num_bytes))
    num_launches = max(num_copies, min(64, math.ceil(4e9 / num_bytes)))
    copies = [matrix]
    copies += [
        matrix.with_tensors({name: tensor.clone() for name, tensor in matrix.tensors().items()})
        for _ in range(num_copies - 1)
    ]
    plain_copies = [plain, *(replace(plain, codes=plain.codes.clone()) for _ in range(num_copies - 1))]
    values = plain.values().bfloat16()
    weights = [values, *(values.clone() for _ in range(min(7, math.ceil(CACHE_BYTES / values.nbytes)) - 1))]
    floor, is_hopper = num_bytes / BANDWIDTH * 1e6, runs_on_hopper(torch.device("cuda"))
    alone = microseconds([partial(dequantize_slices, copies[i % num_copies]) for i in range(min(8, num_launches))])
    least = (num_bytes + values.nbytes) / BANDWIDTH * 1e6
    print(f"{name} {shape.name:24} dequantize alone {alone:6.1f}  floor {least:5.1f}", flush=True)
    slower = []
    for num_rows in rows:
        x = torch.randn(num_rows, shape.num_in, device="cuda", dtype=torch.bfloat16)
        given = torch.randn(num_rows, shape.num_out, device="cuda", dtype=torch.bfloat16)
        expected = expected_output(shape, reference.linear(x.float(), plain).bfloat16(), given).float()

        def distance_of(got: Tensor, expected: Tensor = expected) -> float:
            return float((got.float() - expected).norm() / expected.norm())

        library = microseconds([partial(functional.linear, x, weights[i % len(weights)]) for i in range(num_launches)])
        some = range(min(8, num_launches))  # of those that take long
        by_values = microseconds([partial(run_values, shape, x, copies[i % num_copies], given) for i in some])
        any_format = [partial(run_any_format, shape, x, plain_copies[i % num_copies], given) for i in some]
        distance = distance_of(run_values(shape, x, matrix, given))
        others = f"cuBLAS {library:6.1f}  values {by_values:6.1f} {distance:.1e}  "
        others += f"any format {microseconds(any_format):6.1f}"
        few = choose_tuning(matrix.num_tiles, matrix.num_blocks, num_rows)
        cuts, others_of = list[Cut]([few]), list[Cut](tunings_for(shape, num_rows) if is_tuned else [])
        if is_hopper and num_rows >= LEAST_WIDE_ROWS:
            broad = choose_wide_tuning(matrix.num_tiles, matrix.num_blocks, num_rows)
            cuts.insert(0, broad)
            others_of += wide_tunings_for(shape, num_rows, broad, WIDE_TUNINGS) if is_tuned else []
        if is_hopper and num_rows <= MAX_RING_ROWS:
            best = ring_of(matrix.num_tiles, matrix.num_blocks, matrix.num_levels, num_rows)
            cuts.insert(0, best)
            others_of += rings_for(shape, best) if is_tuned else []
        of_few_rows = run(few_rows, shape, x, matrix, given, few)
        lines: list[tuple[float, str]] = []
        times: dict[ModuleType | None, float] = {None: by_values}
        for cut in cuts + others_of:
            room = room_of(cut)
            try:
                got = run(room, shape, x, matrix, given, cut)
            except Exception as error:
                print(f"FAILED: {name} {shape.name}, {num_rows} rows, {cut}: {error}")
                continue
            distance = distance_of(got)
            if not distance < 6e-3 or (room is ring and not torch.equal(got, of_few_rows)):
                print(f"WRONG: {name} {shape.name}, {num_rows} rows, {cut}: relative error {distance}, or other bits")
                continue
            is_slow = room is few_rows and num_rows > MOST_ROWS_OF_MANY_LAUNCHES
            launches = some if is_slow else range(num_launches)
            time = microseconds([partial(run, room, shape, x, copies[i % num_copies], given, cut) for i in launches])
            times.setdefault(room, time)
            lines.append((time, f"{time:7.1f} us {num_bytes / time / 1e6:5.2f} TB/s  {distance:.1e}  {cut}"))
        for _, line in [*lines[: len(cuts)], *sorted(lines[len(cuts) :])[:4]]:
            print(f"{name} {shape.name:24} {num_rows:4} rows  floor {floor:5.1f}  {others} {line}", flush=True)
        taken = int8_groups.choose_kernels(x, matrix, int8_groups.MAX_FEW_ROWS)
        fastest = min(times, key=lambda room: times[room])
        if taken in times and times[fastest] < 0.97 * times[taken]:
            names = [name_of(room) for room in (taken, fastest)]
            slower.append(
                f"{name} {shape.name}, {num_rows} rows: {names[0]} is taken, {times[taken]:.1f} us, "
                f"but {names[1]} takes {times[fastest]:.1f}"
            )
    return slower


def name_of(room: object) -> str:
    return "values" if room is None else str(vars(room)["__name__"]).rpartition(".")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--formats", nargs="+", default=["Q8_0", "Q6_K", "Q5_K"], choices=["Q8_0", "Q5_0", "Q6_K", "Q5_K"]
    )
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--tune", action="store_true", help="also time other tunings")
    parser.add_argument("--slice-mib", type=int, help="bytes of a slice in bfloat16, where not those of the engine")
    options = parser.parse_args()
    if options.slice_mib is not None:
        shuffled_product._SLICE_BYTES = options.slice_mib << 20
    print(torch.cuda.get_device_name())
    slower = []
    for name in options.formats:
        for shape in SHAPES:
            if options.only in shape.name:
                slower += measure(name, shape, options.rows, is_tuned=options.tune)
                torch.cuda.empty_cache()
    print("\n".join(["", *(slower or ["Everywhere the engine takes the fastest way."])]))


if __name__ == "__main__":
    main()
