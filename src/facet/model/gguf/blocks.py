"""Takes blocks of codes and scales apart into quantized matrices.

A quantized row is a run of blocks: 32 or 256 codes with their scales. The matrix made of them stands for the same
float32 values, bit for bit. Codes of five and six bits take a byte.
"""

import torch
from torch import Tensor

from facet.kernels.quantized import QuantizedMatrix
from facet.model.gguf.types import BlockType


def read_blocks(type: BlockType, rows: Tensor) -> QuantizedMatrix:
    """The matrix whose rows are these bytes, uint8 [outputs, bytes]."""
    assert type.format is not None, "plain numbers are no blocks"
    parts = _TAKE_APART[type.name](rows.view(rows.shape[0], -1, type.block_bytes))
    return QuantizedMatrix(format=type.format, **{name: tensor.flatten(1) for name, tensor in parts.items()})


def _half(octets: Tensor) -> Tensor:
    """Float16 numbers, of two bytes each."""
    return octets.contiguous().view(torch.float16)


def _packed(codes: Tensor) -> Tensor:
    """Codes of four bits, one to a byte, as a matrix keeps them."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _signed(codes: Tensor, zero: int) -> Tensor:
    return (codes - zero).view(torch.int8)  # below zero, bytes wrap around as they should


def _halves(octets: Tensor) -> Tensor:
    """The lower halves of 16 bytes, and then the upper ones."""
    return torch.cat((octets & 15, octets >> 4), dim=-1)


def _fifth_bits(octets: Tensor) -> Tensor:
    """The 32 bits of 4 bytes in their order, each where a fifth bit belongs."""
    return ((octets[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten(-2) << 4


def _q4_0(blocks: Tensor) -> dict[str, Tensor]:
    return {"codes": _packed(_halves(blocks[..., 2:])), "scales": _half(blocks[..., :2])}


def _q4_1(blocks: Tensor) -> dict[str, Tensor]:
    codes = _packed(_halves(blocks[..., 4:]))
    return {"codes": codes, "scales": _half(blocks[..., :2]), "minimums": -_half(blocks[..., 2:4])}


def _q5_0(blocks: Tensor) -> dict[str, Tensor]:
    codes = _halves(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return {"codes": _signed(codes, 16), "scales": _half(blocks[..., :2])}


def _q5_1(blocks: Tensor) -> dict[str, Tensor]:
    codes = _halves(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return {
        "codes": codes.view(torch.int8),
        "scales": _half(blocks[..., :2]),
        "minimums": -_half(blocks[..., 2:4]),
    }


def _q8_0(blocks: Tensor) -> dict[str, Tensor]:
    return {"codes": blocks[..., 2:].contiguous().view(torch.int8), "scales": _half(blocks[..., :2])}


def _k_scales(blocks: Tensor) -> dict[str, Tensor]:
    """The scales and minimums of Q4_K and Q5_K: eight groups of 32, six bits each, interleaved in twelve bytes."""
    first, second, third = (blocks[..., start : start + 4] for start in (4, 8, 12))
    return {
        "scales": torch.cat((first & 63, (third & 15) | (first >> 6 << 4)), dim=-1),
        "minimums": torch.cat((second & 63, (third >> 4) | (second >> 6 << 4)), dim=-1),
        "coarse_scales": _half(blocks[..., 0:2]),
        "coarse_minimums": _half(blocks[..., 2:4]),
    }


def _k_nibbles(octets: Tensor) -> Tensor:
    """128 bytes to 256 codes: of every 32 bytes the lower halves are a group, and the upper ones the next."""
    runs = octets.reshape(*octets.shape[:-1], 4, 32)
    return torch.stack((runs & 15, runs >> 4), dim=-2).flatten(-3)


def _q4_k(blocks: Tensor) -> dict[str, Tensor]:
    return {"codes": _packed(_k_nibbles(blocks[..., 16:])), **_k_scales(blocks)}


def _q5_k(blocks: Tensor) -> dict[str, Tensor]:
    # Bit i of byte l belongs to value l of group i.
    bits = (blocks[..., None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None]) & 1
    codes = _k_nibbles(blocks[..., 48:]) | (bits << 4).flatten(-2)
    return {"codes": codes.view(torch.int8), **_k_scales(blocks)}


def _q6_k(blocks: Tensor) -> dict[str, Tensor]:
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 2, 32)  # two halves of 128 values, each of two runs of bytes
    high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 32)
    quarters = torch.cat((low & 15, low >> 4), dim=-2)  # [..., half, quarter, 32]
    bits = (high[..., None, :] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]) & 3
    return {
        "codes": _signed((quarters | (bits << 4)).flatten(-3), 32),
        "scales": blocks[..., 192:208].contiguous().view(torch.int8),
        "coarse_scales": _half(blocks[..., 208:]),
    }


# By the names of types: blocks [rows, blocks, bytes] -> what a matrix is made of, [rows, blocks, ...].
_TAKE_APART = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
