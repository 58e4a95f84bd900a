"""Matrices of 8-bit codes in groups, in the order in which the threads of a GPU load them.

A *tile* is 16 outputs, a *block* 64 inputs of a tile, in two *chunks* of 32. Thread 4 g + t of a warp multiplies
outputs g and g + 8 of a tile by eight inputs of a chunk, four of which it takes at a time:

- 8 t .. 8 t + 7, four after four; where groups have 16 inputs, 4 t .. 4 t + 3 of the first group, then of the second.
- Four codes are a word, in which neighbours lie 16 bits apart: bytes are of inputs 0, 2, 1, 3. A thread's words of a
  chunk lie together: two of output g, two of output g + 8. A block is 1024 bytes, of one chunk after the other.
- Where codes have seven bits or fewer in the file, they are stored with 64 added: none is negative then.
- A block has a word of scales for each of its groups, those of outputs g before those of g + 8: two numbers of 16 bits
  for outputs g and g + 8; where groups have 16 inputs, bytes of both for each of the two groups of a chunk; where there
  are minimums, bytes of both, then of their minimums. Groups of 64 have one word for a block, groups of 128 for two.
- Coarse scales are of 256 inputs, and lie behind the scales of these four blocks: a word of two numbers for outputs g
  and g + 8, and one of coarse minimums.

Inputs are filled up to whole blocks; the kernels take zeros for those that are not there. Scales of int8 are stored
with 128 added. The rows of a gated matrix are gate, then up: its tiles have eight of either, so that a thread holds
both of a column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.kernels.quantized.shuffled_product import TILE_OUT
from facet.matrix_format import MatrixFormat, ScaleFormat

BLOCK_IN = 64
CHUNK_IN = 32
COARSE_IN = 256
_GROUPS = (32, 64, 128)
_COARSE = ScaleFormat(dtype="float16", group=COARSE_IN)
_SIXTEENS = ScaleFormat(dtype="int8", group=16)  # of Q6_K
_SIX_BITS = ScaleFormat(dtype="uint8", group=32)  # of Q5_K, and of its minimums
_FINE_WORDS = 64  # of a tile and its 256 inputs, before the coarse ones
_NARROW_BITS, _MIDDLE = 7, 64
_STEP_BYTES = 256 << 20  # of codes that are shuffled at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledInt8:
    """A matrix in this order, in words of 32 bits."""

    format: MatrixFormat
    codes: Tensor  # int32 [tiles, blocks, 256]
    # int32 [tiles, blocks, 16]; of wider groups [tiles, blocks or pairs of them, 8]; with coarse ones
    # [tiles, quadruples of blocks, 64 + 8 * levels]
    scales: Tensor
    num_inputs: int
    is_gated: bool

    @property
    def num_tiles(self) -> int:
        return self.codes.shape[0]

    @property
    def num_blocks(self) -> int:
        return self.codes.shape[1]

    @property
    def num_rows(self) -> int:
        return self.num_tiles * TILE_OUT

    @property
    def is_narrow(self) -> bool:
        """Whether codes have 64 added."""
        return _is_narrow(self.format)

    @property
    def in_sixteens(self) -> bool:
        """Whether groups have 16 inputs."""
        return self.format.scales == _SIXTEENS

    @property
    def num_levels(self) -> int:
        """Words of coarse scales for two outputs: 1, with minimums 2."""
        return 0 if self.format.coarse_scales is None else 1 + self.format.has_minimums

    @property
    def num_words(self) -> int:
        """The words of scales that a block has for two outputs."""
        return 1 if (self.format.scales.group or 0) >= BLOCK_IN else 2

    @property
    def blocks_of_scale(self) -> int:
        """The number of blocks that share words of scales."""
        return max(1, (self.format.scales.group or 0) // BLOCK_IN)

    def rows(self, rows: slice) -> "ShuffledInt8":
        """Some of the outputs, in whole tiles: a view. Of a gated matrix, both gates and ups of some columns."""
        start, stop, step = rows.indices(self.num_rows)
        assert (step, start % TILE_OUT, stop % TILE_OUT) == (1, 0, 0), "outputs are taken in tiles of 16"
        tiles = slice(start // TILE_OUT, stop // TILE_OUT)
        return self.with_tensors({name: tensor[tiles] for name, tensor in self.tensors().items()})

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "ShuffledInt8":
        return replace(self, codes=tensors["codes"], scales=tensors["scales"])

    def tensors(self) -> dict[str, Tensor]:
        """The tensors, by their names in the matrix."""
        return {"codes": self.codes, "scales": self.scales}


def can_shuffle(format: MatrixFormat, shape: Sequence[int]) -> bool:
    """Whether the kernels here multiply by such a matrix."""
    is_plain = format.codes == "int8" and format.rounding is None
    is_plain &= not (format.has_zeros or format.is_reordered or format.rounds_outputs)
    if format.has_minimums:
        is_known = format.scales == _SIX_BITS and format.coarse_scales == _COARSE
    elif format.coarse_scales is not None:
        is_known = format.scales == _SIXTEENS and format.coarse_scales == _COARSE
    else:
        is_known = format.scales.dtype in ("bfloat16", "float16") and format.scales.group in _GROUPS
    width = CHUNK_IN if format.coarse_scales is None else COARSE_IN
    return is_known and is_plain and len(shape) == 2 and shape[0] % TILE_OUT == 0 and shape[1] % width == 0


def shuffled_bytes(format: MatrixFormat, shape: Sequence[int]) -> int:
    """The bytes of the tensors that `shuffle` makes of a matrix [outputs, inputs]."""
    num_rows, num_inputs = shape
    num_levels = 2 if format.has_minimums else 1
    per_row = -(-num_inputs // BLOCK_IN) * BLOCK_IN
    per_row += _num_groups(format, num_inputs) * format.scales.itemsize * num_levels
    if format.coarse_scales is not None:
        per_row += format.coarse_scales.count(num_inputs) * format.coarse_scales.itemsize * num_levels
    return num_rows * per_row


def _num_groups(format: MatrixFormat, num_inputs: int) -> int:
    """The groups of a row, in whole blocks and whole words of scales."""
    assert format.scales.group is not None
    width = max(format.scales.group, BLOCK_IN)
    return -(-num_inputs // width) * (width // format.scales.group)


def _is_narrow(format: MatrixFormat) -> bool:
    return format.stored_bits is not None and format.stored_bits <= _NARROW_BITS


def shuffle(matrix: QuantizedMatrix, *, is_gated: bool = False) -> ShuffledInt8:
    """The same codes and scales in this order, in tensors of their own."""
    shape = tuple(matrix.codes.shape)
    assert can_shuffle(matrix.format, shape), f"no kernel here multiplies by {matrix.format.line}, {shape}"
    num_tiles, num_blocks = matrix.num_rows // TILE_OUT, -(-matrix.num_inputs // BLOCK_IN)
    words = torch.empty(num_tiles, num_blocks, 256, dtype=torch.int32, device=matrix.codes.device)
    # What is made on the way takes little memory beside a large table. Gates and ups lie apart.
    step = num_tiles if is_gated else max(1, _STEP_BYTES // (TILE_OUT * matrix.num_inputs))
    for first in range(0, num_tiles, step):
        rows = matrix.codes[first * TILE_OUT : (first + step) * TILE_OUT]
        words[first : first + step] = _codes_by_tiles(rows, matrix.format, is_gated=is_gated)
    return ShuffledInt8(
        format=matrix.format,
        codes=words,
        scales=_scales_by_tiles(matrix, is_gated=is_gated),
        num_inputs=matrix.num_inputs,
        is_gated=is_gated,
    )


def _codes_by_tiles(codes: Tensor, format: MatrixFormat, *, is_gated: bool) -> Tensor:
    if _is_narrow(format):
        codes = codes + _MIDDLE
        assert codes.numel() == 0 or int(codes.min()) >= 0, "codes have as few bits as the format says"
    padded = functional.pad(codes, (0, -codes.shape[1] % BLOCK_IN))
    octets = padded.view(torch.uint8).reshape(len(codes), -1, 2, *_inputs_of_chunk(format))
    if format.scales == _SIXTEENS:
        octets = octets.transpose(3, 4)  # [.., t, words, pairs, sides]
    tiles = _in_tiles(octets, is_gated=is_gated)  # [tiles, halves, g, blocks, chunks, t, words, pairs, sides]
    return tiles.permute(0, 3, 4, 2, 5, 1, 6, 8, 7).flatten(2).contiguous().view(torch.int32)


def _inputs_of_chunk(format: MatrixFormat) -> tuple[int, ...]:
    """[t, words, pairs, sides]; of groups of 16 [words, t, pairs, sides]."""
    return (2, 4, 2, 2) if format.scales == _SIXTEENS else (4, 2, 2, 2)


def _scales_by_tiles(matrix: QuantizedMatrix, *, is_gated: bool) -> Tensor:
    group = matrix.format.scales.group
    assert group is not None
    scales = matrix.scales
    if matrix.format.scales == _SIXTEENS:
        scales = scales.view(torch.uint8) ^ 128
    num_groups = _num_groups(matrix.format, matrix.num_inputs)
    fine = _words([scales, matrix.minimums], num_groups, max(1, BLOCK_IN // group), is_gated=is_gated)
    if matrix.coarse_scales is None:
        return fine
    num_coarse = matrix.num_inputs // COARSE_IN
    coarse = _words([matrix.coarse_scales, matrix.coarse_minimums], num_coarse, 1, is_gated=is_gated)
    return torch.cat((fine.view(len(fine), num_coarse, -1), coarse), dim=-1)


def _words(levels: list[Tensor | None], num_groups: int, per_block: int, *, is_gated: bool) -> Tensor:
    """[rows, groups] of scales, and of minimums if there are some, as [tiles, blocks, words of eight pairs of
    outputs]."""
    numbers = torch.stack([level for level in levels if level is not None], dim=-1)
    numbers = functional.pad(numbers, (0, 0, 0, num_groups - numbers.shape[1]))
    numbers = numbers.reshape(len(numbers), -1, per_block, numbers.shape[-1])
    tiles = _in_tiles(numbers, is_gated=is_gated)  # [tiles, halves, g, blocks, groups, levels]
    return tiles.permute(0, 3, 2, 4, 5, 1).flatten(2).contiguous().view(torch.int32)


def unshuffle(shuffled: ShuffledInt8) -> QuantizedMatrix:
    """The matrix as it was."""
    format, tiles, blocks = shuffled.format, shuffled.num_tiles, shuffled.num_blocks
    octets = shuffled.codes.view(torch.uint8).view(tiles, blocks, 2, 8, 4, 2, 2, 2, 2)
    rows = _in_rows(octets.permute(0, 5, 3, 1, 2, 4, 6, 8, 7), is_gated=shuffled.is_gated)
    if shuffled.in_sixteens:
        rows = rows.transpose(3, 4)
    codes = rows.flatten(1)[:, : shuffled.num_inputs].contiguous().view(torch.int8)
    if shuffled.is_narrow:
        codes -= _MIDDLE

    def by_rows(words: Tensor, of: ScaleFormat) -> list[Tensor]:
        """Scales, and minimums where there are some."""
        num_levels = 2 if format.has_minimums else 1
        numbers = words.contiguous().view(getattr(torch, of.dtype)).view(*words.shape[:2], 8, -1, num_levels, 2)
        rows = _in_rows(numbers.permute(0, 5, 2, 1, 3, 4), is_gated=shuffled.is_gated).flatten(1, 2)
        return [level.contiguous() for level in rows[:, : of.count(shuffled.num_inputs)].unbind(-1)]

    words, coarse = shuffled.scales, None
    if format.coarse_scales is not None:
        coarse = by_rows(words[..., _FINE_WORDS:], format.coarse_scales)
        words = words[..., :_FINE_WORDS].reshape(tiles, blocks, -1)
    scales, *minimums = by_rows(words, format.scales)
    if shuffled.in_sixteens:
        scales = (scales.view(torch.uint8) ^ 128).view(torch.int8)
    return QuantizedMatrix(
        format=format,
        codes=codes,
        scales=scales,
        coarse_scales=None if coarse is None else coarse[0],
        minimums=minimums[0] if minimums else None,
        coarse_minimums=None if coarse is None or not minimums else coarse[1],
    )


def _in_tiles(rows: Tensor, *, is_gated: bool) -> Tensor:
    """[rows, ...] as [tiles, halves, 8, ...]."""
    if is_gated:
        return rows.view(2, -1, 8, *rows.shape[1:]).transpose(0, 1)
    return rows.view(-1, 2, 8, *rows.shape[1:])


def _in_rows(tiles: Tensor, *, is_gated: bool) -> Tensor:
    return (tiles.transpose(0, 1) if is_gated else tiles).flatten(0, 2)
