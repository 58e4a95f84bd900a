"""Times what adapters add to the products of E4B on a GPU.

    python -m benchmarks.low_rank_gpu [--rank 16] [--rows 1 8 32 128 512 8192] [--adapters 0 1 4]

Microseconds of a product alone, and of what comes to it where its rows have so many adapters in turn, of four that are
there. Many calls are captured in one graph, over several weights, so that none stays in the cache.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.gpu_timing import microseconds
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.kernels.low_rank import AdapterRows, LowRankMatrices, begin_addition, cases

NUM_ADAPTERS = 4
BYTES_PAST_CACHE = 2**28
GEGLU = "gate, up, GeGLU"
PRODUCTS = {
    "qkv": (2560, (2048, 512, 512)),
    "output": (2048, (2560,)),
    "gate, up": (2560, (10_240, 10_240)),
    GEGLU: (2560, (10_240, 10_240)),
    "down": (10_240, (2560,)),
    "per-layer gate": (2560, (256,)),
    "per-layer projection": (256, (2560,)),
}


def alone(x: Tensor, weight: Tensor) -> Tensor:
    return BATCH_INVARIANT.linear(x, weight)


def opened(x: Tensor, weight: Tensor) -> Tensor:
    return BATCH_INVARIANT.geglu_linear(x, weight)


def with_adapters(x: Tensor, weight: Tensor, rows: AdapterRows, matrices: LowRankMatrices) -> Tensor:
    addition = begin_addition(x, rows, matrices, BATCH_INVARIANT.linear)
    product = alone(x, weight)
    addition.add_to(product)
    return product


def opened_with_adapters(x: Tensor, weight: Tensor, rows: AdapterRows, matrices: LowRankMatrices) -> Tensor:
    addition = begin_addition(x, rows, matrices, BATCH_INVARIANT.linear)
    return addition.geglu_of(alone(x, weight), BATCH_INVARIANT.geglu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128, 512, 8192])
    parser.add_argument("--adapters", type=int, nargs="+", default=[0, 1, 4])
    options = parser.parse_args()
    table = Table("product", "rows", "alone", *(f"+ {count}" for count in options.adapters))
    for name, (num_inputs, parts) in PRODUCTS.items():
        plain, adapted = (opened, opened_with_adapters) if name == GEGLU else (alone, with_adapters)
        case = cases.Case(num_inputs=num_inputs, parts=parts, rank=options.rank, num_adapters=NUM_ADAPTERS)
        num_sets = 4 + BYTES_PAST_CACHE // (2 * num_inputs * sum(parts))
        weights = [torch.randn(sum(parts), num_inputs, device="cuda").bfloat16() for _ in range(min(num_sets, 64))]
        sets = [case.matrices(torch.bfloat16, "cuda", seed) for seed in range(len(weights))]
        for num_rows in options.rows:
            x, _ = case.rows(num_rows, torch.bfloat16, "cuda")
            base = microseconds([partial(plain, x, weight) for weight in weights])
            figures = [f"{base:.1f}"]
            for count in options.adapters:
                numbers = torch.arange(num_rows, dtype=torch.int32, device="cuda") % max(1, count) + int(count > 0)
                rows = AdapterRows(numbers)
                calls: list[Callable[[], object]] = [
                    partial(adapted, x, weight, rows, matrices) for weight, matrices in zip(weights, sets, strict=True)
                ]
                figures.append(f"{microseconds(calls) - base:.1f}")
            table.add_row(name, str(num_rows), *figures)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
