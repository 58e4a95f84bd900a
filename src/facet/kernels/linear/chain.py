"""Products on a GPU whose rows are bit for bit the same whatever other rows share the call.

Tensor cores add the products of 16 inputs to a running sum in one step, and the result does not depend on which
instruction does it, on the size of its tile, or on which operand is the weight. So every kernel that takes the inputs
16 at a time from first to last, in a single chain, leaves the same bits. That leaves tiles free: rows are few or many,
and each number of them gets the tiles that are fastest. What it rules out is a sum over inputs in parts, by several
programs or warps, or in plain float32 arithmetic.

cuBLAS sums in such a chain too where it does not split the inputs, and is the fastest for many rows. Whether it does on
this machine is tried once per shape of a weight (`least_library_rows`), at several numbers of rows. For few rows it may
find nothing but tiles of which there are far too few: down of E4B takes 237 µs for 24 rows on an H200, and 20 for 32
of them. So its time is looked at, too, and rows may be filled up with zeros.

Float32 is not multiplied by tensor cores: its tiles have one size.
"""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import invariant as activations
from facet.kernels.linear import triton
from facet.kernels.linear.config import MAX_ROWS, choose_chain, may_prefer_library
from facet.kernels.linear.ring_config import choose_ring
from facet.kernels.linear.rings import Kernels, kernels_of
from facet.kernels.linear.telling_rows import telling_rows
from facet.kernels.per_layer_input.invariant import gate_per_layer_input

# Numbers of rows at which the library is tried, descending. What they take of memory is bounded.
_MANY_ROWS = (8192, 6000, 4096, 3000, 2048, 1500, 1024, 777, 512, 400, 300, 257, 256, 200, 128, 100)
_TRIED_ROWS = (*_MANY_ROWS, 64, 48, 32, 24, 17)
_MOST_TRIED_BYTES = 2**27
# Rows of a product that are compared, at either end.
_COMPARED_ROWS = 64

# A call that takes so many times as long is slow; what is less is made up for by the host, which launches the library
# faster.
_SLOW = 1.3
_NUM_TIMED = 5
# Each takes longer than the host does to launch a kernel, so that no time of the host is measured.
_NUM_ZEROED = 4
# Up to so many rows: 24 of E4B's down take 28 µs by the kernels here.
_MOST_FILLED_UP = 32

_least_rows: dict[tuple[object, ...], int | None] = {}


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return _run(x, weight, lambda kernels, config: kernels.linear(x, weight, config), lambda product: product)


def geglu_linear(x: Tensor, weight: Tensor) -> Tensor:
    return _run(x, weight, lambda kernels, config: kernels.geglu_linear(x, weight, config), activations.geglu)


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor) -> Tensor:
    return _run(
        x,
        weight,
        lambda kernels, config: kernels.gated_input_linear(x, weight, per_layer_input, config),
        lambda product: gate_per_layer_input(product, per_layer_input),
    )


def _run(
    x: Tensor, weight: Tensor, multiply: Callable[[Kernels, Any], Tensor], activate: Callable[[Tensor], Tensor]
) -> Tensor:
    num_rows, (num_out, num_in), element_size = len(x), weight.shape, x.element_size()
    ring = choose_ring(num_rows, num_out, num_in)
    rings = kernels_of(ring, x, weight)
    if rings is not None:
        return multiply(rings, ring)
    if x.is_cuda and element_size == 2 and may_prefer_library(num_rows, num_out, num_in):
        least_rows = least_library_rows(weight)
        if least_rows is not None and num_rows >= least_rows:
            return activate(functional.linear(x, weight))
        if least_rows is not None and least_rows <= _MOST_FILLED_UP:
            filled = functional.pad(x, (0, 0, 0, least_rows - num_rows))
            return activate(functional.linear(filled, weight)[:num_rows])
    return multiply(triton, choose_chain(num_rows, num_out, num_in, element_size))


def least_library_rows(weight: Tensor) -> int | None:
    """The number of rows from which on the library serves. None: none of those that were tried, or not known yet.

    Nothing can be tried while a graph is captured. The kernels here then serve, with the same bits.
    """
    key = (tuple(weight.shape), weight.dtype, weight.device)
    if key not in _least_rows:
        if torch.cuda.is_current_stream_capturing():
            return None
        _least_rows[key] = _try_library(weight)
    return _least_rows[key]


def forget_trials() -> None:
    """Forgets what trials have found, so that it is found again: kernels were not launched, and what they left was not
    theirs."""
    _least_rows.clear()


def _try_library(weight: Tensor) -> int | None:
    num_out, num_in = weight.shape
    most_rows = max(_TRIED_ROWS[-1], _MOST_TRIED_BYTES // ((num_out + num_in) * weight.element_size()))
    tried = [num_rows for num_rows in _TRIED_ROWS if num_rows <= most_rows]
    x = telling_rows(weight, _COMPARED_ROWS).repeat(-(-tried[0] // _COMPARED_ROWS), 1)
    serving = list(takewhile(lambda num_rows: _serves(x[:num_rows], weight), tried))
    return serving[-1] if serving else None


def _serves(x: Tensor, weight: Tensor) -> bool:
    return _is_one_chain(x, weight) and (len(x) > MAX_ROWS or not _is_slow(x, weight))


def _is_one_chain(x: Tensor, weight: Tensor) -> bool:
    """Whether the library's product, its first and last rows at least, is that of a chain."""
    product = functional.linear(x, weight)
    num_out, num_in = weight.shape
    config = choose_chain(_COMPARED_ROWS, num_out, num_in, x.element_size())
    return all(
        torch.equal(product[rows], triton.linear(x[rows], weight, config))
        for rows in (slice(_COMPARED_ROWS), slice(max(0, len(x) - _COMPARED_ROWS), None))
    )


def _is_slow(x: Tensor, weight: Tensor) -> bool:
    """Whether the library takes far longer than the kernels here. No bit depends on it."""
    num_out, num_in = weight.shape
    config = choose_chain(len(x), num_out, num_in, x.element_size())
    ours, theirs = (
        _milliseconds(call, x.device)
        for call in (lambda: triton.linear(x, weight, config), lambda: functional.linear(x, weight))
    )
    return theirs > _SLOW * ours


def _milliseconds(call: Callable[[], Tensor], device: torch.device) -> float:
    """How long a call takes when the weight comes from memory, as it does while a model runs: tiles that are too few
    then take longest."""
    call()  # may compile
    others = torch.empty(_MOST_TRIED_BYTES, dtype=torch.int8, device=device)
    times = []
    for _ in range(_NUM_TIMED):
        for _ in range(_NUM_ZEROED):
            others.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)))
    return min(times)
