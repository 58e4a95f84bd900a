"""Describes how the numbers of a quantized matrix are kept: bits, scales, and whether inputs are rounded too.

A matrix [outputs, inputs], or one for each expert, is codes with a scale for every group of inputs in a row:

    value = (code - zero) * scale - minimum

Zeros and minimums are optional, and each scale (or minimum) may be the product of a fine and a coarse one. Whatever
file a matrix comes from, it is kept in one of these formats; no value changes on the way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

# What a code means. int4: u - 8 for the unsigned u stored; uint4: u itself; fp4: E2M1; fp8: E4M3 without infinities.
CodeKind: TypeAlias = Literal["int4", "uint4", "fp4", "int8", "fp8"]

# How the inputs of a product are rounded before it: to which type, with a scale for what. "static": the checkpoint has
# the scale; "group": every 128 inputs of a token have their own. It is a property of the model: never of how many rows
# share a product, or company would change answers.
Rounding: TypeAlias = Literal["int8_token", "int8_static", "fp8_token", "fp8_group", "fp8_static"]

ROUNDING_GROUP = 128

_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e8m0fnu": 1, "uint8": 1, "int8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleFormat:
    """Scales of one level."""

    dtype: str  # as torch names it
    group: int | None  # inputs that share one; None: the whole row

    @property
    def itemsize(self) -> int:
        return _BYTES[self.dtype]

    def count(self, num_inputs: int) -> int:
        """The number of scales in a row. The last group may be short."""
        return 1 if self.group is None else -(-num_inputs // self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixFormat:
    """How a matrix is kept, and how it is multiplied."""

    codes: CodeKind
    scales: ScaleFormat
    coarse_scales: ScaleFormat | None = None  # a scale is the product of both
    has_zeros: bool = False  # one byte beside every scale
    has_minimums: bool = False  # as the scales: fine, and coarse where those are
    is_reordered: bool = False  # inputs are sorted by group: groups were not neighbours in the file
    rounding: Rounding | None = None
    rounds_outputs: bool = False  # to eight bits, with a scale from the checkpoint
    stored_bits: int | None = None  # of a code in the file, where that is less than here

    @property
    def code_bits(self) -> int:
        return 4 if self.codes in ("int4", "uint4", "fp4") else 8

    def num_bytes(self, shape: Sequence[int]) -> int:
        """The bytes of a matrix [..., outputs, inputs] in memory."""
        *stack, num_rows, num_inputs = shape
        per_row = num_inputs * self.code_bits // 8
        num_scales = self.scales.count(num_inputs)
        scale_bytes = num_scales * self.scales.itemsize
        if self.coarse_scales is not None:
            scale_bytes += self.coarse_scales.count(num_inputs) * self.coarse_scales.itemsize
        per_row += scale_bytes * (2 if self.has_minimums else 1) + num_scales * self.has_zeros
        per_matrix = 4 * num_inputs * self.is_reordered
        per_matrix += 4 * self.has_input_scale + 4 * self.rounds_outputs
        return math.prod(stack) * (num_rows * per_row + per_matrix)

    @property
    def has_row_scales(self) -> bool:
        """Whether one number multiplies a whole row, and nothing is added: products can then be scaled instead of
        values."""
        return self.scales.group is None and self.coarse_scales is None and not (self.has_zeros or self.has_minimums)

    @property
    def has_input_scale(self) -> bool:
        return self.rounding in ("int8_static", "fp8_static")

    def joins(self, other: "MatrixFormat") -> bool:
        """Whether rows of both can be stacked into one matrix. An order of inputs, or a scale for them, is of one."""
        return self == other and not (self.is_reordered or self.has_input_scale or self.rounds_outputs)

    def divides_into(self, num_inputs: int) -> bool:
        """Whether columns can be cut into shares of so many inputs, each with its own codes and scales."""
        groups = [scales.group for scales in (self.scales, self.coarse_scales) if scales is not None]
        groups += [8 // self.code_bits, ROUNDING_GROUP if self.rounding == "fp8_group" else 1]
        is_whole = self.is_reordered or self.rounds_outputs  # what belongs to a row of all inputs
        return not is_whole and all(num_inputs % (group or 1) == 0 for group in groups)

    @property
    def line(self) -> str:
        """A line for people, as `int4 in groups of 32`."""
        stored = "" if self.stored_bits is None else f" of {self.stored_bits} bits in the file"
        scales = "a scale for each row" if self.scales.group is None else f"groups of {self.scales.group}"
        extra = ", with zero points" if self.has_zeros else ", with minimums" if self.has_minimums else ""
        order = ", inputs reordered" if self.is_reordered else ""
        inputs = {
            None: "",
            "int8_token": ", inputs rounded to int8 token by token",
            "int8_static": ", inputs rounded to int8 by stored scales",
            "fp8_token": ", inputs rounded to fp8 token by token",
            "fp8_group": ", inputs rounded to fp8 in groups of 128",
            "fp8_static": ", inputs rounded to fp8 by stored scales",
        }[self.rounding]
        return f"{self.codes}{stored}, {scales}{extra}{order}{inputs}"
