"""What the PTX in kernels of shuffled 4-bit codes does, for the emulator of Gluon: on 32-bit words of each thread."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.kernels.gluon_copies import COPIES, COPYING, Shared, nothing
from tests.kernels.ordered_sums import product

Words = Sequence[Tensor]  # each [threads, tiles, row tiles], or one of the latter for all


def offset_of(zero: Tensor) -> Tensor:
    return zero


# Of both sides of the four pairs of codes in a word.
SHIFTS = torch.tensor([4 * pair + 16 * side for pair in range(4) for side in range(2)], dtype=torch.int32)


def unpack_codes(word: Tensor, zero: Tensor) -> Words:
    codes = (word.unsqueeze(-1) >> SHIFTS & 15).float() - zero.unsqueeze(-1)
    return codes.to(torch.bfloat16).view(torch.int32).unbind(-1)


def unpack_scales(word: Tensor, dtype: torch.dtype) -> Words:
    return word.unsqueeze(-1).contiguous().view(dtype).float().unbind(-1)


def unpack_small_scales(word: Tensor) -> Words:
    """As bits, and in float32, whose exponents are those of bfloat16."""
    return [_twice(_bfloat16(word >> 16 * side) * 2.0**120 * 2.0**119) for side in range(2)]


def values_of_fp4(word: Tensor, scale: Tensor) -> Words:
    def value(pair: int, side: int) -> Tensor:
        code = word >> 4 * pair + 16 * side
        return _bfloat16((code & 7) << 6 | (code & 8) << 12) * _bfloat16(scale)

    pairs = [torch.stack([value(pair, side) for side in range(2)], dim=-1) for pair in range(4)]
    words = [pair.to(torch.bfloat16) for pair in pairs]
    assert all(torch.equal(word.float(), pair) for word, pair in zip(words, pairs, strict=True)), "exact"
    return [word.view(torch.int32).squeeze(-1) for word in words]


def _bfloat16(word: Tensor) -> Tensor:
    """The number in the lower half, in float32."""
    return (word.to(torch.int32) << 16).view(torch.float32)


def _twice(number: Tensor) -> Tensor:
    return torch.stack((number, number), dim=-1).to(torch.bfloat16).view(torch.int32).squeeze(-1)


def add_values(sums: Words, upper: Words, lower: Words, x: Words) -> Words:
    one = torch.ones(())
    return add_products(sums, upper, lower, x, one, one)


def unpack_coarse(word: Tensor) -> Words:
    scale, minimum = word.unsqueeze(-1).contiguous().view(torch.float16).float().unbind(-1)
    return [scale, scale * -(2.0**23), -minimum, minimum * 2.0**23]


def sum_inputs(x: Words) -> Words:
    nothing, one = torch.zeros(()), torch.ones(())
    ones = [torch.full_like(word, 0x3F803F80) for word in x]
    return add_products([nothing] * 4, ones, ones, x, one, one)[:2]


def add_products_less_minimums(
    sums: Words,
    upper: Tensor,
    lower: Tensor,
    word: Tensor,
    x: Words,
    x_sums: Words,
    upper_coarse: Words,
    lower_coarse: Words,
) -> Words:
    octets = word.unsqueeze(-1).contiguous().view(torch.uint8).double().unbind(-1)
    coarse = (*upper_coarse, *lower_coarse)
    scales = []
    for octet, factor, added in zip(octets, coarse[0::2], coarse[1::2], strict=True):
        # A fused operation rounds once, and double has room for all that comes before.
        exact = (octet + 2.0**23) * factor + added
        assert torch.equal(exact, octet * factor)
        assert torch.equal(exact.float().double(), exact), "exact"
        scales.append(exact.float())
    factors = [(minimum.double() - 128 * scale.double()).float() for scale, minimum in (scales[:2], scales[2:])]
    added = zip(sums, (*x_sums, *x_sums), (factors[0], factors[0], factors[1], factors[1]), strict=True)
    less = [total + x_sum * factor for total, x_sum, factor in added]
    codes = [unpack_codes(codes, torch.tensor(-128)) for codes in (upper, lower)]
    return add_products(less, *codes, x, scales[0], scales[2])


def add_products(sums: Words, upper: Words, lower: Words, x: Words, upper_scale: Tensor, lower_scale: Tensor) -> Words:
    """Operands of m16n8k16 as the PTX manual draws them. Thread 4 g + t has columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9:
    of rows g and g + 8 of the left operand, of row g of the right one. Of the product, columns 2 t and 2 t + 1 of rows
    g and g + 8."""
    halves = product(torch.cat([_rows(upper), _rows(lower)], dim=-2), _rows(x).transpose(-1, -2))
    products = halves[0] + halves[1]
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
    """[halves, warps, tiles, row tiles, 8 rows g, 16 columns] in float32, of four words of every thread."""
    numbers = torch.stack(tuple(words), dim=-1).view(torch.bfloat16).float()
    # [warps, g, t, tiles, row tiles, halves, 2 words, 2 sides]
    warps = numbers.view(-1, 8, 4, *numbers.shape[1:-1], 2, 2, 2)
    return warps.permute(5, 0, 3, 4, 1, 6, 2, 7).flatten(-3)


def dequantize_codes(word: Tensor, scales: Tensor, zero: Tensor, half: int, dtype: torch.dtype) -> Tensor:
    """Of the wide kernel: [.., sides, halves of a product's inputs, products]."""
    scale = unpack_scales(scales, dtype)[half]
    return ((_codes(word) - zero[..., None, None, None]) * scale[..., None, None, None]).to(torch.bfloat16)


def dequantize_fp4(word: Tensor, scale: Tensor) -> Tensor:
    words = values_of_fp4(word, unpack_small_scales(scale << 4)[0])
    pairs = torch.stack([pair.unsqueeze(-1).contiguous().view(torch.bfloat16) for pair in words], dim=-1)
    return pairs.unflatten(-1, (2, 2)).transpose(-1, -2)


def dequantize_less_minimums(word: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """A fused operation rounds once, and double has room for what is before."""
    scale, offset = scale.double()[..., None, None, None], offset.double()[..., None, None, None]
    return ((_codes(word) + 128) * scale + offset).float().to(torch.bfloat16)


def _codes(word: Tensor) -> Tensor:
    """[.., sides, pairs of a product, products]"""
    sides = [torch.stack([word >> 4 * pair + 16 * side & 15 for pair in range(4)], dim=-1) for side in range(2)]
    return torch.stack(sides, dim=-2).unflatten(-1, (2, 2)).transpose(-1, -2).float()


def scales_of_bytes(word: Tensor, coarse: Words, middle: int) -> Words:
    return [((word >> 8 * i & 255) - middle).float() * coarse[i] for i in range(4)]


@dataclass(eq=False)
class Product:
    """Computed when it is waited for, from what its operands hold then."""

    values: Tensor
    x: Shared
    sums: "Tensor | Product"
    result: Tensor | None = None

    def finish(self) -> None:
        sums = self.sums.result if isinstance(self.sums, Product) else self.sums
        self.result = sums + product(self.values, self.x.numbers)


PRODUCTS: list[Product] = []  # under way, one after the other


def start_product(values: Tensor, x: Shared, sums: "Tensor | Product", is_async: bool) -> Product:
    assert is_async
    PRODUCTS.append(Product(values, x, sums))
    return PRODUCTS[-1]


def wait_for_products(num_outstanding: int, deps: Sequence[Any]) -> Sequence[Any]:
    while len(PRODUCTS) > num_outstanding:
        PRODUCTS.pop(0).finish()
    return [dep.result if isinstance(dep, Product) and dep.result is not None else dep for dep in deps]


@dataclass
class Memory:
    """Shared memory by addresses in bytes, and what threads did with it since they last met."""

    words: Tensor = field(default_factory=lambda: torch.empty(1 << 16, dtype=torch.int32))
    is_read: Tensor = field(default_factory=lambda: torch.zeros(1 << 16, dtype=torch.bool))  # by another of the warp
    is_read_by_warp: Tensor = field(default_factory=lambda: torch.zeros(1 << 16, dtype=torch.bool))
    is_stored: bool = False

    def begin(self) -> int:
        self.words.fill_(JUNK)
        self.is_read.fill_(False)
        self.is_read_by_warp.fill_(False)
        self.is_stored = False
        return 256  # where it begins

    def copy(self, place: Tensor, codes: Any, scale_place: Tensor, scales: Any, is_there: Tensor) -> None:
        for start, pointer, first, count in (
            (place, codes, 0, 4),
            (place + 512, codes, 128, 4),
            (scale_place + 1024, scales, 0, 1),
        ):
            for word in range(count):
                to, offsets, there = torch.broadcast_tensors(start // 4 + word, pointer.offset + first + word, is_there)
                numbers = torch.where(there, pointer.numbers[torch.where(there, offsets, 0)], 0)
                assert not self.is_read[to].any(), "a copy to where others may still read"
                self.words[to] = JUNK
                COPIES.started.append(partial(self.words.__setitem__, to, numbers))

    def copy_coarse(self, place: Tensor, coarse: Any, is_there: Tensor) -> None:
        to, offsets, there = torch.broadcast_tensors(place // 4 + 288, coarse.offset, is_there)
        numbers = torch.where(there, coarse.numbers[torch.where(there, offsets, 0)], 0)
        assert not self.is_read[to].any(), "a copy to where others may still read"
        self.words[to] = JUNK
        COPIES.started.append(partial(self.words.__setitem__, to, numbers))

    def load_pair(self, place: Tensor) -> Words:
        return self.load(place, 2)

    def load(self, place: Tensor, count: int = 4) -> Words:
        places = [place // 4 + word for word in range(count)]
        for word in places:
            self.is_read[word] = True
            self.is_read_by_warp[word] = True
        return [self.words[word] for word in places]

    def wait_for_warp(self, num_outstanding: int) -> None:
        COPIES.wait(num_outstanding)
        self.is_read.fill_(False)

    def barrier(self) -> None:
        self.is_read_by_warp.fill_(False)
        self.is_stored = False

    def store_sums(self, place: Tensor, sums: Words) -> None:
        for word, numbers in enumerate(sums):
            assert not self.is_read_by_warp[place // 4 + word].any(), "sums where another warp may still read"
            self.words[place // 4 + word] = numbers.view(torch.int32)
        self.is_stored = True

    def load_sums(self, place: Tensor) -> Words:
        assert not self.is_stored, "other warps' sums may not be there yet"
        return [self.words[place // 4 + word].view(torch.float32) for word in range(4)]


JUNK = 0x7FC17FC1  # two bfloat16 numbers that are none
MEMORY = Memory()


def load_four_chunks(_before: Sequence[Words], pointer: Any, is_live: Words, is_filled: bool) -> Sequence[Words]:
    """What was there before may be anything."""

    def word(number: int) -> Tensor:
        live, offsets = torch.broadcast_tensors(is_live[number // 4], pointer.offset + number // 4 * 16 + number % 4)
        numbers = pointer.numbers[torch.where(live, offsets, 0)]
        return torch.where(live, numbers, torch.tensor(0 if is_filled else JUNK, dtype=torch.int32))

    return [[word(4 * chunk + i) for i in range(4)] for chunk in range(4)]


# Modules of such kernels whose names these are in place of.
SHUFFLED_LANGUAGES = tuple(
    f"facet.kernels.quantized.shuffled.{name}" for name in ("inputs", "language", "own_copies", "products", "scales")
)
LANGUAGES = (*SHUFFLED_LANGUAGES, "facet.kernels.quantized.int4.codes", "facet.kernels.quantized.int4.products")
NAMES = {
    **COPYING,
    "offset_of": offset_of,
    "unpack_codes": unpack_codes,
    "unpack_scales": unpack_scales,
    "add_products": add_products,
    "add_values": add_values,
    "unpack_small_scales": unpack_small_scales,
    "values_of_fp4": values_of_fp4,
    "add_products_less_minimums": add_products_less_minimums,
    "sum_inputs": sum_inputs,
    "unpack_coarse": unpack_coarse,
    "add_products_of_two": add_products_of_two,
    "stay_in_order": nothing,
    "shared_memory": MEMORY.begin,
    "copy_own_block": MEMORY.copy,
    "commit_own_copies": COPIES.commit,
    "wait_for_warp": MEMORY.wait_for_warp,
    "copy_own_coarse": MEMORY.copy_coarse,
    "load_own_words": MEMORY.load,
    "load_own_pair": MEMORY.load_pair,
    "load_four_chunks": load_four_chunks,
    "store_sums_at": MEMORY.store_sums,
    "load_sums_at": MEMORY.load_sums,
    "dequantize_codes": dequantize_codes,
    "dequantize_fp4": dequantize_fp4,
    "dequantize_less_minimums": dequantize_less_minimums,
    "scales_of_bytes": scales_of_bytes,
    "fence_async_shared": nothing,
    "warpgroup_mma": start_product,
    "warpgroup_mma_wait": wait_for_products,
}
