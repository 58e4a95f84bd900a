"""Times what one layer of a decode step does with its keys, on a GPU: `prepare_heads` and attention of decoded rows.

    python -m benchmarks.decode_gpu [--only heads|attention|latency|quantized|fixed] [--full]

Every variant is first compared with the reference. It is then timed as a model runs it: inside a captured graph, layer
after layer, each with its own memory, so that nothing is in the cache that would not be there in a model. Printed per
load: the tuning that is built in, the best variant, and all of them. `--full` tries more tile shapes, and takes longer.
`latency` is the attention of few rows, where latency counts and not bytes. `quantized` is attention over
keys and values of one byte, and its time against that of bfloat16. `fixed` is attention whose shares follow from each
row's own context, against a tuning that may choose them by the number of rows; and through rings.
"""

import argparse
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from multiprocessing import get_context

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from benchmarks.decode_loads import (
    BYTES_IN_ROTATION,
    DEVICE,
    FIXED_LOADS,
    LATENCY_LOADS,
    LOADS,
    LONGEST_PLANNED,
    MOST_LAYERS,
    QUANTIZED_DTYPES,
    QUANTIZED_LOADS,
    Layers,
    Load,
    make_layers,
)
from benchmarks.gpu_timing import microseconds
from facet.kernels.head_inputs import reference as heads_reference
from facet.kernels.head_inputs import triton as heads_triton
from facet.kernels.head_inputs.cases import Case as HeadsCase
from facet.kernels.paged_attention import gpu, reference
from facet.kernels.paged_attention.decode.fixed import choose_fixed_tuning
from facet.kernels.paged_attention.decode.hopper.tuning import RingTuning, choose_ring_tuning, decodes_in_ring
from facet.kernels.paged_attention.decode.in_turn import attend_in_turn, can_take_turns
from facet.kernels.paged_attention.decode.kernel import attend_rows
from facet.kernels.paged_attention.decode.plan import DecodePlan
from facet.kernels.paged_attention.decode.readers import SEPARATE, Reader
from facet.kernels.paged_attention.decode.tuning import MOST_MERGED_BY_LAST, DecodeTuning, choose_decode_tuning
from facet.kv_dtypes import KV_DTYPES

LARGEST_ERROR = 3e-2  # of the norm: bfloat16 probabilities; keys of shared vectors are rounded once more
NUM_REPLAYS = 15

# Keys per tile, warps, stages.
TILES = {
    "separate vectors of 256": ((32, 4, 5), (64, 4, 3), (32, 4, 3), (32, 8, 5), (64, 8, 5), (16, 4, 7)),
    "separate vectors of 512": ((16, 4, 5), (32, 4, 3), (32, 8, 5), (32, 4, 5), (16, 4, 3), (16, 8, 7)),
    "shared vectors of 512": ((32, 4, 5), (32, 4, 3), (64, 8, 5), (16, 4, 7), (32, 8, 5), (64, 8, 3)),
}
TILES_UNLESS_FULL = 3
LATENCY_TILES = {
    "separate vectors of 256": ((32, 4, 1), (32, 4, 3), (32, 2, 3), (64, 8, 3), (16, 2, 3)),
    "separate vectors of 512": ((32, 8, 1), (32, 8, 3), (32, 4, 3)),
    "shared vectors of 512": ((32, 4, 3), (32, 8, 3)),
}
QUANTIZED_TILES = {
    "separate vectors of 256": ((64, 4, 3), (64, 4, 5), (32, 2, 5)),
    "separate vectors of 512": ((64, 4, 3), (64, 4, 5), (32, 2, 3), (32, 2, 5)),
    "shared vectors of 512": ((64, 4, 5), (32, 4, 3), (32, 4, 5)),
}


@dataclass(frozen=True)
class Variant:
    reader: Reader
    tuning: DecodeTuning
    ring: RingTuning | None = None  # of the kernel that reads through one; then the rest is not looked at


def built_in(layers: Layers) -> Variant:
    reader = gpu.choose_reader(layers.queries, layers.cache, layers.recipe)
    return Variant(reader, choose_decode_tuning(reader, layers.queries, layers.cache, layers.plans[0]))


def attend(layers: Layers, output: Tensor, plan: DecodePlan, variant: Variant) -> None:
    if variant.ring is not None:
        from facet.kernels.paged_attention.decode.hopper.ring import attend_in_ring  # imports Gluon

        attend_in_ring(layers.queries, output, layers.cache, plan, 1.0, layers.recipe, variant.ring)
    elif variant.tuning.num_programs is not None and can_take_turns(variant.reader, layers.cache):
        attend_in_turn(layers.queries, output, layers.cache, plan, 1.0, variant.tuning)
    else:
        attend_rows(layers.queries, output, layers.cache, plan, 1.0, layers.recipe, variant.reader, variant.tuning)


def read_ceiling() -> float:
    """Bytes per second of a plain read."""
    data = torch.randint(2**31 - 1, (2**28,), device=DEVICE, dtype=torch.int32)
    return 2**30 / microseconds([data.amax], NUM_REPLAYS) * 1e6


def error_of(got: Tensor, expected: Tensor) -> float:
    """Infinite where a result is not a number."""
    error = float((got.double() - expected.double()).norm() / expected.double().norm())
    return error if error == error else float("inf")


def with_tunings(variant: Variant, tunings: dict[str, DecodeTuning]) -> dict[str, Variant]:
    return {name: replace(variant, tuning=tuning) for name, tuning in tunings.items()}


def latency_variants(load: Load, chosen: Variant) -> dict[str, Variant]:
    tuning = chosen.tuning
    by_last = replace(tuning, last_merges=True, num_splits=min(tuning.num_splits, MOST_MERGED_BY_LAST))
    tunings = {
        "merge apart": replace(tuning, last_merges=False),
        f"merge by last, {by_last.num_splits} of {by_last.least_keys}+": by_last,
        "other exit": replace(tuning, exits_early=not tuning.exits_early),
    }
    for least in (64, 128):
        splits = max(1, min(tuning.num_splits, (load.window or LONGEST_PLANNED) // least))
        tunings[f"{splits} of {least}+"] = replace(tuning, num_splits=splits, least_keys=least)
    for keys, warps, stages in LATENCY_TILES[load.vectors]:
        tile = replace(tuning, keys_per_tile=keys, num_warps=warps, num_stages=stages)
        tunings[f"tile {keys}/{warps}/{stages}"] = tile
    return with_tunings(chosen, tunings)


def tuning_variants(load: Load, chosen: Variant, full: bool) -> dict[str, Variant]:
    tuning, tiles = chosen.tuning, TILES[load.vectors]
    shares = {(tuning.num_splits, tuning.least_keys)}
    num_programs = len(load.context_lens) * load.num_kv_heads
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    shares |= {
        (max(1, per_processor * processors // num_programs), least)
        for per_processor, least in ((1, 256), (2, 64), (2, 256), (3, 128), (4, 128), (8, 256))
    }
    shares.add((1, 128))
    tunings = {}
    for keys, warps, stages in tiles if full else tiles[:TILES_UNLESS_FULL]:
        tile = replace(tuning, keys_per_tile=keys, num_warps=warps, num_stages=stages)
        tunings[f"tile {keys}/{warps}/{stages}"] = tile
        if (keys, warps, stages) == tiles[0]:
            for splits, least in sorted(shares):
                number = max(1, min(splits, (load.window or LONGEST_PLANNED) // least))
                tunings[f"{number} of {least}+"] = replace(
                    tile, num_splits=number, least_keys=least, last_merges=number <= MOST_MERGED_BY_LAST
                )
        elif num_programs * tuning.num_splits > processors:
            # Larger tiles leave room for one program at a time.
            number = max(1, processors // num_programs)
            tunings[f"tile {keys}/{warps}/{stages}, {number} of {tile.least_keys}+"] = replace(tile, num_splits=number)
    tunings["merge apart"] = replace(tuning, last_merges=False)
    variants = with_tunings(chosen, tunings)
    if load.is_shared:
        variants["pairs loaded twice"] = Variant(SEPARATE, replace(tuning, num_stages=3))
    return variants


Variants = Callable[[Load, Variant], dict[str, Variant]]


def no_variants(load: Load, chosen: Variant) -> dict[str, Variant]:
    return {}


def only_fixed(layers: Layers, load: Load, chosen: Variant) -> dict[str, Variant]:
    fixed = choose_fixed_tuning(chosen.reader, layers.queries, layers.cache, layers.plans[0])
    variants = with_tunings(chosen, {"fixed": fixed})
    if decodes_in_ring(layers.queries, layers.cache, layers.plans[0], layers.recipe, is_invariant=True):
        ring = choose_ring_tuning(layers.queries, layers.cache, layers.plans[0], is_invariant=True)
        variants["ring"] = replace(chosen, ring=ring)
    return variants


def fixed_variants(layers: Layers, load: Load, chosen: Variant) -> dict[str, Variant]:
    """Shares taken by several numbers of programs, and fewer or larger shares."""
    variants = only_fixed(layers, load, chosen)
    fixed, tunings = variants["fixed"].tuning, dict[str, DecodeTuning]()
    for programs in (1, 2, 4, 8, 16, 64):
        tunings[f"by {programs}"] = replace(fixed, num_programs=programs)
    for least in () if load.window else (32, 128):
        tunings[f"of {least}"] = replace(fixed, least_keys=least)
    variants |= with_tunings(chosen, tunings)
    ring = variants["ring"].ring if "ring" in variants else None
    if ring is not None:
        for slots, programs in product((2, 3) if load.window else (3,), (1, 2, 4, 8, 16, 64)):
            other = replace(ring, num_programs=programs, num_slots=slots)
            variants[f"ring of {slots}, by {programs}"] = replace(chosen, ring=other)
        for keys in () if load.window else (512, 1024, 2048):
            variants[f"ring, {keys}+ each"] = replace(chosen, ring=replace(ring, least_keys=keys))
    return variants


def quantized_variants(load: Load, chosen: Variant) -> dict[str, Variant]:
    if not load.kv_dtype.is_quantized:
        return {}
    tuning = chosen.tuning
    tunings = {"merge apart": replace(tuning, last_merges=False)}
    num_programs = len(load.context_lens) * load.num_kv_heads
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    for per_processor in (1, 2, 3):
        number = max(1, per_processor * processors // num_programs)
        tunings[f"{number} shares"] = replace(tuning, num_splits=number, last_merges=number <= MOST_MERGED_BY_LAST)
    for keys, warps, stages in QUANTIZED_TILES[load.vectors]:
        tile = replace(tuning, keys_per_tile=keys, num_warps=warps, num_stages=stages)
        tunings[f"tile {keys}/{warps}/{stages}"] = tile
    tile = replace(tuning, keys_per_tile=32, num_warps=4, num_stages=5 if load.is_shared else 3)
    return {"queries as rows": Variant(SEPARATE, tile), **with_tunings(chosen, tunings)}


def compile_variants(load: Load, make_variants: Variants) -> None:
    """Run all of them on little memory, to find them compiled later."""
    layers = make_layers(replace(load, context_lens=(1024,) * len(load.context_lens)), num_layers=1)
    chosen = built_in(layers)
    for variant in (chosen, *make_variants(load, chosen).values()):
        # What does not fit is told of when it is measured.
        with suppress(OutOfResources):
            attend(layers, torch.empty_like(layers.queries), layers.plans[0], variant)
    torch.cuda.synchronize()


def attention_line(load: Load, read: float, make_variants: Variants, layers: Layers | None = None) -> dict[str, float]:
    """Times by variant."""
    layers = layers or make_layers(load)
    plan = reference.plan_reference(
        layers.rows, layers.block_tables[0], load.heads, window=load.window, tokens_per_block=load.tokens_per_block
    )
    expected = plan.run(layers.queries, layers.cache, scale=1.0, key_recipe=layers.recipe)
    output = torch.empty_like(expected)
    chosen = built_in(layers)
    times, worst = {}, 0.0
    for name, variant in {"built in": chosen, **make_variants(load, chosen)}.items():
        calls: list[Callable[[], object]] = [
            lambda plan=plan, variant=variant: attend(layers, output, plan, variant)  # type: ignore[misc]
            for plan in layers.plans
        ]
        output.fill_(float("nan"))
        try:
            calls[0]()
            torch.cuda.synchronize()
        except Exception as error:
            if "out of resource" not in str(error):
                raise
            print(f"    {name}: {error}")
            continue
        difference = error_of(output, expected)
        worst = max(worst, difference)
        if difference > LARGEST_ERROR:
            print(f"    WRONG {load.name}, {name}: relative error {difference:.3g}")
        times[name] = microseconds(calls, NUM_REPLAYS)
    tuning = chosen.tuning
    tile = f"{tuning.keys_per_tile}/{tuning.num_warps}/{tuning.num_stages}"
    merge = "by last" if tuning.last_merges else "apart"
    note = f"{tuning.num_splits} of {tuning.least_keys}+, tile {tile}, merge {merge}, error {worst:.1e}"
    report(load.name, load.bytes_read, times, read, note)
    return times


def report(name: str, num_bytes: int, times: dict[str, float], read: float, note: str) -> None:
    def figures(time: float) -> str:
        return f"{time:7.1f} us {num_bytes / time / 1e6:5.2f} TB/s {num_bytes / time * 1e6 / read:4.0%}"

    best = min(times, key=lambda key: times[key])
    print(f"{name:31} {figures(times['built in'])} | best {figures(times[best])} {best} ({note})")
    print("    " + "; ".join(f"{key} {time:.1f}" for key, time in times.items()), flush=True)


def quantized_lines(loads: Iterable[Load], read: float, make_variants: Variants) -> None:
    of_dtypes = [
        replace(load, name=f"{load.name} {name}", kv_dtype=KV_DTYPES[name])
        for load in loads
        for name in QUANTIZED_DTYPES
    ]
    # Compiling takes longer than measuring, and there are processors for all of it at once.
    with ProcessPoolExecutor(len(of_dtypes), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_variants, of_dtypes, [make_variants] * len(of_dtypes)))
    plain = 0.0
    for load in of_dtypes:
        times = attention_line(load, read, make_variants)
        if not load.kv_dtype.is_quantized:
            plain = times["built in"]
        print(
            f"    against bfloat16: built in {plain / times['built in']:.2f}x, best {plain / min(times.values()):.2f}x"
        )
        torch.cuda.empty_cache()


HEADS = {
    "E4B sliding": dict(num_heads=8, num_kv_heads=2, head_dim=256, num_pairs=128, num_projected=3, num_stored=2),
    "E4B global": dict(num_heads=8, num_kv_heads=2, head_dim=512, num_pairs=64, num_projected=3, num_stored=2),
    "31B sliding": dict(num_heads=32, num_kv_heads=16, head_dim=256, num_pairs=128, num_projected=3, num_stored=2),
    "31B global": dict(num_heads=32, num_kv_heads=4, head_dim=512, num_pairs=64, num_projected=2, num_stored=1),
}


def heads_line(kind: str, num_rows: int, read: float) -> None:
    case = HeadsCase(name=kind, num_rows=num_rows, tokens_per_block=32, **HEADS[kind])  # type: ignore[arg-type]
    inputs = case.inputs(torch.bfloat16, DEVICE)
    expected = heads_reference.prepare_heads(inputs.projected, case.heads, **inputs.arguments)
    expected_pages = inputs.pages.clone()
    num_read = inputs.projected.numel() + inputs.arguments["cos_sin"].numel()
    num_bytes = 2 * (num_read + inputs.projected.numel())
    num_layers = max(1, min(MOST_LAYERS, BYTES_IN_ROTATION // num_bytes))
    copies = [inputs.projected.clone() for _ in range(num_layers)]
    times, num_different = {}, 0
    variants: dict[str, dict[str, int]] = {"built in": {}}
    for vectors, warps in ((1, 1), (4, 2), (8, 4), (16, 4), (16, 8)):
        if num_rows * case.num_heads >= vectors:
            variants[f"{vectors} by {warps}"] = dict(vectors_per_program=vectors, num_warps=warps)
    for name, options in variants.items():
        inputs.pages.fill_(float("nan"))

        def call(projected: Tensor, options: dict[str, int] = options) -> Tensor:
            return heads_triton.prepare_heads(projected, case.heads, **inputs.arguments, **options)

        got = call(copies[0])
        error = max(error_of(got, expected), error_of(inputs.pages.nan_to_num(), expected_pages.nan_to_num()))
        if error > LARGEST_ERROR or not torch.equal(inputs.pages.isnan(), expected_pages.isnan()):
            print(f"    WRONG {kind}, {num_rows} rows, {name}: relative error {error:.3g}")
        num_different = int((got != expected).sum())
        calls = [lambda projected=copy: call(projected) for copy in copies]
        times[name] = microseconds(calls, NUM_REPLAYS)
    report(f"{kind}, {num_rows} rows", num_bytes, times, read, f"{num_different} of {expected.numel()} queries differ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("heads", "attention", "latency", "quantized", "fixed"))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--loads", default="", help="of fixed: those whose names contain this")
    arguments = parser.parse_args()
    read = read_ceiling()
    print(f"{torch.cuda.get_device_name()}: read {read / 1e12:.2f} TB/s")
    if arguments.only in (None, "heads"):
        print("prepare_heads; variants: vectors per program by warps")
        for kind in HEADS:
            for num_rows in (1, 32, 128, 8192):
                heads_line(kind, num_rows, read)
    if arguments.only in (None, "attention"):
        print("attention of decoded rows; variants: tile keys/warps/stages, shares of at least so many keys")
        for load in LOADS:
            attention_line(load, read, lambda load, chosen: tuning_variants(load, chosen, arguments.full))
    if arguments.only == "latency":
        print("attention of few rows; variants: merge, exit, shares, tile keys/warps/stages")
        for load in LATENCY_LOADS:
            attention_line(load, read, latency_variants)
    if arguments.only == "fixed":
        print("attention of decoded rows in fixed shares; variants: programs of a row, shares of so many keys")
        for load in (load for load in FIXED_LOADS if arguments.loads in load.name):
            layers = make_layers(load)
            make_variants = partial(fixed_variants, layers) if arguments.full else partial(only_fixed, layers)
            attention_line(load, read, make_variants, layers)
            torch.cuda.empty_cache()
    if arguments.only == "quantized":
        print("attention of decoded rows over quantized keys and values; variants: tile keys/warps/stages")
        quantized_lines(QUANTIZED_LOADS, read, quantized_variants if arguments.full else no_variants)


if __name__ == "__main__":
    main()
