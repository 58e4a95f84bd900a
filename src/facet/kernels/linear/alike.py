"""Finds by trial how many rows a library's product may have for each row to be summed in the same order.

A library picks its blocking, and with it the order of a sum, by the shapes it is given: one row is often summed in
another order than two, and two than sixteen. Which of them agree depends on the machine, the library and the shape. So
each weight shape is tried once: some rows are multiplied in blocks of `ANCHOR`, then in blocks of every other size, and
a size is used where all bits are the same. What is multiplied later consists of blocks of such sizes alone, the last
one filled up with zeros. Rows of a block begin at multiples of 64 bytes, so that within it a row meets the same
arithmetic wherever it stands: some libraries begin a sum with what comes before such a place. Zeros lie behind rows,
too: some libraries multiply what is there by zero, which makes NaN of a NaN.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.linear.telling_rows import rows_that_tell, telling_rows

# The size that always serves.
ANCHOR = 16
SIZES = (1, 2, 4, 8, ANCHOR, 32, 64, 128, 256)
_LINE = 64  # bytes that a processor moves at once
# Larger weights are heads, which multiply few rows: a trial of many would take seconds.
_MOST_TRIED = 2**27
# Larger ones are matrices of models, which tell the order of sums by their own numbers.
_MOST_REPLACED = 2**22

_found: dict[tuple[object, ...], tuple[int, ...]] = {}


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] @ weight^T, weight [out, in], in blocks of rows whose sizes agree."""
    num_rows = x.shape[0]
    sizes = _cut(num_rows, sizes_alike(weight))
    if len(sizes) == 1:
        return _product(x, weight, sizes[0])[:num_rows]
    output = x.new_empty(num_rows, weight.shape[0])
    row = 0
    for size in sizes:
        # Copied even where it fits: an order of sums may also follow from how the rows lie in memory.
        output[row : row + size] = _product(x[row : row + size], weight, size)[: num_rows - row]
        row += size
    return output


def sizes_alike(weight: Tensor) -> tuple[int, ...]:
    """The sizes of blocks in which rows have the same bits, ascending."""
    # Also by the number of threads, among which a library divides its work.
    place = weight.data_ptr() % _LINE
    key = (tuple(weight.shape), weight.stride(0), place, weight.dtype, torch.get_num_threads())
    if key not in _found:
        _found[key] = _try_sizes(weight)
    return _found[key]


def _with_random_numbers(weight: Tensor) -> Tensor:
    """A weight of the same shape that lies in memory alike. Zeros, as of adapters that fill their room in part, would
    hide the order of sums."""
    place = weight.data_ptr() % _LINE // weight.element_size()
    size = place + weight.stride(0) * (weight.shape[0] - 1) + weight.shape[1]
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    assert numbers.data_ptr() % _LINE == 0, "tensors begin with a line"
    return numbers[place:].as_strided(weight.shape, weight.stride())


def _try_sizes(weight: Tensor) -> tuple[int, ...]:
    if weight.numel() <= _MOST_REPLACED:
        weight = _with_random_numbers(weight)
    sizes = [size for size in SIZES if size <= ANCHOR or size * weight.numel() <= _MOST_TRIED * ANCHOR]
    least_rows = rows_that_tell(weight, ANCHOR)
    x = telling_rows(weight, max(sizes[-1], least_rows))

    def in_blocks(size: int, num_rows: int) -> Tensor:
        return torch.cat([_product(x[row : row + size], weight, size) for row in range(0, num_rows, size)])[:num_rows]

    expected = in_blocks(ANCHOR, len(x))
    trials = {size: in_blocks(size, max(size, least_rows)) for size in sizes if size != ANCHOR}
    return tuple(size for size in sizes if size == ANCHOR or torch.equal(trials[size], expected[: len(trials[size])]))


def _product(rows: Tensor, weight: Tensor, size: int) -> Tensor:
    """The product of a block of `size` rows; those that are missing are zeros."""
    num_rows, num_inputs = rows.shape
    a_line = _LINE // rows.element_size()
    block = rows.new_empty(size, -(-num_inputs // a_line) * a_line)
    block[:num_rows, :num_inputs] = rows
    block[num_rows:] = 0
    block[:num_rows, num_inputs:] = 0
    return functional.linear(block[:, :num_inputs], weight)


@lru_cache(maxsize=1024)
def _cut(num_rows: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the blocks that rows are cut into: the largest that can be filled, then the smallest that holds the
    rest."""
    whole, rest = divmod(num_rows, sizes[-1])
    return (*(whole * (sizes[-1],)), *((min(size for size in sizes if size >= rest),) if rest else ()))
