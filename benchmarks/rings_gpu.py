"""Times products of few rows in one chain of sums through rings on a GPU: of warps, and of warpgroups.

    python -m benchmarks.rings_gpu [--only "E4B down"] [--rows 1 8] [--tune] [--output rings.json]

A line says what the usual product takes, then the ring of warps, which more than 8 rows do not have, then the ring of
warpgroups that would take its place, then others: w rows x outputs of a program x inputs of a tile x stages. Bits are
compared with those of tiles in Triton.
Times are of launches inside a CUDA graph, every weight read from memory. Without `--tune` it takes about a minute, most
of it to compile.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.chains_gpu import Weights, inputs, usual
from benchmarks.linear_gpu import Job, compile_for, run
from facet.kernels.linear import cases
from facet.kernels.linear.config import choose_chain
from facet.kernels.linear.ring_config import MAX_WARP_ROWS, Ring, WarpgroupRing, ring_of, warpgroup_ring_of

# All but heads.
SHAPES = tuple(shape for shape in cases.SERVED if shape.num_out < 65536)
HBM_BYTES_PER_MICROSECOND = 4.2e6
# For all programs that a multiprocessor is to hold.
MOST_BYTES = 220 << 10


def rings_for(shape: cases.Shape, num_rows: int, is_tuned: bool) -> list[Ring | WarpgroupRing]:
    """The ring of warps for few rows, the ring of warpgroups if one would be chosen, and others of those."""
    warps = [ring_of(shape.num_out, shape.num_in)] if num_rows <= MAX_WARP_ROWS else []
    chosen = warpgroup_ring_of(num_rows, shape.num_out, shape.num_in)
    return list(dict.fromkeys((*warps, *([chosen] if chosen else ()), *_others(shape, num_rows, is_tuned))))


def _others(shape: cases.Shape, num_rows: int, is_tuned: bool) -> Iterator[WarpgroupRing]:
    outputs = (16, 32) if shape.num_out <= 512 else (16, 32, 64) if shape.num_out <= 3072 else (32, 64)
    least = next(rows for rows in (8, 16, 32, 64, 128) if num_rows <= rows)
    for rows_of_program in (8,) if least == 8 else (32, 64) if least > 32 else {16, least}:
        # And so many as programs on one of every two multiprocessors would have, or on all, each as many as the others.
        even = [_even_outputs(shape, num_programs) for num_programs in (66, 132)] if rows_of_program == least else []
        for num_out in dict.fromkeys((*even, *(outputs if is_tuned else outputs[-2:]))):
            num_programs = -(-num_rows // rows_of_program) * -(-shape.num_out // num_out)
            for block_in in (128, 256, 512) if num_out in even and is_tuned else (128, 256):
                ring = WarpgroupRing(num_out, block_in, 10, num_rows=rows_of_program)
                if 2 * ring.tile_bytes <= MOST_BYTES:
                    yield _fitted(ring, min(2, -(-num_programs // 132)), shape.num_in)


def _even_outputs(shape: cases.Shape, num_programs: int) -> int:
    """The least that a ring can have, for at most so many programs."""
    unit = 16 if shape.operation == "geglu_linear" else 8
    possible = {unit << a for a in range(5)} | {(unit << a) + (unit << b) for a in range(5) for b in range(a)}
    enough = [num_out for num_out in possible if num_out <= 256 and -(-shape.num_out // num_out) <= num_programs]
    return min(enough, default=64)


def _fitted(ring: WarpgroupRing, num_programs: int, num_in: int) -> WarpgroupRing:
    """With fewer stages where so many programs would not fit on a multiprocessor, or there are fewer tiles."""
    num_behind = ring.num_bytes - ring.num_stages * ring.tile_bytes
    most = min((MOST_BYTES // num_programs - num_behind) // ring.tile_bytes, -(-num_in // ring.block_in))
    return replace(ring, num_stages=max(2, min(ring.num_stages, most)))


def name_of(ring: Ring | WarpgroupRing) -> str:
    sizes = f"{ring.block_in}x{ring.num_stages}"
    if isinstance(ring, Ring):
        return f"warps {16 * ring.num_warps}x{sizes}"
    return f"w{ring.num_rows}x{ring.num_out}x{sizes}"


def measure(shape: cases.Shape, num_rows: int, weights: Weights, is_tuned: bool) -> dict[str, float]:
    x, given = inputs(shape, num_rows)
    expected = run(shape, x, weights.first, given, choose_chain(num_rows, shape.num_out, shape.num_in, 2))
    times = {"usual": weights.time(lambda weight: usual(shape, x, weight, given))}
    for ring in rings_for(shape, num_rows, is_tuned):
        name = name_of(ring)
        try:
            got = run(shape, x, weights.first, given, ring)
        except Exception as error:  # the others are timed all the same
            print(f"{shape.name}, {num_rows} rows, {name}: {error}")
            continue
        if not torch.equal(got, expected):
            distance = float((got.float() - expected.float()).abs().max())
            print(f"OTHER BITS: {shape.name}, {num_rows} rows, {name}: off by up to {distance}")
            continue
        times[name] = weights.time(lambda weight, ring=ring: run(shape, x, weight, given, ring))  # type: ignore[misc]
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="where all results go, as JSON")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rows", type=int, nargs="+", default=(1, MAX_WARP_ROWS))
    parser.add_argument("--tune", action="store_true", help="time many rings of warpgroups")
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    options = parser.parse_args()
    shapes = [shape for shape in SHAPES if options.only in shape.name]
    jobs = {
        (shape.num_in, shape.operation, ring): Job(shape, num_rows, (ring,))
        for shape in shapes
        for num_rows in options.rows
        for ring in rings_for(shape, num_rows, options.tune)
    }
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_for, jobs.values()))
    print(f"{torch.cuda.get_device_name()}, bfloat16, µs; outputs x inputs x stages", flush=True)
    results = []
    for shape in shapes:
        weights = Weights(shape)
        floor = 2 * shape.num_out * shape.num_in / HBM_BYTES_PER_MICROSECOND
        for num_rows in options.rows:
            times = measure(shape, num_rows, weights, options.tune)
            told = "  ".join(f"{name} {time:.1f}" for name, time in times.items())
            print(f"{shape.name:25} {num_rows} rows, bytes {floor:5.1f}:  {told}", flush=True)
            results.append({"shape": asdict(shape), "num_rows": num_rows, "floor": floor, "times": times})
    if options.output:
        options.output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
