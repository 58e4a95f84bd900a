"""Runs one Gluon kernel, or all launches of a product, under Triton's race detector.

    TRITON_INSTRUMENTATION_MODE=consan python -m tests.gpu.race_check shared_512

The detector makes kernels that check every access to shared memory against barriers and copies under way. A finding
ends the process, which is why each check has one of its own. Compiling takes a minute, and kernels run far slower.

Triton 3.6's detector takes every copy for an arrival at its barrier, and so sees a deadlock where one barrier awaits
several copies. Kernels that do so are left to the emulator of `tests/kernels`, which finds faults planted in them:
products by rings of warpgroups, FP8 products of many rows, and experts.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import torch
import triton
from torch.nn import functional
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from facet.kernels.linear import ring as linear_ring
from facet.kernels.linear.cases import HALF
from facet.kernels.linear.ring_config import ring_of
from facet.kernels.paged_attention import cases
from facet.kernels.paged_attention.decode.hopper import ring as decode_ring
from facet.kernels.paged_attention.reference import plan_reference
from facet.kernels.quantized import int8_groups
from facet.kernels.quantized.cases import Case
from facet.kernels.quantized.eight_bits import Ring
from facet.kernels.quantized.eight_bits import ring as eight_bit_ring
from facet.kernels.quantized.int4 import few_rows, ring, wide
from facet.kernels.quantized.int8_groups import few_rows as int8_groups_few_rows
from facet.kernels.quantized.int8_groups import ring as int8_groups_ring
from facet.kernels.quantized.int8_groups import wide as int8_groups_wide
from tests.kernels.test_eight_bit_rings import exact
from tests.kernels.test_eight_bit_rings import inputs as eight_bit_inputs
from tests.kernels.test_hopper_decode import SHARED as DECODED_SHARED
from tests.kernels.test_hopper_decode import SMALL as DECODED
from tests.kernels.test_hopper_decode import attend, tunings
from tests.kernels.test_hopper_prefill import SEPARATE_256, SEPARATE_512, SHARED_512, check
from tests.kernels.test_int4 import DEVICE, expected, format_of, run
from tests.kernels.test_int8_groups import Q6_K


@gluon.jit
def racy_kernel(numbers):
    """Copies to shared memory twice, and does not wait in between."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[1, 0])
    tile = gl.allocate_shared_memory(gl.float16, [64, 64], shared)
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, layout))[None, :]
    for _ in range(2):
        async_copy.async_copy_global_to_shared(tile, numbers + rows * 64 + columns)
        async_copy.commit_group()
    async_copy.wait_group(0)


def planted() -> None:
    racy_kernel[(1,)](torch.zeros(64, 64, dtype=torch.float16, device=DEVICE))


def product(room: ModuleType, num_rows: int) -> None:
    case = Case(format=format_of(32), num_out=64, num_in=640)
    x, matrix = case.inputs(num_rows, torch.bfloat16, DEVICE), case.matrix(DEVICE)
    got = run(room, "geglu_linear", x, matrix, x, None)
    torch.testing.assert_close(got, expected("geglu_linear", x, matrix, x), atol=2e-2, rtol=2**-6)


def product_of_groups(room: ModuleType, num_rows: int = 5) -> None:
    case = Case(format=Q6_K, num_out=64, num_in=768)
    x, matrix = case.inputs(num_rows, torch.bfloat16, DEVICE), case.matrix(DEVICE)
    got = room.multiply(x, int8_groups.shuffle(matrix, is_gated=True))
    torch.testing.assert_close(got, expected("geglu_linear", x, matrix, x), atol=2e-2, rtol=2**-6)


def decode(case: cases.Case) -> None:
    inputs = case.inputs(torch.bfloat16, DEVICE)
    got = attend(decode_ring, case, inputs, tunings(case)[2], list(range(len(case.sequences))))
    case.tolerance(torch.bfloat16).check(got, case.attend(inputs, plan_reference))


def dense_product() -> None:
    x, weight = (torch.randn(rows, 2560, device=DEVICE).bfloat16() for rows in (5, 64))
    got = linear_ring.linear(x, weight, ring_of(64, 2560))
    torch.testing.assert_close(got, functional.linear(x, weight), atol=1.0, rtol=2**-6)


def eight_bit_product() -> None:
    """Rows of codes times codes."""
    x, matrix = eight_bit_inputs("fp8 token", 5, 160, 1152)
    HALF.check(eight_bit_ring.linear(x, matrix, Ring(128, 3, shares=2)), exact(x, matrix))


CHECKS: dict[str, Callable[[], None]] = {
    # Tiles enough that every buffer is used again.
    "shared_512": lambda: check(replace(SHARED_512, sequences=((40, 400),))),
    "separate_512": lambda: check(replace(SEPARATE_512, sequences=((40, 400),))),
    "separate_256": lambda: check(replace(SEPARATE_256, sequences=((40, 400),))),
    "window": lambda: check(replace(SEPARATE_256, window=70, sequences=((140, 260),))),
    "decode_separate": lambda: decode(replace(DECODED, window=400, sequences=((1, 900), (1, 333)))),
    "decode_shared": lambda: decode(replace(DECODED_SHARED, sequences=((1, 700), (1, 70)))),
    "int4": lambda: product(few_rows, 5),
    "int4_ring": lambda: product(ring, 5),
    "int4_ring_16": lambda: product(ring, 13),
    "int4_wide": lambda: product(wide, 20),
    "int8_groups": lambda: product_of_groups(int8_groups_few_rows),
    "int8_groups_ring": lambda: product_of_groups(int8_groups_ring),
    "int8_groups_wide": lambda: product_of_groups(int8_groups_wide, 20),
    "ring": dense_product,
    "fp8_ring": eight_bit_product,
    "planted": planted,
}

if __name__ == "__main__":
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=DEVICE))
    CHECKS[sys.argv[1]]()
    torch.cuda.synchronize()
