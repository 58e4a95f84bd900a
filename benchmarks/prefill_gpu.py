"""Times the attention of prompts on a GPU, in many variants, and compares it with matrix products.

    python -m benchmarks.prefill_gpu [--quick]

Every variant is checked against float32 on a few rows before it is timed. Times are of one replayed graph, so that
launches do not count; *unpack* is timed apart and is not in the other lines, except in *as served*, which is all of
what a layer does. Operations are those of visible pairs of a query and a key. Kernels are compiled beforehand, several
at a time. With --quick only the kernels are timed that are chosen, on a Hopper GPU and on others.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels.paged_attention import HeadShape, KeyRecipe, LayerCache
from facet.kernels.paged_attention.decode.plan import plan_decode
from facet.kernels.paged_attention.gpu import GpuPlan, choose_hopper_kernel, choose_triton_kernel
from facet.kernels.paged_attention.plan import PagedRows
from facet.kernels.paged_attention.prefill.plan import ROWS_PER_TILE, PrefillPlan, Run, plan_runs
from facet.kernels.paged_attention.prefill.runs import PrefillKernel
from facet.kernels.paged_attention.prefill.separate import SeparateKernel
from facet.kernels.paged_attention.prefill.shared import SharedKernel
from facet.kernels.paged_attention.prefill.tuning import PrefillTuning
from facet.kernels.paged_attention.prefill.unpack import make_scratch, unpack
from facet.kernels.rotary import apply_rotary, rotary_table

LARGEST_ERROR = 0.02  # of the norm; two roundings of bfloat16 and those of the keys of shared vectors stay well below


@dataclass(frozen=True)
class Load:
    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    tokens_per_block: int
    num_rows: int
    context_len: int
    is_shared: bool = False

    @property
    def heads(self) -> HeadShape:
        return HeadShape(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)

    @property
    def num_operations(self) -> float:
        positions = range(self.context_len - self.num_rows, self.context_len)
        pairs = sum(min(position + 1, self.window or position + 1) for position in positions)
        return 4.0 * pairs * self.num_heads * self.head_dim


LOADS = (
    Load("E4B sliding, 8192 rows", 8, 2, 256, 512, 16, 8192, 8192),
    Load("31B sliding, 8192 rows", 32, 16, 256, 1024, 16, 8192, 8192),
    Load("Gemma 3 12B global, 8192 rows, 8192 keys", 16, 8, 256, None, 16, 8192, 8192),
    Load("Gemma 3 12B global, 8192 rows, 32768 keys", 16, 8, 256, None, 16, 8192, 32768),
    Load("E4B global, 8192 rows", 8, 2, 512, None, 40, 8192, 8192),
    Load("31B global, 8192 rows, 8192 keys", 32, 4, 512, None, 320, 8192, 8192, True),
    Load("31B global, 8192 rows, 65536 keys", 32, 4, 512, None, 320, 8192, 65536, True),
)

_256 = PrefillTuning(block_m=128, block_n=64, num_warps=8, num_stages=2, use_tma=True)
HEADS_OF_256 = (
    _256,
    replace(_256, use_tma=False),
    # Two programs fit on a multiprocessor: while one takes exponentials, the other multiplies.
    replace(_256, block_m=64, num_warps=4, num_stages=1),
)
_PARTS = PrefillTuning(block_m=128, block_n=64, num_warps=8, num_stages=1, use_tma=True, num_parts=2)
APART_HEADS_OF_512 = (
    _PARTS,
    replace(_PARTS, use_tma=False),
    replace(_PARTS, block_n=32, num_stages=2),
    replace(_PARTS, block_m=64, block_n=32, num_warps=4),
    replace(_PARTS, block_m=64, block_n=32, num_stages=2, num_parts=1),
)
_SHARED = PrefillTuning(block_m=64, block_n=64, num_warps=8, num_stages=2)
SHARED_HEADS_OF_512 = (_SHARED, replace(_SHARED, block_n=32), replace(_SHARED, num_stages=1))


@dataclass(frozen=True)
class Variant:
    name: str
    kernel: PrefillKernel
    rows_per_tile: int = ROWS_PER_TILE


def triton_variant(kernel: SeparateKernel | SharedKernel, note: str = "") -> Variant:
    tuning = kernel.tuning
    extras = [
        "TMA" if tuning.use_tma else "",
        f"{tuning.num_parts} parts" if tuning.num_parts > 1 else "",
        note,
    ]
    core = f"{tuning.block_m}x{tuning.block_n} w{tuning.num_warps} s{tuning.num_stages}"
    return Variant(" ".join([core, *filter(None, extras)]), kernel, tuning.block_m)


def hopper_variants(prepared: "Prepared") -> list[Variant]:
    kernel = choose_hopper_kernel(prepared.queries, prepared.paged_rows(), is_shared=prepared.load.is_shared)
    return [] if kernel is None else [Variant("Hopper", kernel)]


def quick_variants(load: Load) -> list[Variant]:
    return [triton_variant(choose_triton_kernel(load.head_dim, 2, torch.device("cuda"), is_shared=load.is_shared))]


def all_variants(load: Load) -> list[Variant]:
    if load.head_dim == 256:
        return [triton_variant(SeparateKernel(tuning=tuning)) for tuning in HEADS_OF_256]
    # A cache of shared vectors may also be unpacked into keys and values apart.
    note = "unpacked apart" if load.is_shared else ""
    shared = [triton_variant(SharedKernel(tuning=tuning)) for tuning in SHARED_HEADS_OF_512] if load.is_shared else []
    return [*shared, *(triton_variant(SeparateKernel(tuning=tuning), note) for tuning in APART_HEADS_OF_512)]


class Prepared:
    """A load's tensors, and what a few of its rows should come to."""

    def __init__(self, load: Load) -> None:
        self.load = load
        device = torch.device("cuda")
        generator = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

        num_blocks = -(-load.context_len // load.tokens_per_block)
        self.table = (1 + torch.randperm(num_blocks, generator=generator, device=device)).int()[None]
        vectors = [
            normal(num_blocks * load.tokens_per_block, load.num_kv_heads, load.head_dim)
            for _ in range(1 if load.is_shared else 2)
        ]
        pages = []
        for kind in vectors:
            page = torch.full_like(kind[: load.tokens_per_block], float("nan"))
            stored = torch.cat([page, kind]).view(-1, load.tokens_per_block, load.num_kv_heads, load.head_dim)
            shuffled = stored.clone()
            shuffled[self.table[0].long()] = stored[1:]
            pages.append(shuffled)
        self.cache = LayerCache(keys=pages[0], values=None if load.is_shared else pages[1])
        self.recipe = None
        keys = vectors[0][: load.context_len]
        if load.is_shared:
            angles = rotary_table(
                load.context_len, head_dim=512, num_pairs=64, theta=1e6, factor=1.0, dtype=torch.bfloat16, device=device
            )
            self.recipe = KeyRecipe(weight=torch.rand(load.head_dim, device=device) + 0.5, cos_sin=angles)
            keys = apply_rotary((keys * self.recipe.weight).to(keys.dtype), angles)
        self.queries = normal(load.num_rows, load.num_heads, load.head_dim) / 11
        self.rows = AttentionRows(
            positions=torch.arange(load.context_len - load.num_rows, load.context_len, device=device).int(),
            seats=torch.zeros(load.num_rows, dtype=torch.int32, device=device),
            block_tables=(self.table,),
            host_query_lens=(load.num_rows,),
            host_context_lens=(load.context_len,),
            host_prompt_lens=(load.num_rows,),
        )
        wanted = {0, 1, 77, load.num_rows // 2 + 5, load.num_rows - 130, load.num_rows - 1}
        self.checked_rows = sorted(row for row in wanted if 0 <= row < load.num_rows)
        self.expected = self._exact(keys, vectors[-1][: load.context_len])

    def _exact(self, keys: Tensor, values: Tensor) -> Tensor:
        load, group = self.load, self.load.num_heads // self.load.num_kv_heads
        results = []
        for row in self.checked_rows:
            end = load.context_len - load.num_rows + row + 1
            first = max(0, end - load.window) if load.window else 0
            query = self.queries[row].float().view(load.num_kv_heads, group, -1)
            scores = torch.einsum("hgd,khd->hgk", query, keys[first:end].float())
            results.append(torch.einsum("hgk,khd->hgd", scores.softmax(-1), values[first:end].float()).flatten(0, 1))
        return torch.stack(results)

    def error(self, output: Tensor) -> float:
        """Not a number where any row was not written."""
        if output.isnan().any():
            return float("nan")
        found = output[self.checked_rows].float()
        return float((found - self.expected).norm() / self.expected.norm())

    def paged_rows(self) -> PagedRows:
        load = self.load
        return PagedRows.of(
            self.rows, self.table, load.heads, window=load.window, tokens_per_block=load.tokens_per_block
        )

    def plan_row_by_row(self) -> GpuPlan:
        rows = np.arange(self.load.num_rows, dtype=np.int32)
        decode = plan_decode(self.paged_rows(), rows, longest_context=self.load.context_len)
        return GpuPlan(decodes=(decode,), prefills=())

    def plan_as_a_run(self) -> GpuPlan:
        return GpuPlan(decodes=(), prefills=(self._run_plan(ROWS_PER_TILE),))

    def _run_plan(self, rows_per_tile: int) -> PrefillPlan:
        run = Run(first_row=0, num_rows=self.load.num_rows, context_len=self.load.context_len)
        return plan_runs(self.paged_rows(), [run], rows_per_tile=rows_per_tile)

    def unpacked(self, variant: Variant) -> tuple[Callable[[], None], Callable[[Tensor], Any]]:
        """What fills scratch, and what attends over it and returns the compiled kernel."""
        kernel, plan = variant.kernel, self._run_plan(variant.rows_per_tile)
        (run_pass,) = plan.passes
        # All heads at once, whatever the limit says: the kernel is timed here, not the slices.
        heads = range(self.load.num_kv_heads)
        run_pass = replace(run_pass, heads_per_slice=len(heads))
        scratch = make_scratch(self.cache, run_pass, self.queries.dtype, self.recipe, is_shared=kernel.is_shared)

        def fill() -> None:
            unpack(scratch, self.cache, plan.rows, run_pass, heads, self.recipe)

        def attend(output: Tensor) -> Any:
            return kernel.attend(self.queries, output, scratch, plan, run_pass, heads, 1.0, self.recipe)

        return fill, attend


def milliseconds(call: Callable[[], object], budget_ms: float = 60.0) -> float:
    """The median over replays of one captured call, as many as the budget allows but three at least."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget_ms and len(times) < 100):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def compile_for(load: Load, variants: list[Variant]) -> None:
    """Leave kernels in Triton's cache; a small load compiles to the same ones."""
    prepared = Prepared(replace(load, num_rows=256, context_len=256))
    for variant in variants or hopper_variants(prepared):
        try:
            fill, attend = prepared.unpacked(variant)
            fill()
            attend(torch.empty_like(prepared.queries))
        except Exception:
            continue  # said when it is its turn to be timed


def compile_all(variants: dict[Load, list[Variant]]) -> None:
    # Loads that differ in their keys alone share their kernels.
    loads = {replace(load, name="", context_len=0): load for load in variants}.values()
    with ProcessPoolExecutor(12, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(compile_for, load, [variant]) for load in loads for variant in variants[load]]
        futures += [pool.submit(compile_for, load, []) for load in loads]
        for future in futures:
            try:
                future.result(timeout=100)
            except (BrokenProcessPool, TimeoutError):
                break


def time_variant(prepared: Prepared, variant: Variant) -> tuple[float, str, float]:
    fill, attend = prepared.unpacked(variant)
    fill()
    output = torch.full_like(prepared.queries, float("nan"))
    kernel = attend(output)
    error = prepared.error(output)
    note = f"{kernel.n_regs} / {kernel.n_spills} / {kernel.metadata.shared // 1024}K"
    return milliseconds(lambda: attend(output)), note, error


def time_as_served(prepared: Prepared, make_plan: Callable[[], GpuPlan]) -> tuple[float, str, float]:
    plan = make_plan()

    def call() -> Tensor:
        return plan.run(prepared.queries, prepared.cache, scale=1.0, key_recipe=prepared.recipe)

    error = prepared.error(call())
    return milliseconds(call), "", error


def add_crossover(table: Table) -> None:
    """From how many rows on it pays to unpack a context of 8192 tokens."""
    for load in (load for load in LOADS if load.context_len == 8192):
        for num_rows in (4, 8, 16, 32, 64, 128):
            prepared = Prepared(replace(load, num_rows=num_rows))
            cells = []
            for make_plan in (prepared.plan_as_a_run, prepared.plan_row_by_row):
                time_ms, _, error = time_as_served(prepared, make_plan)
                cells.append(f"{time_ms * 1e3:,.0f}" if error < LARGEST_ERROR else f"WRONG {error:.3f}")
            table.add_row(f"{load.name.partition(',')[0]}, {num_rows} rows", *cells)


def product_rate() -> float:
    """Operations per second of a large matrix product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / milliseconds(lambda: a @ b) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="the kernels that are chosen, and no other variants")
    quick = parser.parse_args().quick
    variants = {load: quick_variants(load) if quick else all_variants(load) for load in LOADS}
    began = time.monotonic()
    compile_all(variants)
    compiled = time.monotonic()
    ceiling = product_rate()
    table = Table(title=f"{torch.cuda.get_device_name()}: a matrix product reaches {ceiling / 1e12:.0f} TFLOP/s")
    for column in ("load, variant", "µs", "TFLOP/s", "of ceiling", "registers / spills / shared", "error"):
        table.add_column(column, justify="left" if column == "load, variant" else "right", no_wrap=True)
    for load in LOADS:
        prepared = Prepared(load)
        runs: list[tuple[str, Callable[[], tuple[float, str, float]]]] = [
            (variant.name, partial(time_variant, prepared, variant))
            for variant in (*hopper_variants(prepared), *variants[load])
        ]
        if not quick:
            runs.append(("as served", partial(time_as_served, prepared, prepared.plan_as_a_run)))
        lines: list[tuple[float, tuple[str, ...]]] = []
        for name, run in runs:
            try:
                time_ms, note, error = run()
            except Exception as failure:
                reason = "does not fit" if "OutOfResources" in type(failure).__name__ else repr(failure)[:60]
                lines.append((float("inf"), (f"  {name}", reason, "", "", "", "")))
                continue
            rate = load.num_operations / time_ms * 1e3
            verdict = f"{error:.4f}" if error < LARGEST_ERROR else f"WRONG {error:.3f}"
            row = (f"  {name}", f"{time_ms * 1e3:,.0f}", f"{rate / 1e12:.0f}", f"{rate / ceiling:.0%}", note, verdict)
            lines.append((time_ms, row))
        fill, _ = prepared.unpacked(variants[load][0])
        table.add_row(load.name, f"unpack {milliseconds(fill) * 1e3:,.0f}", "", "", "", "")
        for _, line in sorted(lines, key=lambda timed: timed[0]):
            table.add_row(*line)
        table.add_section()
        del prepared, runs, fill
        torch.cuda.empty_cache()
    if quick:
        Console(width=130).print(table)
        print(f"compiled in {compiled - began:.0f} s, timed in {time.monotonic() - compiled:.0f} s")
        return
    crossover = Table(title="runs at the end of 8192 tokens, µs")
    for column in ("run", "unpacked", "row by row"):
        crossover.add_column(column, justify="left" if column == "run" else "right", no_wrap=True)
    add_crossover(crossover)
    Console(width=130).print(crossover, table)
    print(f"compiled in {compiled - began:.0f} s, timed in {time.monotonic() - compiled:.0f} s")


if __name__ == "__main__":
    main()
