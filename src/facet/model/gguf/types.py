"""The types of a GGUF file's tensors: how long their blocks are, and in which format a matrix of them is kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from facet.matrix_format import MatrixFormat, ScaleFormat

_HALF_32 = ScaleFormat(dtype="float16", group=32)
_HALF_256 = ScaleFormat(dtype="float16", group=256)
_SIX_BITS_32 = ScaleFormat(dtype="uint8", group=32)  # scales of six bits, in a byte
_INT8_16 = ScaleFormat(dtype="int8", group=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockType:
    """How some neighbours of a row are stored."""

    name: str
    num_values: int  # of a block
    block_bytes: int
    format: MatrixFormat | None = None  # None: plain numbers

    def num_bytes(self, shape: Sequence[int]) -> int:
        return math.prod(shape[:-1]) * (shape[-1] // self.num_values) * self.block_bytes


# The types by the numbers that files have.
TYPES: dict[int, BlockType] = {
    0: BlockType(name="F32", num_values=1, block_bytes=4),
    1: BlockType(name="F16", num_values=1, block_bytes=2),
    30: BlockType(name="BF16", num_values=1, block_bytes=2),
    2: BlockType(
        name="Q4_0",
        num_values=32,
        block_bytes=18,
        format=MatrixFormat(codes="int4", scales=_HALF_32),
    ),
    3: BlockType(
        name="Q4_1",
        num_values=32,
        block_bytes=20,
        format=MatrixFormat(codes="uint4", scales=_HALF_32, has_minimums=True),
    ),
    6: BlockType(
        name="Q5_0",
        num_values=32,
        block_bytes=22,
        format=MatrixFormat(codes="int8", scales=_HALF_32, stored_bits=5),
    ),
    7: BlockType(
        name="Q5_1",
        num_values=32,
        block_bytes=24,
        format=MatrixFormat(codes="int8", scales=_HALF_32, has_minimums=True, stored_bits=5),
    ),
    8: BlockType(
        name="Q8_0",
        num_values=32,
        block_bytes=34,
        format=MatrixFormat(codes="int8", scales=_HALF_32),
    ),
    12: BlockType(
        name="Q4_K",
        num_values=256,
        block_bytes=144,
        format=MatrixFormat(codes="uint4", scales=_SIX_BITS_32, coarse_scales=_HALF_256, has_minimums=True),
    ),
    13: BlockType(
        name="Q5_K",
        num_values=256,
        block_bytes=176,
        format=MatrixFormat(
            codes="int8", scales=_SIX_BITS_32, coarse_scales=_HALF_256, has_minimums=True, stored_bits=5
        ),
    ),
    14: BlockType(
        name="Q6_K",
        num_values=256,
        block_bytes=210,
        format=MatrixFormat(codes="int8", scales=_INT8_16, coarse_scales=_HALF_256, stored_bits=6),
    ),
}
# The types that are not read.
OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip
BY_NAME = {type.name: type for type in TYPES.values()}
