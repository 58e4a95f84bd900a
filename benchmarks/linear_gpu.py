"""Times few-row matrix products on a GPU at the shapes of E4B and 31B, by configuration and against cuBLAS.

    python -m benchmarks.linear_gpu --output linear.json
    python -m benchmarks.linear_gpu --chosen                    # only what the engine would use, under a minute
    python -m benchmarks.linear_gpu --moe --output moe.json     # 26B-A4B's experts instead

Every configuration is first checked against a float32 product. Times are of launches inside a CUDA graph that walks
over copies of the weight, more of them than the second-level cache holds, so that every weight comes from memory.
cuBLAS is timed without the activation that the Triton kernels of gate_up and of the per-layer gate include.
"""

import argparse
import json
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_timing import microseconds
from facet.kernels.linear import cases, reference
from facet.kernels.linear.config import MAX_VECTOR_ROWS, Config, choose_config
from facet.kernels.linear.ring_config import Ring, WarpgroupRing
from facet.kernels.moe import cases as moe_cases
from facet.kernels.moe import reference as moe_reference
from facet.kernels.moe.config import TileConfig

ROWS = (1, 2, 4, 8, 16)
CACHE_BYTES = 160e6  # what the copies of a weight amount to at least: three times an H200's second-level cache
VECTOR_CONFIGS = tuple(
    Config(is_dot=False, block_out=block_out, block_in=block_in, num_warps=num_warps, num_stages=num_stages)
    for block_out, block_in, num_warps, num_stages in (
        (4, 256, 1, 1),
        (8, 256, 1, 1),
        (16, 256, 1, 1),
        (4, 512, 1, 1),
        (4, 512, 2, 1),
        (8, 512, 2, 1),
        (2, 1024, 4, 1),
        (4, 1024, 4, 1),
        (8, 1024, 4, 1),
        (4, 2048, 8, 1),
        (8, 256, 1, 4),
        (8, 1024, 4, 3),
    )
)
DOT_CONFIGS = tuple(
    Config(is_dot=True, block_out=block_out, block_in=block_in, num_warps=num_warps, num_stages=num_stages)
    for block_out, block_in, num_warps, num_stages in (
        (128, 64, 4, 6),
        (64, 128, 4, 4),
        (64, 128, 4, 6),
        (64, 256, 4, 3),
        (32, 256, 4, 4),
        (32, 128, 2, 6),
        (16, 256, 1, 4),
        (16, 256, 2, 5),
        (16, 512, 4, 3),
    )
)

MOE_ROWS = (1, 8, 32, 128, 8192)
SHORT_TILES = (
    TileConfig(block_rows=16, block_out=64, block_in=64, num_warps=4, num_stages=5),
    TileConfig(block_rows=16, block_out=64, block_in=128, num_warps=4, num_stages=4),
    TileConfig(block_rows=16, block_out=128, block_in=64, num_warps=4, num_stages=4),
    TileConfig(block_rows=16, block_out=32, block_in=128, num_warps=4, num_stages=4),
)
TALL_TILES = (
    TileConfig(block_rows=64, block_out=128, block_in=64, num_warps=4, num_stages=4),
    TileConfig(block_rows=128, block_out=128, block_in=64, num_warps=8, num_stages=4),
    TileConfig(block_rows=128, block_out=128, block_in=64, num_warps=4, num_stages=4),
    TileConfig(block_rows=128, block_out=256, block_in=64, num_warps=8, num_stages=3),
)


@dataclass(frozen=True)
class Result:
    shape: str
    num_out: int
    num_in: int
    num_rows: int
    config: Config | None  # None: cuBLAS
    microseconds: float

    @property
    def terabytes_per_second(self) -> float:
        return 2 * self.num_out * self.num_in / self.microseconds / 1e6


def candidates(shape: cases.Shape, num_rows: int, only_chosen: bool) -> list[Config]:
    """Those worth a try: four rows of sixteen sums each would not fit into registers. None where cuBLAS is chosen."""
    if only_chosen:
        chosen = choose_config(num_rows, shape.num_out, shape.num_in)
        return [] if chosen is None else [chosen]
    vector = [config for config in VECTOR_CONFIGS if num_rows < MAX_VECTOR_ROWS or config.block_out < 16]
    return [*(vector if num_rows <= 2 * MAX_VECTOR_ROWS else ()), *(DOT_CONFIGS if num_rows > 1 else ())]


def run(shape: cases.Shape, x: Tensor, weight: Tensor, given: Tensor, config: Config | Ring | WarpgroupRing) -> Tensor:
    from facet.kernels.linear import triton

    kernels: Any = triton
    if isinstance(config, Ring):
        from facet.kernels.linear import ring as kernels
    elif isinstance(config, WarpgroupRing):
        from facet.kernels.linear import warpgroup_ring as kernels
    more = (given,) if shape.operation == "gated_input_linear" else ()
    product: Tensor = getattr(kernels, shape.operation)(x, weight, *more, config)
    return product


def expected_output(shape: cases.Shape, x: Tensor, weight: Tensor, given: Tensor) -> Tensor:
    inputs = (x.float(), weight.float())
    if shape.operation == "gated_input_linear":
        return reference.gated_input_linear(*inputs, given.float())
    return reference.geglu_linear(*inputs) if shape.operation == "geglu_linear" else reference.linear(*inputs)


@dataclass(frozen=True)
class Job:
    shape: cases.Shape
    num_rows: int
    configs: tuple[Config | Ring | WarpgroupRing, ...]


def jobs_for(shapes: Sequence[cases.Shape], only_chosen: bool) -> list[Job]:
    """Each kernel to compile once. Shapes with the same inputs and operation share theirs; four rows stand for more."""
    jobs = []
    seen = set()
    for shape, num_rows in product(shapes, ROWS):
        configs = []
        for config in candidates(shape, num_rows, only_chosen):
            num_sums = 1 if config.is_dot else min(num_rows, MAX_VECTOR_ROWS)
            kernel = (shape.num_in, shape.operation, num_sums, config)
            if kernel not in seen:
                seen.add(kernel)
                configs.append(config)
        if configs:
            jobs.append(Job(shape, num_rows, tuple(configs)))
    return jobs


def compile_for(job: Job) -> None:
    """Into Triton's cache on disk, with a weight of few outputs: how many there are is not compiled in."""
    shape, num_rows = job.shape, job.num_rows
    x = torch.zeros(num_rows, shape.num_in, device="cuda", dtype=torch.bfloat16)
    weight = torch.zeros(256, shape.num_in, device="cuda", dtype=torch.bfloat16)
    given = torch.zeros(num_rows, 256, device="cuda", dtype=torch.bfloat16)
    for config in job.configs:
        try:
            run(shape, x, weight, given, config)
        except Exception as error:
            print(f"{shape.name}, {num_rows} rows, {config}: {error}")


def measure(shape: cases.Shape, only_chosen: bool) -> list[Result]:
    num_bytes = 2 * shape.num_out * shape.num_in
    num_copies = max(1, math.ceil(CACHE_BYTES / num_bytes))
    num_launches = max(num_copies, min(64, math.ceil(4e9 / num_bytes)))  # up to about a millisecond
    _, weight = shape.inputs(1, torch.bfloat16, "cuda")
    copies = [weight, *(weight.clone() for _ in range(num_copies - 1))]
    weights = [copies[index % num_copies] for index in range(num_launches)]
    results = []
    for num_rows in ROWS:
        x = torch.randn(num_rows, shape.num_in, device="cuda", dtype=torch.bfloat16)
        given = torch.randn(num_rows, shape.num_out, device="cuda", dtype=torch.bfloat16)
        expected = expected_output(shape, x, weight, given)
        choices: list[Config | None] = [None, *candidates(shape, num_rows, only_chosen)]
        for config in choices:
            if config is None:
                launches = [partial(functional.linear, x, w) for w in weights]
            else:
                try:
                    got = run(shape, x, weight, given, config)
                except Exception:  # it did not compile, which compile_for has reported
                    continue
                distance = float((got.float() - expected).norm() / expected.norm())
                if not distance < 1e-2:
                    print(f"WRONG: {shape.name}, {num_rows} rows, {config}: relative error {distance}")
                    continue
                launches = [partial(run, shape, x, w, given, config) for w in weights]
            time = microseconds(launches)
            results.append(Result(shape.name, shape.num_out, shape.num_in, num_rows, config, time))
    return results


def show(results: list[Result]) -> None:
    table = Table(
        title=f"{torch.cuda.get_device_name()}, bfloat16: the best of the timed configurations against cuBLAS"
    )
    for column in ("shape", "rows", "cuBLAS us", "us", "TB/s", "of cuBLAS", "out", "in", "warps", "stages", "dot"):
        table.add_column(column, justify="left" if column == "shape" else "right", no_wrap=True)
    for name, num_rows in dict.fromkeys((result.shape, result.num_rows) for result in results):
        of_shape = [result for result in results if (result.shape, result.num_rows) == (name, num_rows)]
        library = next(result for result in of_shape if result.config is None)
        ours = sorted((r for r in of_shape if r.config is not None), key=lambda result: result.microseconds)
        if not ours:
            table.add_row(name, str(num_rows), f"{library.microseconds:.1f}", "cuBLAS")
        for best in ours[:1]:
            config = best.config
            assert config is not None
            table.add_row(
                name,
                str(num_rows),
                f"{library.microseconds:.1f}",
                f"{best.microseconds:.1f}",
                f"{best.terabytes_per_second:.2f}",
                f"{best.microseconds / library.microseconds:.2f}",
                *(str(n) for n in (config.block_out, config.block_in, config.num_warps, config.num_stages)),
                "yes" if config.is_dot else "",
            )
    Console(width=110).print(table)


@dataclass(frozen=True)
class ExpertResult:
    num_rows: int
    tiles: tuple[TileConfig, TileConfig] | None  # None: what run_experts chooses
    microseconds: float
    num_bytes: float  # of the experts in use, once each
    num_operations: float


def measure_experts() -> list[ExpertResult]:
    from facet.kernels.moe import triton as fast

    results = []
    for num_rows in MOE_ROWS:
        case = moe_cases.Case(num_rows=num_rows, hidden=2816, num_experts=128, num_chosen=8, width=704)
        inputs = case.inputs(torch.bfloat16, "cuda")
        # Rows choose anew in every launch, so that few rows, too, find their experts in memory and not in the cache.
        choices = [
            moe_reference.route(torch.randn_like(inputs.router_logits), case.num_chosen, inputs.expert_scale)
            for _ in range(16 if num_rows < 1024 else 3)
        ]
        used = [torch.bincount(chosen.flatten(), minlength=case.num_experts) > 0 for _, chosen in choices]
        num_used = float(torch.stack(used).sum()) / len(choices)
        size = 3 * case.hidden * case.width
        num_bytes, num_operations = 2.0 * size * num_used, 2.0 * size * num_rows * case.num_chosen
        expected = moe_reference.run_experts(inputs.x, *choices[0], inputs.gate_up, inputs.down).float()
        grouped = TALL_TILES if num_rows >= 1024 else SHORT_TILES if num_rows > 1 else ()
        for tiles in (None, *product(grouped, grouped)):
            try:
                got = fast.run_experts(inputs.x, *choices[0], inputs.gate_up, inputs.down, tiles).float()
            except Exception as error:
                print(f"experts, {num_rows} rows, {tiles}: {error}")
                continue
            distance = float((got - expected).norm() / expected.norm())
            if not distance < 1e-2:
                print(f"WRONG: experts, {num_rows} rows, {tiles}: relative error {distance}")
                continue
            launches = [
                partial(fast.run_experts, inputs.x, *choice, inputs.gate_up, inputs.down, tiles) for choice in choices
            ]
            results.append(ExpertResult(num_rows, tiles, microseconds(launches), num_bytes, num_operations))
        logits = inputs.router_logits
        routing = [partial(fast.route, logits, case.num_chosen, inputs.expert_scale)] * 16
        print(f"route, {num_rows} rows: {microseconds(routing):.1f} us")
    return results


def show_experts(results: list[ExpertResult]) -> None:
    """What run_experts chooses, and the three best pairs of tiles."""
    table = Table(title=f"{torch.cuda.get_device_name()}, bfloat16: the experts of one 26B-A4B layer")
    for column in ("rows", "us", "TB/s", "TFLOP/s", "gate and up: rows out in warps stages", "down"):
        table.add_column(column, justify="right", no_wrap=True)
    for num_rows in MOE_ROWS:
        of_rows = [result for result in results if result.num_rows == num_rows]
        chosen = [result for result in of_rows if result.tiles is None]
        best = sorted((r for r in of_rows if r.tiles is not None), key=lambda result: result.microseconds)[:3]
        for result in [*chosen, *best]:
            table.add_row(
                str(num_rows),
                f"{result.microseconds:.1f}",
                f"{result.num_bytes / result.microseconds / 1e6:.2f}",
                f"{result.num_operations / result.microseconds / 1e6:.0f}",
                *(" ".join(str(n) for n in asdict(tile).values()) for tile in result.tiles or ()),
            )
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, help="where all results go, as JSON")
    parser.add_argument("--moe", action="store_true", help="time the experts of 26B-A4B instead")
    parser.add_argument("--chosen", action="store_true", help="time only the configuration that would be used")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile; 0: compile when first timed")
    options = parser.parse_args()
    if options.moe:
        expert_results = measure_experts()
        show_experts(expert_results)
        if options.output:
            options.output.write_text(json.dumps([asdict(result) for result in expert_results]))
        return
    shapes = [shape for shape in (*cases.E4B, *cases.LARGE) if options.only in shape.name]
    if options.workers:
        with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(compile_for, jobs_for(shapes, options.chosen)))
    results = []
    for shape in shapes:
        results += measure(shape, options.chosen)
        torch.cuda.empty_cache()
        if options.output:
            options.output.write_text(json.dumps([asdict(result) for result in results]))
    show(results)


if __name__ == "__main__":
    main()
