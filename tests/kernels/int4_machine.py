"""What the PTX in `quantized/int4/language.py` does, for the emulator of Gluon: on words of 32 bits of each thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.kernels.gluon_copies import COPYING, Shared, nothing

Words = Sequence[Tensor]  # each [threads, tiles, row tiles], or one of the latter for all


def offset_of(zero: Tensor) -> Tensor:
    return zero


def unpack_codes(word: Tensor, zero: Tensor) -> Words:
    sides = [[((word >> 4 * pair + 16 * side) & 15).float() - zero for side in range(2)] for pair in range(4)]
    return [torch.stack(pair, dim=-1).to(torch.bfloat16).view(torch.int32).squeeze(-1) for pair in sides]


def unpack_scales(word: Tensor, dtype: torch.dtype) -> Words:
    return word.unsqueeze(-1).contiguous().view(dtype).float().unbind(-1)


def add_products(sums: Words, upper: Words, lower: Words, x: Words, upper_scale: Tensor, lower_scale: Tensor) -> Words:
    """Operands of m16n8k16 as the PTX manual draws them. Thread 4 g + t has columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9:
    of rows g and g + 8 of the left operand, of row g of the right one. Of the product, columns 2 t and 2 t + 1 of rows
    g and g + 8."""
    products: Any = 0
    for first in (0, 2):
        left = torch.cat([_rows(part[first : first + 2]) for part in (upper, lower)], dim=-2)
        products = products + left @ _rows(x[first : first + 2]).transpose(-1, -2)
    # [warps, tiles, row tiles, 16, 8] -> [halves, sides, threads, tiles, row tiles]
    parts = products.unflatten(-2, (2, 8)).unflatten(-1, (4, 2)).permute(3, 6, 0, 4, 5, 1, 2).flatten(2, 4)
    scales = (upper_scale, upper_scale, lower_scale, lower_scale)
    return [total + part * scale for total, part, scale in zip(sums, parts.flatten(0, 1), scales, strict=True)]


def add_products_of_two(
    sums: Words,
    upper: Tensor,
    lower: Tensor,
    zero: Tensor,
    first_x: Words,
    second_x: Words,
    upper_scale: Tensor,
    lower_scale: Tensor,
) -> Words:
    codes = unpack_codes(upper, zero), unpack_codes(lower, zero)
    return [
        *add_products(sums[:4], *codes, first_x, upper_scale, lower_scale),
        *add_products(sums[4:], *codes, second_x, upper_scale, lower_scale),
    ]


def _rows(words: Words) -> Tensor:
    """[warps, tiles, row tiles, 8 rows g, 16 columns] in float32, of two words of every thread."""
    numbers = torch.stack([word.unsqueeze(-1).contiguous().view(torch.bfloat16).float() for word in words], dim=-2)
    warps = numbers.view(-1, 8, 4, *numbers.shape[1:])  # [warps, g, t, tiles, row tiles, 2 words, 2 sides]
    return warps.permute(0, 3, 4, 1, 5, 2, 6).flatten(-3)


def dequantize_codes(word: Tensor, scales: Tensor, zero: Tensor, half: Tensor, dtype: torch.dtype) -> Words:
    """Of the wide kernel: [.., sides] for each of four pairs."""
    scale = torch.where(half == 0, *unpack_scales(scales, dtype))
    sides = [[((word >> 4 * pair + 16 * side) & 15).float() - zero for side in range(2)] for pair in range(4)]
    return [(torch.stack(pair, dim=-1) * scale.unsqueeze(-1)).to(torch.bfloat16) for pair in sides]


@dataclass
class Product:
    """Computed when it is waited for, from what its operands hold then."""

    values: Tensor
    x: Shared
    sums: Tensor

    def finish(self) -> Tensor:
        return self.sums + self.values.float() @ self.x.numbers.float()


def wait_for_products(num_outstanding: int, deps: Sequence[Any]) -> Sequence[Any]:
    assert num_outstanding == 0
    return [dep.finish() if isinstance(dep, Product) else dep for dep in deps]


# In place of the names of that module.
NAMES = {
    **COPYING,
    "offset_of": offset_of,
    "unpack_codes": unpack_codes,
    "unpack_scales": unpack_scales,
    "add_products": add_products,
    "add_products_of_two": add_products_of_two,
    "stay_in_order": nothing,
    "dequantize_codes": dequantize_codes,
    "fence_async_shared": nothing,
    "warpgroup_mma": lambda values, x, sums, is_async: Product(values, x, sums),
    "warpgroup_mma_wait": wait_for_products,
}
