"""Times products with GGUF's Q4_K on a GPU at the shapes of E4B and 31B, beside INT4 and the kernel for any format.

    python -m benchmarks.q4_k_gpu                    # what the engine would use, under a minute
    python -m benchmarks.q4_k_gpu --rings            # also other rings, and the kernel for few rows
    python -m benchmarks.q4_k_gpu --only gate_up --rows 1 8 16 64
    python -m benchmarks.int4_wide_gpu --formats Q4_K   # tens of rows, and other tunings of those

Every product is first held against the reference, and those with rings, bit for bit, against the kernel for few rows.
Times are of launches inside a CUDA graph that walks over copies of the matrix, more of them than the second-level cache
holds. The kernel for any format computes no activation.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_timing import microseconds
from benchmarks.int4_gpu import BANDWIDTH, SHAPES, Shape, expected_output, run
from benchmarks.linear_gpu import CACHE_BYTES
from facet.kernels.quantized import few_rows as any_format
from facet.kernels.quantized import gpu, int4, reference
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.int4.tuning import Ring, choose_tuning, ring_of

ROWS = (1, 8, 16, 32, 64, 128, 256)
Q4_K, INT4 = FORMATS["uint4 minimums"], FORMATS["int4 groups"]
_SHARED_BYTES = 227 << 10  # of a multiprocessor


def rings_for(shape: Shape) -> list[Ring]:
    """The one that is chosen, then others of the same bits."""
    chosen = ring_of(shape.num_tiles, -(-shape.num_in // 128), has_minimums=True)
    found = [chosen]
    for tiles, num_stages, is_ahead in product((1, 2, 4), (3, 4, 6, 8), (False, True)):
        ring = replace(chosen, tiles=tiles, num_stages=num_stages, is_ahead=is_ahead)
        if ring.num_bytes <= _SHARED_BYTES and tiles * ring.num_out_warps <= shape.num_tiles and ring not in found:
            found.append(ring)
    return found


def compile_for(job: tuple[Shape, Ring]) -> None:
    """Into Triton's cache on disk: few outputs stand for many."""
    shape, ring = job
    matrix = int4.shuffle(
        Case(format=Q4_K, num_out=256, num_in=shape.num_in).matrix("cuda"), is_gated=shape.operation == "geglu_linear"
    )
    x = torch.zeros(1, shape.num_in, device="cuda", dtype=torch.bfloat16)
    run(shape, x, matrix, torch.zeros(1, 256, device="cuda", dtype=torch.bfloat16), ring)


def cloned(matrix: int4.ShuffledInt4) -> int4.ShuffledInt4:
    return matrix.with_tensors({name: tensor.clone() for name, tensor in matrix.tensors().items()})


def measure(shape: Shape, rows: Sequence[int], *, with_rings: bool) -> None:
    is_gated = shape.operation == "geglu_linear"
    plain, plain_int4 = (
        Case(format=format, num_out=shape.num_out, num_in=shape.num_in).matrix("cuda") for format in (Q4_K, INT4)
    )
    num_bytes = Q4_K.num_bytes((shape.num_out, shape.num_in))
    num_copies = math.ceil(CACHE_BYTES / num_bytes)
    num_launches = max(num_copies, min(64, math.ceil(4e9 / num_bytes)))
    first, first_int4 = (int4.shuffle(matrix, is_gated=is_gated) for matrix in (plain, plain_int4))
    copies, copies_int4 = ([matrix, *(cloned(matrix) for _ in range(num_copies - 1))] for matrix in (first, first_int4))
    plain_copies = [plain, *(replace(plain, codes=plain.codes.clone()) for _ in range(num_copies - 1))]

    def time(function: Callable[..., Tensor], matrices: Sequence[object]) -> float:
        return microseconds([partial(function, matrices[i % num_copies]) for i in range(num_launches)])

    for num_rows in rows:
        x = torch.randn(num_rows, shape.num_in, device="cuda", dtype=torch.bfloat16)
        given = torch.randn(num_rows, shape.num_out, device="cuda", dtype=torch.bfloat16)
        expected = expected_output(shape, reference.linear(x.float(), plain).bfloat16(), given).float()

        def checked(how: str, got: Tensor, expected: Tensor = expected) -> None:
            distance = float((got.float() - expected).norm() / expected.norm())
            if not distance < 6e-3:
                print(f"WRONG: {how}: relative error {distance}")

        def by_way_of(tuning: object, matrix: int4.ShuffledInt4, x: Tensor = x, given: Tensor = given) -> Tensor:
            return run(shape, x, matrix, given, tuning)  # type: ignore[arg-type]

        def any_kernel(matrix: object, x: Tensor = x) -> Tensor:
            return gpu.linear(x, matrix, functional.linear, in_one_chain=False)  # type: ignore[arg-type]

        usual = partial(by_way_of, None)
        checked(f"{shape.name}, {num_rows} rows", usual(first))
        figures = {"Q4_K": time(usual, copies), "INT4": time(usual, copies_int4)}
        with mock.patch.object(any_format, "MIN_OUTPUTS", 1):
            figures["any format"] = time(any_kernel, plain_copies)
        said = ", ".join(f"{name} {figure:.1f}" for name, figure in figures.items())
        floor = num_bytes / BANDWIDTH * 1e6
        print(f"{shape.name:24} {num_rows:3} rows: {said}, bytes {floor:.1f} us", flush=True)
        if not with_rings:
            continue
        num_blocks = -(-shape.num_in // 128)
        of_few_rows = choose_tuning(shape.num_tiles, num_blocks, num_rows, has_minimums=True)
        of_kernel = by_way_of(of_few_rows, first)
        checked("the kernel for few rows", of_kernel)
        print(f"    {time(partial(by_way_of, of_few_rows), copies):7.1f} us  {of_few_rows}", flush=True)
        if num_rows > int4.MAX_FEW_ROWS:
            continue
        lines = []
        for ring in rings_for(shape):
            bits = "same bits" if torch.equal(by_way_of(ring, first), of_kernel) else "OTHER BITS"
            figure = time(partial(by_way_of, ring), copies)
            lines.append((figure, f"    {figure:7.1f} us  {bits}  {ring}"))
        for _, line in [lines[0], *sorted(lines[1:])[:5]]:  # the chosen one, then the fastest
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--rings", action="store_true", help="also time other rings, on a Hopper GPU")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile rings; 0: when first timed")
    options = parser.parse_args()
    shapes = [shape for shape in SHAPES if options.only in shape.name]
    if options.rings and options.workers:
        jobs = {}
        for shape in shapes:
            for ring in rings_for(shape):
                has_tail = shape.num_in % (128 * ring.num_in_warps) != 0
                jobs[shape.operation, ring, has_tail] = (shape, ring)
        with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
            list(pool.map(compile_for, jobs.values()))
    print(f"{torch.cuda.get_device_name()}, microseconds of a product")
    for shape in shapes:
        measure(shape, options.rows, with_rings=options.rings)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
