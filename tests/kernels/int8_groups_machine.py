"""What the PTX in kernels of shuffled 8-bit codes does, for the emulator of Gluon: on 32-bit words of each thread."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.kernels.int4_machine import JUNK, SHUFFLED_LANGUAGES, Words, add_products
from tests.kernels.int4_machine import NAMES as INT4_NAMES

# Of both sides of the two pairs of codes in a word.
SHIFTS = torch.tensor([8 * pair + 16 * side for pair in range(2) for side in range(2)], dtype=torch.int32)


def unpack_bytes(first: Tensor, second: Tensor, is_narrow: bool) -> Words:
    octets = torch.stack((first, second), dim=-1).unsqueeze(-1) >> SHIFTS & 255
    numbers = octets - 64 if is_narrow else octets.to(torch.int8)
    return numbers.to(torch.bfloat16).view(torch.int32).flatten(-2).unbind(-1)


def dequantize_bytes(word: Tensor, scale: Tensor, offset: Tensor, is_narrow: bool) -> Tensor:
    """Of the wide kernel: [.., sides, pairs]. A fused operation rounds once, and double has room for what is before."""
    octets = torch.stack([word >> 8 * i & 255 for i in range(4)], dim=-1).unflatten(-1, (2, 2)).double()
    if is_narrow:
        assert (octets < 128).all()
    numbers = octets + 128 if is_narrow else (octets + 128) % 256 + 32768
    values = numbers * scale.double()[..., None, None] + offset.double()[..., None, None]
    return values.float().to(torch.bfloat16)


def add_sixteens(sums: Words, upper: Words, lower: Words, x: Words, scales: Words) -> Words:
    nothing = [torch.zeros_like(word) for word in x[:2]]
    sums = add_products(sums, upper, lower, [*x[:2], *nothing], scales[0], scales[1])
    return add_products(sums, upper, lower, [*nothing, *x[2:]], scales[2], scales[3])


def add_less_minimums(sums: Words, upper: Words, lower: Words, x: Words, scales: Words, totals: Words) -> Words:
    sums = add_products(sums, upper, lower, x, scales[0], scales[1])
    return [sums[i] + totals[i % 2] * scales[2 + i // 2] for i in range(4)]


def load_two_chunks(
    _before: Sequence[Words],
    pointer: Any,
    is_live: Words,
    is_filled: bool,
    in_sixteens: bool,
) -> Sequence[Words]:
    """What was there before may be anything."""
    places = (0, 1, 8, 9) if in_sixteens else (0, 1, 2, 3)

    def word(chunk: int, place: int) -> Tensor:
        live, offsets = torch.broadcast_tensors(is_live[chunk], pointer.offset + 16 * chunk + place)
        numbers = pointer.numbers[torch.where(live, offsets, 0)]
        return torch.where(live, numbers, torch.tensor(0 if is_filled else JUNK, dtype=torch.int32))

    return [[word(chunk, place) for place in places] for chunk in range(2)]


# Modules of such kernels whose names these are in place of.
LANGUAGES = (
    *SHUFFLED_LANGUAGES,
    "facet.kernels.quantized.int8_groups.codes",
    "facet.kernels.quantized.int8_groups.products",
)
NAMES = {
    **INT4_NAMES,
    "unpack_bytes": unpack_bytes,
    "dequantize_bytes": dequantize_bytes,
    "add_sixteens": add_sixteens,
    "add_less_minimums": add_less_minimums,
    "load_two_chunks": load_two_chunks,
}
