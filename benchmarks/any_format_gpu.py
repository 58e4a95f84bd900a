"""Times products with matrices by the kernel that serves all formats, on a GPU, at shapes of 31B and E4B. Those of
Q4_K, Q5_K and Q6_K have kernels of their own (`q4_k_gpu.py`, `int8_groups_gpu.py`), the latter two but for experts.

    python -m benchmarks.any_format_gpu                     # a minute

For each: by the kernel for few rows of any format, by values that are brought to memory first, and by bfloat16 weights.
Both are first held against each other. Times are of launches in a CUDA graph, matrices take turns so that no cache
holds them.
"""

import argparse
import math
from dataclasses import replace
from functools import partial
from itertools import product
from unittest import mock

import torch
from torch.nn import functional

from benchmarks.gpu_timing import microseconds
from benchmarks.linear_gpu import CACHE_BYTES
from benchmarks.quantized_gpu import BANDWIDTH
from facet.kernels.quantized import few_rows, gpu
from facet.kernels.quantized.cases import FORMATS, Case

# What GGUF calls it, or other files.
NAMES = {
    "Q4_K": "uint4 minimums",
    "Q5_K": "int8 minimums",
    "Q6_K": "int8 groups",
    "MXFP4": "fp4 powers",
    "FP8 in blocks": "fp8 blocks",
}
SHAPES = {
    "31B gate_up": (43008, 5376),
    "31B down": (5376, 21504),
    "E4B gate_up": (20480, 2560),
    "E4B down": (2560, 10240),
}


def measure(name: str, shape: str, rows: list[int]) -> None:
    num_out, num_in = SHAPES[shape]
    case = Case(format=FORMATS[NAMES[name]], num_out=num_out, num_in=num_in)
    matrix = case.matrix("cuda")
    num_bytes = sum(tensor.nbytes for tensor in matrix.tensors().values())
    num_copies = math.ceil(CACHE_BYTES / num_bytes)
    copies = [matrix, *(replace(matrix, codes=matrix.codes.clone()) for _ in range(num_copies))]
    weights = [torch.randn(num_out, num_in, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    for num_rows in rows:
        x = case.inputs(num_rows, torch.bfloat16, "cuda")
        multiply = partial(gpu.linear, x, product=functional.linear, in_one_chain=False)
        products = [partial(multiply, matrix=each) for each in copies]
        with mock.patch.object(few_rows, "MAX_ROWS", 0):
            expected, in_memory = products[0](), microseconds(products)
        with mock.patch.object(few_rows, "MIN_OUTPUTS", 1):
            torch.testing.assert_close(products[0](), expected, atol=2e-2, rtol=2e-2)
            by_kernel = microseconds(products)
        plain = microseconds([partial(functional.linear, x, each) for each in weights])
        floor = num_bytes / BANDWIDTH
        figures = f"{by_kernel:.1f}, by way of memory {in_memory:.1f}, bfloat16 {plain:.1f}, bytes {floor:.1f}"
        print(f"{name:14} {shape:12} {num_rows:3} rows: {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64])
    options = parser.parse_args()
    for name, shape in product(NAMES, SHAPES):
        measure(name, shape, options.rows)


if __name__ == "__main__":
    main()
