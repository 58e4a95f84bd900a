"""Products on a GPU whose rows are bit for bit the same whatever other rows share the call.

Tensor cores add the products of 16 inputs to a running sum in one step, and the result does not depend on which
instruction does it, on the size of its tile, or on which operand is the weight. So every kernel that takes the inputs
16 at a time from first to last, in a single chain, leaves the same bits. That leaves tiles free: rows are few or many,
and each number of them gets the tiles that are fastest. What it rules out is a sum over inputs in parts, by several
programs or warps, or in plain float32 arithmetic.

cuBLAS sums in such a chain too where it does not split the inputs, and is the fastest for many rows. Whether it does on
this machine is tried once per shape of a weight (`least_library_rows`), at several numbers of rows. For few rows it has
no good tiles then: down of E4B takes 240 µs for 8 rows on an H200, and 15 here.

Float32 is not multiplied by tensor cores: its tiles have one size.
"""

from collections.abc import Callable
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import invariant as activations
from facet.kernels.linear import triton
from facet.kernels.linear.config import NUM_DOT_ROWS, Config, choose_chain
from facet.kernels.per_layer_input.invariant import gate_per_layer_input

# Numbers of rows at which the library is tried, descending. What they take of memory is bounded.
_TRIED_ROWS = (
    8192,
    6000,
    4096,
    3000,
    2048,
    1500,
    1024,
    777,
    512,
    400,
    300,
    257,
    256,
    200,
    128,
    100,
    64,
    48,
    32,
    24,
    17,
)
_MOST_TRIED_BYTES = 2**27
# Rows of a product that are compared, at either end.
_COMPARED_ROWS = 64

_least_rows: dict[tuple[object, ...], int | None] = {}


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return _run(x, weight, triton.linear, lambda product: product)


def geglu_linear(x: Tensor, weight: Tensor) -> Tensor:
    return _run(x, weight, triton.geglu_linear, activations.geglu)


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor) -> Tensor:
    return _run(
        x,
        weight,
        lambda x, weight, config: triton.gated_input_linear(x, weight, per_layer_input, config),
        lambda product: gate_per_layer_input(product, per_layer_input),
    )


def _run(
    x: Tensor,
    weight: Tensor,
    kernel: Callable[[Tensor, Tensor, Config], Tensor],
    activate: Callable[[Tensor], Tensor],
) -> Tensor:
    num_rows, (num_out, num_in), element_size = len(x), weight.shape, x.element_size()
    if x.is_cuda and element_size == 2 and num_rows > NUM_DOT_ROWS:
        least_rows = least_library_rows(weight)
        if least_rows is not None and num_rows >= least_rows:
            return activate(functional.linear(x, weight))
    return kernel(x, weight, choose_chain(num_rows, num_out, num_in, element_size))


def least_library_rows(weight: Tensor) -> int | None:
    """From how many rows on the library sums in one chain. None: at no number that was tried, or not known yet.

    Nothing can be tried while a graph is captured. The kernels here then serve, with the same bits.
    """
    key = (tuple(weight.shape), weight.dtype, weight.device)
    if key not in _least_rows:
        if torch.cuda.is_current_stream_capturing():
            return None
        _least_rows[key] = _try_library(weight)
    return _least_rows[key]


def _try_library(weight: Tensor) -> int | None:
    num_out, num_in = weight.shape
    most_rows = max(_TRIED_ROWS[-1], _MOST_TRIED_BYTES // ((num_out + num_in) * weight.element_size()))
    tried = [num_rows for num_rows in _TRIED_ROWS if num_rows <= most_rows]
    generator = torch.Generator(weight.device).manual_seed(0)
    x = torch.randn(tried[0], num_in, generator=generator, device=weight.device, dtype=weight.dtype)
    agreeing = list(takewhile(lambda num_rows: _is_one_chain(x[:num_rows], weight), tried))
    return agreeing[-1] if agreeing else None


def _is_one_chain(x: Tensor, weight: Tensor) -> bool:
    """Whether the library's product, its first and last rows at least, is that of a chain."""
    product = functional.linear(x, weight)
    num_out, num_in = weight.shape
    config = choose_chain(_COMPARED_ROWS, num_out, num_in, x.element_size())
    return all(
        torch.equal(product[rows], triton.linear(x[rows], weight, config))
        for rows in (slice(_COMPARED_ROWS), slice(max(0, len(x) - _COMPARED_ROWS), None))
    )
