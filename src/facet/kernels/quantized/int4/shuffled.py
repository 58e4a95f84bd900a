"""Matrices of 4-bit codes in the order in which the threads of a GPU load them.

A *tile* is 16 outputs, a *block* 128 inputs of a tile. Thread 4 g + t of a warp multiplies outputs g and g + 8 of a
tile by inputs 32 j + 8 t .. 32 j + 8 t + 7 of a block, j = 0 .. 3:

- Eight codes are a word, in which neighbours lie 16 bits apart: pair i has bits from 4 i and from 16 + 4 i on.
- A block is 1024 bytes: the four words of outputs g of all threads, then those of outputs g + 8.
- Of scales, those of outputs g and g + 8 for one group of inputs are neighbours, and the groups of a block too. Zeros
  lie in the same order.
- Codes e2m1 have a scale of eight bits for every 16 inputs: those of threads 0 and 1 lie before those of 2 and 3, of
  outputs g before g + 8, and then in the order of j.
- Where there are minimums (GGUF's Q4_K), a scale and a minimum of eight bits each take the place of a scale of 16.
  Coarse scales and minimums lie in words of both, those of outputs g and g + 8 next to each other, for two blocks.

Inputs are filled up to whole blocks with scales of zero. The rows of a gated matrix are gate, then up: its tiles have
eight of either, so that a thread holds both of a column. The matrices of experts lie one after another.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.quantized.matrix import QuantizedMatrix, stack
from facet.kernels.quantized.shuffled_product import TILE_OUT
from facet.matrix_format import MatrixFormat, ScaleFormat

BLOCK_IN = 128
_GROUPS = (None, 32, 64, 128)
_SMALL_SCALES = ScaleFormat(dtype="float8_e4m3fn", group=16)
_FINE, _COARSE = ScaleFormat(dtype="uint8", group=32), ScaleFormat(dtype="float16", group=256)
# Products of codes e2m1 and their scales are this many times too small in the kernels (`codes.py`).
_SHRINKING = 128.0
_TENSORS = ("codes", "scales", "zeros", "factors", "coarse")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledInt4:
    """A matrix in this order, or those of experts. A scale that a whole row has is there once for every block."""

    format: MatrixFormat
    codes: Tensor  # int32 [..., tiles, blocks, 256]
    scales: Tensor  # [..., tiles, blocks, 8, groups of a block, 2]; of eight bits [..., tiles, blocks, 8, 4, 4]
    zeros: Tensor | None  # uint8, as the scales
    factors: Tensor | None = None  # float32 [..., tiles, 16]: what a whole row shares, as kernels multiply by it
    coarse: Tensor | None = None  # float16 [..., tiles, pairs of blocks, 8, 2, 2]: scale and minimum of each output
    num_inputs: int
    is_gated: bool

    @property
    def num_tiles(self) -> int:
        """The tiles of one matrix."""
        return self.codes.shape[-3]

    @property
    def num_blocks(self) -> int:
        return self.codes.shape[-2]

    @property
    def num_rows(self) -> int:
        """The rows of one matrix."""
        return self.num_tiles * TILE_OUT

    @property
    def has_minimums(self) -> bool:
        return self.coarse is not None

    @property
    def scale_type(self) -> str:
        """The type of scales as Gluon names it. float8e4nv: codes are e2m1; uint8: minimums lie beside the scales."""
        return "float8e4nv" if self.format.codes == "fp4" else self.format.scales.dtype

    def words(self) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, scales and zeros in the words that kernels load. Where there are no zeros, what is coarse stands there
        or codes do."""
        if self.coarse is not None:
            others = self.coarse.view(torch.int32)
        else:
            others = self.codes if self.zeros is None else self.zeros.view(torch.int16)
        return self.codes, self.scales.view(torch.int32), others

    def rows(self, rows: slice) -> "ShuffledInt4":
        """Some of the outputs, in whole tiles: a view. Of a gated matrix, both gates and ups of some columns."""
        start, stop, step = rows.indices(self.num_rows)
        assert (step, start % TILE_OUT, stop % TILE_OUT) == (1, 0, 0), "outputs are taken in tiles of 16"
        return self.experts(slice(start // TILE_OUT, stop // TILE_OUT))

    def experts(self, experts: slice | int) -> "ShuffledInt4":
        """The matrices of some, or of one: a view."""
        return self.with_tensors({name: tensor[experts] for name, tensor in self.tensors().items()})

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "ShuffledInt4":
        chosen: dict[str, Any] = {name: tensors.get(name) for name in _TENSORS}
        return replace(self, **chosen)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that there are, by their names in the matrix."""
        named = {name: getattr(self, name) for name in _TENSORS}
        return {name: tensor for name, tensor in named.items() if tensor is not None}


def can_shuffle(format: MatrixFormat, num_rows: int) -> bool:
    """Whether the kernels here multiply by such a matrix."""
    is_plain = not (format.is_reordered or format.rounds_outputs) and format.rounding is None
    if format.has_minimums:
        is_known = format.codes == "uint4" and not format.has_zeros
        is_known &= format.scales == _FINE and format.coarse_scales == _COARSE
    elif format.codes == "fp4":
        coarse = format.coarse_scales
        is_known = format.scales == _SMALL_SCALES and coarse is not None and coarse.group is None
    else:
        is_known = format.codes == ("uint4" if format.has_zeros else "int4") and format.coarse_scales is None
        is_known &= format.scales.dtype in ("bfloat16", "float16") and format.scales.group in _GROUPS
    return is_known and is_plain and num_rows % TILE_OUT == 0


def shuffled_bytes(format: MatrixFormat, shape: Sequence[int]) -> int:
    """The bytes of the tensors that `shuffle` makes of a matrix [..., outputs, inputs]."""
    *stack, num_rows, num_inputs = shape
    num_blocks = -(-num_inputs // BLOCK_IN)
    num_scales = num_blocks * (
        BLOCK_IN // (format.scales.group or BLOCK_IN)
    )  # that a whole row has: one for each block
    num_levels = 2 if format.has_minimums else 1
    per_row = num_blocks * BLOCK_IN // 2 + num_scales * (format.scales.itemsize * num_levels + format.has_zeros)
    if format.codes == "fp4":
        per_row += torch.float32.itemsize  # factors
    elif format.coarse_scales is not None:
        per_row += format.coarse_scales.count(num_inputs) * format.coarse_scales.itemsize * num_levels
    return math.prod(stack) * num_rows * per_row


def bytes_of_block(*, has_minimums: bool) -> int:
    """Codes, scales and what is coarse, as rings hold them."""
    return 1024 + 128 + (64 if has_minimums else 0)


def shuffle(matrix: QuantizedMatrix, *, is_gated: bool = False) -> ShuffledInt4:
    """The same codes and scales in this order, in tensors of their own."""
    if matrix.codes.dim() > 2:
        return _joined([shuffle(matrix.expert(index), is_gated=is_gated) for index in range(matrix.codes.shape[0])])
    assert can_shuffle(matrix.format, matrix.num_rows), f"no kernel here multiplies by {matrix.format.line}"
    num_blocks = -(-matrix.num_inputs // BLOCK_IN)
    octets = functional.pad(matrix.codes, (0, num_blocks * BLOCK_IN // 2 - matrix.codes.shape[1]))
    words = _spread(octets.contiguous().view(torch.int32)).view(-1, num_blocks, 4, 4)  # [.., j, t]
    codes = _in_tiles(words, is_gated=is_gated).permute(0, 3, 1, 2, 5, 4)  # [tiles, blocks, halves, g, t, j]
    plain = ShuffledInt4(
        format=matrix.format,
        codes=codes.flatten(2).contiguous(),
        scales=matrix.scales,
        zeros=None,
        num_inputs=matrix.num_inputs,
        is_gated=is_gated,
    )
    if matrix.minimums is not None:
        scales, coarse = _scales_and_minimums(matrix, is_gated=is_gated)
        return replace(plain, scales=scales, coarse=coarse)
    if matrix.coarse_scales is not None:
        scales = _small_by_tiles(matrix.scales, matrix, is_gated=is_gated)
        return replace(plain, scales=scales, factors=_factors(matrix.coarse_scales, is_gated=is_gated))
    zeros = None if matrix.zeros is None else _by_tiles(matrix.zeros, matrix, is_gated=is_gated)
    return replace(plain, scales=_by_tiles(matrix.scales, matrix, is_gated=is_gated), zeros=zeros)


def _by_tiles(numbers: Tensor, matrix: QuantizedMatrix, *, is_gated: bool) -> Tensor:
    """[rows, groups] as [tiles, blocks, 8, groups of a block, 2]."""
    num_blocks, group = -(-matrix.num_inputs // BLOCK_IN), matrix.format.scales.group
    if group is None:
        numbers = numbers.expand(-1, num_blocks)
    else:
        numbers = functional.pad(numbers, (0, num_blocks * BLOCK_IN // group - numbers.shape[1]))
    numbers = numbers.reshape(matrix.num_rows, num_blocks, -1)
    return _in_tiles(numbers, is_gated=is_gated).permute(0, 3, 2, 4, 1).contiguous()


def _small_by_tiles(numbers: Tensor, matrix: QuantizedMatrix, *, is_gated: bool) -> Tensor:
    """[rows, groups of 16] as [tiles, blocks, 8, sides and halves, chunks]."""
    num_blocks = -(-matrix.num_inputs // BLOCK_IN)
    octets = functional.pad(numbers.view(torch.uint8), (0, num_blocks * 8 - numbers.shape[1]))
    tiles = _in_tiles(octets.view(-1, num_blocks, 4, 2), is_gated=is_gated)  # [tiles, halves, g, blocks, j, sides]
    return tiles.permute(0, 3, 2, 5, 1, 4).flatten(3, 4).contiguous().view(numbers.dtype)


def _scales_and_minimums(matrix: QuantizedMatrix, *, is_gated: bool) -> tuple[Tensor, Tensor]:
    """Those of groups as [tiles, blocks, 8, groups of a block, halves and both], the coarse ones as [tiles, pairs of
    blocks, 8, halves, both]."""
    num_blocks = -(-matrix.num_inputs // BLOCK_IN)
    assert matrix.minimums is not None
    assert matrix.coarse_scales is not None
    assert matrix.coarse_minimums is not None
    both = torch.stack((matrix.scales, matrix.minimums), dim=-1)
    both = functional.pad(both, (0, 0, 0, num_blocks * 4 - both.shape[1])).view(-1, num_blocks, 4, 2)
    scales = _in_tiles(both, is_gated=is_gated).permute(0, 3, 2, 4, 1, 5).flatten(4)
    coarse = _in_tiles(torch.stack((matrix.coarse_scales, matrix.coarse_minimums), dim=-1), is_gated=is_gated)
    return scales.contiguous(), coarse.permute(0, 3, 2, 1, 4).contiguous()


def _factors(coarse: Tensor, *, is_gated: bool) -> Tensor:
    """[rows, 1] as [tiles, 16], for values that are too small."""
    return _in_tiles(coarse.float() * _SHRINKING, is_gated=is_gated).flatten(1).contiguous()


def _joined(experts: Sequence[ShuffledInt4]) -> ShuffledInt4:
    named = [expert.tensors() for expert in experts]
    return experts[0].with_tensors({name: torch.stack([each[name] for each in named]) for name in named[0]})


def unshuffle(shuffled: ShuffledInt4) -> QuantizedMatrix:
    """The matrix as it was."""
    if shuffled.codes.dim() > 3:
        return stack([unshuffle(shuffled.experts(index)) for index in range(shuffled.codes.shape[0])])
    tiles, blocks = shuffled.num_tiles, shuffled.num_blocks
    words = shuffled.codes.view(tiles, blocks, 2, 8, 4, 4).permute(0, 2, 3, 1, 5, 4)
    octets = _gathered(_in_rows(words, is_gated=shuffled.is_gated)).flatten(1).contiguous().view(torch.uint8)

    def by_rows(numbers: Tensor) -> Tensor:
        rows = _in_rows(numbers.permute(0, 4, 2, 1, 3), is_gated=shuffled.is_gated).flatten(1)
        return rows[:, : shuffled.format.scales.count(shuffled.num_inputs)].contiguous()

    plain = QuantizedMatrix(
        format=shuffled.format, codes=octets[:, : shuffled.num_inputs // 2].contiguous(), scales=shuffled.scales
    )
    if shuffled.coarse is not None:
        return replace(plain, **_plain_scales_and_minimums(shuffled, shuffled.coarse))
    if shuffled.factors is not None:
        numbers = shuffled.scales.view(torch.uint8).view(tiles, blocks, 8, 2, 2, 4).permute(0, 4, 2, 1, 5, 3)
        octets_of_scales = _in_rows(numbers, is_gated=shuffled.is_gated).flatten(1)
        scales = octets_of_scales[:, : shuffled.num_inputs // 16].contiguous().view(shuffled.scales.dtype)
        factors = _in_rows(shuffled.factors.view(tiles, 2, 8, 1), is_gated=shuffled.is_gated)
        return replace(plain, scales=scales, coarse_scales=(factors / _SHRINKING).contiguous())
    zeros = None if shuffled.zeros is None else by_rows(shuffled.zeros)
    return replace(plain, scales=by_rows(shuffled.scales), zeros=zeros)


def _plain_scales_and_minimums(shuffled: ShuffledInt4, coarse: Tensor) -> dict[str, Any]:
    """What `_scales_and_minimums` took, by name."""
    both = shuffled.scales.unflatten(4, (2, 2)).permute(0, 4, 2, 1, 3, 5)
    both = _in_rows(both, is_gated=shuffled.is_gated).flatten(1, 2)[:, : _FINE.count(shuffled.num_inputs)]
    scales, minimums = (each.contiguous() for each in both.unbind(-1))
    rough = _in_rows(coarse.permute(0, 3, 2, 1, 4), is_gated=shuffled.is_gated)
    coarse_scales, coarse_minimums = (each.contiguous() for each in rough.unbind(-1))
    return dict(scales=scales, minimums=minimums, coarse_scales=coarse_scales, coarse_minimums=coarse_minimums)


def _in_tiles(rows: Tensor, *, is_gated: bool) -> Tensor:
    """[rows, ...] as [tiles, halves, 8, ...]."""
    if is_gated:
        return rows.view(2, -1, 8, *rows.shape[1:]).transpose(0, 1)
    return rows.view(-1, 2, 8, *rows.shape[1:])


def _in_rows(tiles: Tensor, *, is_gated: bool) -> Tensor:
    return (tiles.transpose(0, 1) if is_gated else tiles).flatten(0, 2)


def _spread(words: Tensor) -> Tensor:
    """Words of eight codes in the order of inputs, from the lowest bits on: even codes to the lower half, odd ones to
    the upper."""
    return _packed(words & 0x0F0F0F0F) | (_packed(words >> 4 & 0x0F0F0F0F) << 16)


def _packed(words: Tensor) -> Tensor:
    """The lower four bits of every byte, together."""
    pairs = (words | words >> 4) & 0x00FF00FF
    return (pairs | pairs >> 8) & 0xFFFF


def _gathered(words: Tensor) -> Tensor:
    """What `_spread` took apart."""
    return _unpacked(words & 0xFFFF) | _unpacked(words >> 16 & 0xFFFF) << 4


def _unpacked(words: Tensor) -> Tensor:
    pairs = (words | words << 8) & 0x00FF00FF
    return (pairs | pairs << 4) & 0x0F0F0F0F
