"""Times experts of 26B-A4B with few rows through rings on a Hopper GPU, against pairs in groups, bfloat16.

    python -m benchmarks.expert_rings_gpu [--rows 1 8]          # one pair of rings for each number of rows
    python -m benchmarks.expert_rings_gpu --tune                # others too, first of gate_up, then of down
    python -m benchmarks.expert_rings_gpu --tune --programs 3   # of which so many fit on a multiprocessor

`invariant` is what batch-invariant arithmetic runs now, `usual` what the other does. Rings are named by rows x outputs
of a program x inputs of a tile x stages; their results are added up as those of groups, and bits are compared first.
Times are of launches inside a CUDA graph, each with other choices of experts, so that what one launch read is not in
the second-level cache for the next.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_timing import microseconds
from facet.kernels import moe
from facet.kernels.linear.ring_config import WarpgroupRing
from facet.kernels.moe import expert_rings
from facet.kernels.moe.cases import Case
from facet.kernels.moe.triton_groups import combine

DEVICE = "cuda"
NUM_EXPERTS, NUM_CHOSEN, HIDDEN, WIDTH = 128, 8, 2816, 704
ROWS = (1, 2, 4, 8, 16, 32)
BANDWIDTH = 4.26e6  # bytes a microsecond that an H200 reads at best
NUM_LAUNCHES = 16
# Launches whose bits are compared.
NUM_CHECKED = 2

# Outputs of a program, inputs of a tile.
GATE_UP = tuple((num_out, block_in) for num_out in (64, 96, 128, 192) for block_in in (64, 128, 256))
DOWN = tuple((num_out, block_in) for num_out in (64, 96, 192) for block_in in (64, 128))
USUAL_GATE_UP, USUAL_DOWN = (96, 256), (96, 128)
# Of a multiprocessor, and what each program takes besides its tiles: one part is reserved, the other has barriers.
SHARED_BYTES, OTHER_BYTES = 228 << 10, 1024 + 512

RunExperts = Callable[[Tensor, Tensor, Tensor], Tensor]  # x, weights, chosen


class Rings(NamedTuple):
    gate_up: WarpgroupRing
    down: WarpgroupRing


class Layer(NamedTuple):
    gate_up: Tensor
    down: Tensor


def padded_rows(num_rows: int) -> int:
    return next(rows for rows in (8, 16, 32) if num_rows <= rows)


def fitted_ring(sizes: tuple[int, int], num_rows: int, num_in: int, num_programs: int) -> WarpgroupRing | None:
    """With as many stages as so many programs of a multiprocessor have room for, and there are tiles; two at least."""
    num_out, block_in = sizes
    for num_stages in range(-(-num_in // block_in), 1, -1):
        ring = WarpgroupRing(num_out, block_in, num_stages, padded_rows(num_rows))
        if ring.num_bytes + OTHER_BYTES <= SHARED_BYTES // num_programs:
            return ring
    return None


def fitted_rings(
    sizes: Sequence[tuple[int, int]], num_rows: int, num_in: int, programs: Sequence[int]
) -> list[WarpgroupRing]:
    found = (fitted_ring(each, num_rows, num_in, num_programs) for each in sizes for num_programs in programs)
    return list(dict.fromkeys(ring for ring in found if ring is not None))


def usual_rings(num_rows: int) -> Rings:
    gate_up = fitted_ring(USUAL_GATE_UP, num_rows, HIDDEN, 1)
    down = fitted_ring(USUAL_DOWN, num_rows, WIDTH, 2)
    assert gate_up is not None
    assert down is not None
    return Rings(gate_up, down)


def other_rings(num_rows: int, programs: Sequence[int]) -> tuple[list[WarpgroupRing], list[WarpgroupRing]]:
    """Of gate_up, and of down."""
    return fitted_rings(GATE_UP, num_rows, HIDDEN, programs), fitted_rings(DOWN, num_rows, WIDTH, programs)


def name_of(ring: WarpgroupRing) -> str:
    return f"{ring.num_rows}x{ring.num_out}x{ring.block_in}x{ring.num_stages}"


def run_usual(layer: Layer, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return moe.run_experts(x, weights, chosen, *layer)


def run_invariant(layer: Layer, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return moe.invariant_run_experts(x, weights, chosen, *layer)


def run_rings(layer: Layer, rings: Rings, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return combine(expert_rings.multiply_pairs(x, chosen, *layer, rings), weights)


class Job(NamedTuple):
    num_rows: int
    rings: Rings | None  # None: what they are compared with


def jobs_for(rows: Sequence[int], is_tuned: bool, programs: Sequence[int]) -> list[Job]:
    return [*(Job(num_rows, None) for num_rows in rows), *dict.fromkeys(_ring_jobs(rows, is_tuned, programs))]


def _ring_jobs(rows: Sequence[int], is_tuned: bool, programs: Sequence[int]) -> Iterator[Job]:
    """One kernel serves all numbers of rows that are padded to as many."""
    for num_rows in dict.fromkeys(map(padded_rows, rows)):
        usual = usual_rings(num_rows)
        yield Job(num_rows, usual)
        if is_tuned:
            of_gate_up, of_down = other_rings(num_rows, programs)
            for gate_up in of_gate_up:
                yield Job(num_rows, usual._replace(gate_up=gate_up))
            for down in of_down:
                yield Job(num_rows, usual._replace(down=down))


def compile_for(job: Job) -> None:
    """Into Triton's cache on disk."""
    zeros = partial(torch.zeros, device=DEVICE, dtype=torch.bfloat16)
    layer = Layer(zeros(NUM_EXPERTS, 2 * WIDTH, HIDDEN), zeros(NUM_EXPERTS, HIDDEN, WIDTH))
    x = zeros(job.num_rows, HIDDEN)
    weights = torch.zeros(job.num_rows, NUM_CHOSEN, device=DEVICE)
    chosen = torch.arange(NUM_CHOSEN, device=DEVICE).expand(job.num_rows, -1).contiguous()
    if job.rings is None:
        run_usual(layer, x, weights, chosen)
        run_invariant(layer, x, weights, chosen)
        return
    try:
        run_rings(layer, job.rings, x, weights, chosen)
    except Exception as error:
        print(f"{' and '.join(map(name_of, job.rings))}: {error}", flush=True)


class Timing:
    """Of one number of rows."""

    def __init__(self, layer: Layer, num_rows: int) -> None:
        self.layer = layer
        self.num_rows = num_rows
        self.x = torch.randn(num_rows, HIDDEN, device=DEVICE).bfloat16()
        self.weights = torch.rand(num_rows, NUM_CHOSEN, device=DEVICE)
        odds = torch.rand(NUM_LAUNCHES, num_rows, NUM_EXPERTS, device=DEVICE)
        self.choices = odds.argsort(-1)[..., :NUM_CHOSEN].contiguous().unbind(0)
        self.expected = [run_invariant(layer, *self._inputs(chosen)) for chosen in self.choices[:NUM_CHECKED]]

    @property
    def num_read(self) -> float:
        """Experts of a launch."""
        return sum(len(set(chosen.flatten().tolist())) for chosen in self.choices) / len(self.choices)

    def time(self, run: RunExperts) -> float:
        return microseconds([partial(run, *self._inputs(chosen)) for chosen in self.choices])

    def time_rings(self, rings: Rings) -> float | None:
        """None where they fail, or leave other bits."""
        run = partial(run_rings, self.layer, rings)
        name = f"{self.num_rows} rows, gate_up {name_of(rings.gate_up)}, down {name_of(rings.down)}"
        try:
            got = [run(*self._inputs(chosen)) for chosen in self.choices[:NUM_CHECKED]]
        except Exception as error:  # the others are timed all the same
            print(f"FAILED: {name}: {error}", flush=True)
            return None
        if not all(map(torch.equal, got, self.expected)):
            distances = [float((a.float() - b.float()).abs().max()) for a, b in zip(got, self.expected, strict=True)]
            print(f"OTHER BITS: {name}: off by up to {max(distances)}", flush=True)
            return None
        return self.time(run)

    def best(self, candidates: Sequence[Rings]) -> tuple[Rings | None, dict[Rings, float]]:
        found = {rings: time for rings in candidates if (time := self.time_rings(rings)) is not None}
        return min(found, key=found.__getitem__, default=None), found

    def _inputs(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.x, self.weights, chosen


def measure(layer: Layer, num_rows: int, is_tuned: bool, programs: Sequence[int]) -> dict[str, Any]:
    timing, usual = Timing(layer, num_rows), usual_rings(num_rows)
    floor = timing.num_read * 3 * HIDDEN * WIDTH * 2 / BANDWIDTH
    times = {
        "invariant": timing.time(partial(run_invariant, layer)),
        "usual": timing.time(partial(run_usual, layer)),
    }
    best, found = timing.best([usual])
    by_gate_up: dict[str, float] = {}
    by_down: dict[str, float] = {}
    if is_tuned:
        of_gate_up, of_down = other_rings(num_rows, programs)
        first, of_first = timing.best([usual._replace(gate_up=ring) for ring in of_gate_up])
        found |= of_first
        by_gate_up = {name_of(rings.gate_up): time for rings, time in found.items()}
        _, of_second = timing.best([(first or usual)._replace(down=ring) for ring in of_down])
        found |= of_second
        by_down = {name_of(rings.down): time for rings, time in of_second.items()}
        best = min(found, key=found.__getitem__, default=None)
    told = "  ".join(f"{name} {time:6.1f}" for name, time in times.items())
    told_rings = "rings: none" if best is None else f"rings {found[best]:6.1f} ({' and '.join(map(name_of, best))})"
    print(
        f"{num_rows:3} rows  {timing.num_read:5.1f} experts are read, bytes {floor:5.1f}:  {told}  {told_rings}",
        flush=True,
    )
    for name, others in {"gate_up": by_gate_up, "down": by_down}.items():
        if others:
            in_order = sorted(others.items(), key=lambda item: item[1])
            print(f"    {name}: " + "  ".join(f"{ring} {time:.1f}" for ring, time in in_order), flush=True)
    times_of_rings = {" and ".join(map(name_of, rings)): time for rings, time in found.items()}
    return {"num_rows": num_rows, "num_read": timing.num_read, "floor": floor, **times, "rings": times_of_rings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--tune", action="store_true", help="time many rings")
    parser.add_argument("--programs", type=int, nargs="+", default=(1, 2), help="that a multiprocessor has room for")
    parser.add_argument("--output", type=Path, help="where all results go, as JSON")
    parser.add_argument("--workers", type=int, default=14, help="processes that compile")
    options = parser.parse_args()
    jobs = jobs_for(options.rows, options.tune, options.programs)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_for, jobs))
    print(f"{torch.cuda.get_device_name()}, experts of one layer of Gemma 4 26B-A4B, bfloat16, µs", flush=True)
    torch.manual_seed(0)
    case = Case(num_rows=1, hidden=HIDDEN, num_experts=NUM_EXPERTS, num_chosen=NUM_CHOSEN, width=WIDTH)
    inputs = case.inputs(torch.bfloat16, DEVICE)
    assert expert_rings.can_run(inputs.x, inputs.gate_up, inputs.down)
    layer = Layer(inputs.gate_up, inputs.down)
    results = [measure(layer, num_rows, options.tune, options.programs) for num_rows in options.rows]
    if options.output:
        options.output.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
