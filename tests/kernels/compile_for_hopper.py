"""Compiles kernels listed here for Hopper, on any machine, and prints what each takes: a line of JSON each, in order.

    python -m tests.kernels.compile_for_hopper shared_512 int4_wide_64

A process of its own, since the tests run Triton's interpreter and this needs its compiler. One for all kernels, since
to start takes as long as to compile.
"""

import contextlib
import json
import re
import struct
import subprocess
import sys
import tempfile
import traceback
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction
from triton.runtime import driver
from triton.runtime.jit import MockTensor, create_function_from_signature

from facet.kernels.add_norm.triton import add_norm_kernel, sum_of_norms_kernel
from facet.kernels.add_norm.triton_rounded import rounded_add_norm_kernel
from facet.kernels.gluon_names import TensorDescriptor, gl
from facet.kernels.linear import cases
from facet.kernels.linear.normed_ring_kernel import normed_ring_kernel
from facet.kernels.linear.ring_config import WarpgroupRing, normed_ring_of, ring_of, warpgroup_ring_of
from facet.kernels.linear.ring_kernel import ring_kernel
from facet.kernels.linear.warpgroup_ring_kernel import warpgroup_ring_kernel
from facet.kernels.moe import hopper_kernel as experts
from facet.kernels.moe import triton_sorting as sorting
from facet.kernels.moe.expert_ring_kernel import expert_ring_kernel
from facet.kernels.paged_attention.decode.grouped import grouped_kernel
from facet.kernels.paged_attention.decode.hopper.separate_kernel import separate_kernel as decode_separate_kernel
from facet.kernels.paged_attention.decode.hopper.shared_kernel import shared_kernel as decode_shared_kernel
from facet.kernels.paged_attention.decode.in_turn import in_turn_kernel
from facet.kernels.paged_attention.prefill.hopper import separate_256, separate_512, shared_512
from facet.kernels.paged_attention.prefill.hopper.parts import LAUNCH
from facet.kernels.quantized.eight_bits import config as eight_bits
from facet.kernels.quantized.eight_bits.embedding import embed_codes_kernel
from facet.kernels.quantized.eight_bits.few_rows_kernel import few_rows_kernel as eight_bit_few_rows_kernel
from facet.kernels.quantized.eight_bits.many_rows_kernel import LAUNCH as MANY_ROWS_LAUNCH
from facet.kernels.quantized.eight_bits.many_rows_kernel import many_rows_kernel
from facet.kernels.quantized.eight_bits.ring_kernel import ring_kernel as eight_bit_ring_kernel
from facet.kernels.quantized.eight_bits.row_rounding import choose_whole_rows, round_whole_rows_kernel
from facet.kernels.quantized.eight_bits.triton import product_kernel
from facet.kernels.quantized.eight_bits.widened import widened_row_kernel
from facet.kernels.quantized.few_rows import any_format_kernel
from facet.kernels.quantized.int4 import tuning as int4
from facet.kernels.quantized.int4.experts_kernel import experts_kernel
from facet.kernels.quantized.int4.few_rows_kernel import few_rows_kernel
from facet.kernels.quantized.int4.ring_16_kernel import ring_16_kernel as int4_ring_16_kernel
from facet.kernels.quantized.int4.ring_kernel import ring_kernel as int4_ring_kernel
from facet.kernels.quantized.int4.tuning import ROW_KINDS, Tuning, choose_tuning
from facet.kernels.quantized.int4.wide_kernel import wide_kernel
from facet.kernels.quantized.int8_groups import tuning as int8_groups
from facet.kernels.quantized.int8_groups.dequantize import shuffled_kernel
from facet.kernels.quantized.int8_groups.few_rows_kernel import few_rows_kernel as int8_groups_kernel
from facet.kernels.quantized.int8_groups.ring_kernel import ring_kernel as int8_groups_ring_kernel
from facet.kernels.quantized.int8_groups.wide_kernel import wide_kernel as int8_groups_wide_kernel
from facet.kernels.quantized.widen import INTEGER, UNSIGNED
from facet.kernels.rms_norm.triton import rms_norm_kernel, row_tile, tile_of_few_rows
from facet.kernels.rounded_rows import FP8_CODES, INT8_CODES, RowCodes
from facet.kernels.streams.triton import correct_kernel, predict_kernel
from facet.kernels.sum_over_ranks.triton import sum_kernel, sum_launch
from facet.ranks import Rank

TARGET = GPUTarget("cuda", 90, 32)
# Of 4-bit codes: scales, and what stands beside them.
INT4_KINDS: dict[str, dict[str, Any]] = {
    "int4": dict(scale_dtype=gl.bfloat16),
    "int4_half": dict(scale_dtype=gl.float16),
    "int4_zeros": dict(scale_dtype=gl.bfloat16, has_zeros=True),
    "fp4": dict(scale_dtype=gl.float8e4nv),
    "q4_k": dict(scale_dtype=gl.uint8),
}


def tensor(dtype: Any = gl.bfloat16) -> Any:
    return MockTensor(dtype)


def tiles(shape: tuple[int, ...], block: list[int], dtype: Any = gl.bfloat16) -> Any:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor(MockTensor(dtype, shape), list(shape), strides, block, layout)


def zeros_beside(scale_dtype: Any) -> Any:
    """Or coarse scales, that 4-bit kernels take beside such scales."""
    return tensor(gl.int32 if scale_dtype == gl.uint8 else gl.int16)


def int4_launch(
    num_rows: int, tuning: Tuning, *, scale_dtype: Any = gl.bfloat16
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of few rows with the gate and up of 31B."""
    words = tensor(gl.int32)
    constants = dict(
        IS_GATED=True,
        HAS_GATED_INPUT=False,
        SCALE_DTYPE=scale_dtype,
        HAS_ZEROS=False,
        GROUPS=4,
        TILES=tuning.tiles,
        ROW_TILES=num_rows // 8,
        NUM_OUT_WARPS=tuning.num_out_warps,
        NUM_IN_WARPS=tuning.num_in_warps,
        IS_RAGGED=42 % (2 * tuning.num_in_warps) != 0,
        HAS_TAIL=False,
        IS_DEPENDENT=True,
    )
    factors = tensor(gl.float32) if scale_dtype == gl.float8e4nv else None
    zeros = zeros_beside(scale_dtype)
    arguments = (words, words, words, zeros, factors, tensor(), tensor(), 2688, 0, num_rows, 2688, 42, 5376)
    return few_rows_kernel, arguments, {**constants, "num_warps": tuning.num_out_warps * tuning.num_in_warps}


def int8_groups_launch(
    num_tiles: int, num_blocks: int, num_rows: int, *, levels: int = 0, is_narrow: bool = False, is_gated: bool = False
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of few rows: Q8_0, or with one level of coarse scales Q6_K, with two Q5_K."""
    words, tuning = tensor(gl.int32), int8_groups.choose_tuning(num_tiles, num_blocks, num_rows)
    constants = dict(
        IS_GATED=is_gated,
        HAS_GATED_INPUT=False,
        SCALE_DTYPE=gl.float16,
        GROUPS=2,
        BLOCKS_OF_SCALE=1,
        LEVELS=levels,
        IS_NARROW=is_narrow,
        TILES=tuning.tiles,
        ROW_TILES=num_rows // 8,
        NUM_OUT_WARPS=tuning.num_out_warps,
        NUM_IN_WARPS=tuning.num_in_warps,
        IS_RAGGED=num_blocks % (2 * tuning.num_in_warps) != 0,
        HAS_TAIL=False,
        IS_DEPENDENT=True,
        num_warps=tuning.num_out_warps * tuning.num_in_warps,
    )
    num_in = 64 * num_blocks
    arguments = (words, words, words, tensor(), tensor(), num_in // 2, 0, num_rows, num_tiles, num_blocks, num_in)
    return int8_groups_kernel, arguments, constants


def int8_groups_ring_launch(
    num_tiles: int, num_blocks: int, num_rows: int, *, levels: int, is_gated: bool
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    words, ring = tensor(gl.int32), int8_groups.ring_of(num_tiles, num_blocks, levels, num_rows)
    constants = dict(
        IS_GATED=is_gated,
        HAS_GATED_INPUT=False,
        SCALE_DTYPE=gl.float16,
        GROUPS=2,
        BLOCKS_OF_SCALE=1,
        LEVELS=levels,
        IS_NARROW=levels > 0,
        TILES=ring.tiles,
        ROW_TILES=ring.row_tiles,
        NUM_OUT_WARPS=ring.num_out_warps,
        NUM_IN_WARPS=ring.num_in_warps,
        STAGES=ring.num_stages,
        IS_AHEAD=ring.is_ahead,
        HAS_TAIL=num_blocks % ring.num_in_warps != 0,
        IS_DEPENDENT=True,
        num_warps=ring.num_warps,
        **int8_groups.launch_of_ring(ring),
    )
    num_in = 64 * num_blocks
    arguments = (words, words, words, tensor(), tensor(), num_in // 2, 0, num_rows, num_tiles, num_blocks, num_in)
    return int8_groups_ring_kernel, arguments, constants


def int8_groups_wide_launch(
    num_tiles: int, num_blocks: int, num_rows: int, *, levels: int, is_gated: bool = False
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    words, tuning = tensor(gl.int32), int8_groups.choose_wide_tuning(num_tiles, num_blocks, num_rows)
    constants = dict(
        IS_GATED=is_gated,
        HAS_GATED_INPUT=False,
        SCALE_DTYPE=gl.float16,
        GROUPS=2,
        BLOCKS_OF_SCALE=1,
        LEVELS=levels,
        IS_NARROW=levels > 0,
        IS_DEPENDENT=True,
        **tuning.constants(),
    )
    tensors = (tensor(), words, words, tensor(), tensor(), tensor(gl.float32), words)
    return int8_groups_wide_kernel, (*tensors, 0, num_rows, num_tiles, num_blocks), constants


def int8_groups_dequantize_launch(*, levels: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of a slice of the gate and up of 31B."""
    constants = dict(
        IS_GATED=True,
        BLOCKS=4,
        GROUPS=2,
        BLOCKS_OF_SCALE=1,
        COARSE_BLOCKS=4,
        HAS_MINIMUMS=levels == 2,
        IS_NARROW=levels > 0,
        num_warps=4,
    )
    scales, coarse = (tensor(gl.uint8), tensor(gl.float16)) if levels else (tensor(gl.float16), None)
    return shuffled_kernel, (tensor(gl.int32), scales, coarse, tensor(), 390, 84, 5376), constants


def int4_ring_launch(
    num_tiles: int, num_blocks: int, operation: str, num_rows: int = 8, *, scale_dtype: Any = gl.bfloat16
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    words, coarse = tensor(gl.int32), tensor(gl.int32) if scale_dtype == gl.uint8 else None
    ring = int4.ring_of(num_tiles, num_blocks, num_rows, has_minimums=coarse is not None)
    constants = dict(
        IS_GATED=operation == "geglu_linear",
        HAS_GATED_INPUT=operation == "gated_input_linear",
        SCALE_DTYPE=scale_dtype,
        GROUPS=4,
        TILES=ring.tiles,
        NUM_OUT_WARPS=ring.num_out_warps,
        NUM_IN_WARPS=ring.num_in_warps,
        STAGES=ring.num_stages,
        IS_AHEAD=ring.is_ahead,
        HAS_TAIL=num_blocks % ring.num_in_warps != 0,
        IS_DEPENDENT=True,
        num_warps=ring.num_warps,
    )
    num_in = 128 * num_blocks
    tensors, numbers = (words, words, words, tensor(), tensor()), (num_in // 2, num_tiles * 16, num_rows, num_tiles)
    if ring.row_tiles == 2:
        return int4_ring_16_kernel, (*tensors, *numbers, num_in), {**constants, "NUM_BLOCKS": num_blocks}
    factors = tensor(gl.float32) if scale_dtype == gl.float8e4nv else None
    return int4_ring_kernel, (*tensors, factors, coarse, *numbers, num_blocks, num_in), constants


def int4_wide_launch(
    num_tiles: int,
    num_blocks: int,
    num_rows: int,
    *,
    scale_dtype: Any = gl.bfloat16,
    has_zeros: bool = False,
    is_gated: bool = False,
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    words, tuning = tensor(gl.int32), int4.choose_wide_tuning(num_tiles, num_blocks, num_rows)
    constants = dict(
        IS_GATED=is_gated,
        HAS_GATED_INPUT=False,
        SCALE_DTYPE=scale_dtype,
        HAS_ZEROS=has_zeros,
        GROUPS=4,
        BLOCKS=tuning.turn_in // 128,
        IS_DEPENDENT=True,
        **tuning.constants(),
    )
    factors = tensor(gl.float32) if scale_dtype == gl.float8e4nv else None
    tensors = (tensor(), words, words, words, factors, tensor(), tensor(), tensor(gl.float32), words)
    return wide_kernel, (*tensors, 0, num_rows, num_tiles, num_blocks), constants


def int4_experts_launch(*, scale_dtype: Any = gl.bfloat16) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of the second product of 26B-A4B, groups of eight pairs."""
    words, tuning = tensor(gl.int32), choose_tuning(8 * 176, 6, 8)
    constants = dict(
        NUM_CHOSEN=8,
        IS_FIRST=False,
        IS_SORTED=True,
        SCALE_DTYPE=scale_dtype,
        HAS_ZEROS=False,
        GROUPS=4,
        TILES=tuning.tiles,
        ROW_TILES=1,
        NUM_OUT_WARPS=tuning.num_out_warps,
        NUM_IN_WARPS=tuning.num_in_warps,
        IS_RAGGED=6 % (2 * tuning.num_in_warps) != 0,
        HAS_TAIL=True,
        IS_DEPENDENT=True,
    )
    zeros = zeros_beside(scale_dtype)
    arguments = (words, words, words, zeros, None, words, words, tensor(), 352, 176, 6, 704)
    return experts_kernel, arguments, {**constants, "num_warps": tuning.num_out_warps * tuning.num_in_warps}


def ring_launch(shape: cases.Shape) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    ring, is_gated = ring_of(shape.num_out, shape.num_in), shape.operation == "geglu_linear"
    constants = dict(
        NUM_IN=shape.num_in,
        IS_GATED=is_gated,
        HAS_GATED_INPUT=False,
        ROWS=ring.num_rows,
        BLOCK_IN=ring.block_in,
        STAGES=ring.num_stages,
        NUM_WARPS=ring.num_warps,
        IS_DEPENDENT=True,
    )
    num_out = shape.num_out // 2 if is_gated else shape.num_out
    arguments = (*(tensor() for _ in range(4)), shape.num_in, shape.num_in, 0, ring.num_rows, num_out)
    return ring_kernel, arguments, {**constants, "num_warps": ring.num_warps}


def warpgroup_ring_launch(
    shape: cases.Shape, num_rows: int = 8, *, is_ahead: bool = False
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    ring = warpgroup_ring_of(num_rows, shape.num_out, shape.num_in)
    assert ring is not None
    num_parts = 2 if shape.operation == "geglu_linear" else 1
    num_eights, more_out = shape.num_out // num_parts // 8, ring.more_out
    weight_shape = (num_eights, num_parts, shape.num_in // 64, 8, 64)

    def units(outputs: int) -> Any:
        return tiles(weight_shape, [outputs // num_parts // 8, num_parts, ring.block_in // 64, 8, 64])

    arguments = (
        tiles((num_rows, shape.num_in), [ring.num_rows, ring.block_in]),
        units(ring.wide_out), units(more_out) if more_out else None,
        tensor(), tensor(), 0, num_rows, 8 * num_eights, tensor() if is_ahead else None, 2560, 20480, 512,
    )  # fmt: skip
    constants = dict(
        NUM_IN=shape.num_in,
        HAS_GATED_INPUT=shape.operation == "gated_input_linear",
        STAGES=ring.num_stages,
        IS_DEPENDENT=True,
    )
    return warpgroup_ring_kernel, arguments, {**constants, "num_warps": 4}


def expert_ring_launch(ring: WarpgroupRing, *, is_first: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of 26B-A4B."""
    num_parts, num_out, num_in = (2, 704, 2816) if is_first else (1, 2816, 704)
    num_rows, more_out = ring.num_rows, ring.more_out

    def units(outputs: int) -> Any:
        block = [outputs // num_parts // 8, num_parts, ring.block_in // 64, 8, 64]
        return tiles((num_out // 8, 128 * num_parts, num_in // 64, 8, 64), block)

    arguments = (
        tiles((num_rows if is_first else 8 * num_rows * num_rows, num_in), [num_rows, ring.block_in]),
        units(ring.wide_out), units(more_out) if more_out else None,
        tensor(gl.int64), tensor(), num_rows, num_out,
    )  # fmt: skip
    constants = dict(NUM_IN=num_in, NUM_CHOSEN=8, CHOSEN_PAD=8, STAGES=ring.num_stages, IS_DEPENDENT=True)
    return expert_ring_kernel, arguments, {**constants, "num_warps": 4}


def normed_ring_launch(shape: cases.Shape) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of a layer's first and second norm, or of the stream where a per-layer gate takes it."""
    _, (_, weight, more_weight, _, _, _, _, num_out, *ahead), constants = warpgroup_ring_launch(shape, is_ahead=True)
    ring = normed_ring_of(shape.num_out, shape.num_in)
    assert ring is not None
    is_gated, factors = shape.operation == "gated_input_linear", tensor(gl.float32)
    row = (tensor(), tensor(), factors, None if is_gated else factors, None if is_gated else tensor(), tensor())
    arguments = (*row, weight, more_weight, tensor(), tensor(), 1e-6, num_out, *ahead)
    return normed_ring_kernel, arguments, {**constants, "STAGES": ring.num_stages}


def eight_bit_ring_launch(
    shape: cases.Shape, dtype: Any, num_magnitudes: int = 0
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    ring, is_gated = eight_bits.ring_of(shape.num_out, shape.num_in), shape.operation == "geglu_linear"
    constants = dict(
        NUM_IN=shape.num_in,
        NUM_MAGNITUDES=num_magnitudes,
        **(INT8_CODES if dtype == gl.int8 else FP8_CODES).constants,
        IS_INTEGER=dtype == gl.int8,
        IS_GATED=is_gated,
        HAS_GATED_INPUT=False,
        SHARES=ring.shares,
        BLOCK_IN=ring.block_in,
        STAGES=ring.num_stages,
        IS_DEPENDENT=True,
    )
    num_out, scales = shape.num_out // 2 if is_gated else shape.num_out, tensor(gl.float32)
    sums = tensor(gl.int32 if dtype == gl.int8 else gl.float32)
    x = tensor(dtype if num_magnitudes == 0 else gl.bfloat16)
    row_scales = tensor() if num_magnitudes == shape.num_in else scales  # or magnitudes: those of the row itself
    arguments = (x, row_scales, tensor(dtype), scales, tensor(), tensor(), scales if is_gated else None,
                 shape.num_in, shape.num_in, 1, 0, 8, num_out, sums, tensor(gl.int32))  # fmt: skip
    return eight_bit_ring_kernel, arguments, {**constants, "num_warps": 4}


def fp8_in_order_launch(
    shape: cases.Shape, num_rows: int, *, by_warpgroups: bool = False
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """As many rows are multiplied with --batch-invariant."""
    config = eight_bits.choose_in_one_order(num_rows, shape.num_out, shape.num_in, "fp8")
    assert config is not None
    is_gated = shape.operation == "geglu_linear"
    num_out, scales = shape.num_out // 2 if is_gated else shape.num_out, tensor(gl.float32)
    constants: dict[str, Any] = dict(
        NUM_IN=shape.num_in, BLOCK_IN=config.block_in, SHARES=config.shares, IS_DEPENDENT=True
    )
    if by_warpgroups:
        rows = (num_rows, shape.num_out)
        x, matrix = (tiles((number, shape.num_in), [64, 128], gl.float8e4nv) for number in rows)
        constants |= dict(STAGES=6, IS_GATED=is_gated, HAS_GATED_INPUT=False)
        arguments = (x, scales, matrix, scales, tensor(), tensor(), num_rows, num_out, 1, 0)
        return many_rows_kernel, arguments, {**constants, **MANY_ROWS_LAUNCH}
    constants |= dict(
        ROWS=config.rows,
        IN_TURN=config.in_turn and config.shares > 1,
        IS_ROUNDED=True,
        IS_SHARED=config.rows > eight_bits.MOST_ROWS_AT_ONCE,
        ACTIVATION=int(is_gated),
        BLOCK_OUT=config.block_out,
        NUM_STAGES=config.num_stages,
    )
    x = matrix = tensor(gl.float8e4nv)
    more = (shape.num_in, shape.num_in, 1, 0, num_rows, num_out, scales, tensor(gl.int32))
    arguments = (x, scales, matrix, scales, tensor(), tensor(), None, *more)
    return product_kernel, arguments, {**constants, "num_warps": config.num_warps}


def head_launch(dtype: Any, *, in_tiles: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of a row with the head of 31B, whose codes are widened."""
    constants: dict[str, Any] = dict(NUM_IN=5376, IS_DEPENDENT=True)
    scales = tensor(gl.float32)
    if in_tiles:
        tiles, words = eight_bits.HEAD_TILES, tensor(gl.int32)
        constants |= dict(IS_INTEGER=dtype == gl.int8, TILES=tiles.tiles, NUM_WARPS=tiles.num_warps)
        arguments = (words, words, scales, tensor(), 2688, 1344, 1, 1, 262144)
        return eight_bit_few_rows_kernel, arguments, {**constants, "num_warps": tiles.num_warps}
    row = eight_bits.WIDENED_ROW
    constants |= dict(BLOCK_OUT=row.block_out, BLOCK_IN=row.block_in)
    return (
        widened_row_kernel,
        (tensor(), tensor(dtype), scales, tensor(), 5376, 1, 262144),
        {**constants, "num_warps": row.num_warps},
    )


def any_format_launch(*, is_q4_k: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of 16 rows with the gate and up of 31B, in Q4_K or Q6_K."""
    fine, half = tensor(gl.uint8 if is_q4_k else gl.int8), tensor(gl.float16)
    codes, minimums = tensor(gl.uint8 if is_q4_k else gl.int8), (fine, half) if is_q4_k else (None, None)
    group, kind = (32, UNSIGNED) if is_q4_k else (16, INTEGER)
    constants = dict(NUM_IN=5376, GROUP=group, PER_COARSE=256 // group, KIND=kind.value, SCALES=0)
    constants |= dict(ROWS=16, BLOCK_OUT=64, BLOCK_IN=128, IS_DEPENDENT=True, num_warps=4, num_stages=3)
    tensors = (tensor(), codes, fine, half, None, *minimums, tensor())
    return any_format_kernel, (*tensors, 5376, 2688 if is_q4_k else 5376, 5376 // group, 21, 16, 43008), constants


def embed_launch(dtype: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of a row of 31B."""
    tile = row_tile(5376, 1)
    constants = dict(WIDTH=5376, ROWS=tile.num_rows, BLOCK=tile.block, IS_DEPENDENT=True)
    arguments = (tensor(gl.int64), tensor(dtype), tensor(gl.float32), tensor(), 1, 262144, 5376, 1, 73.5)
    return embed_codes_kernel, arguments, {**constants, "num_warps": tile.num_warps}


def round_geglu_launch(width: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    whole = choose_whole_rows(width)
    constants = dict(WIDTH=width, BLOCK=whole.block, IS_GATED=True, IS_DEPENDENT=True, **FP8_CODES.constants)
    arguments = (tensor(), tensor(gl.float8e4nv), tensor(gl.float32), 2 * width)
    return round_whole_rows_kernel, arguments, {**constants, "num_warps": whole.num_warps}


def streams_launch(kernel: Any, num_tensors: int, num_strides: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of 3n: tensors of activations and weights, norms' among them in float32, and strides between streams and rows."""
    tensors = [tensor() for _ in range(num_tensors)]
    norms = {"predict_kernel": (1, 4), "correct_kernel": (2,)}[kernel.fn.__name__]
    for place in norms:
        tensors[place] = tensor(gl.float32)
    constants = dict(STREAMS=4, WIDTH=2048, BLOCK=2048, IS_DEPENDENT=True, num_warps=8)
    return kernel, (*tensors, *(2048,) * num_strides, 1e-6), constants


def rounded_add_norm_launch() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of many rows of 31B."""
    constants = dict(WIDTH=5376, BLOCK=2048, IS_DEPENDENT=True, **FP8_CODES.constants)
    weight, scales = tensor(gl.float32), tensor(gl.float32)
    arguments = (tensor(), tensor(), weight, weight, tensor(), tensor(), tensor(gl.float8e4nv), scales, 1e-6)
    return rounded_add_norm_kernel, arguments, {**constants, "num_warps": 8}


def norms_launch(name: str, width: int, *, in_turn: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of batch-invariant arithmetic: few rows, or many, which are taken in turn."""
    tile = tile_of_few_rows(width)._replace(num_programs=264 if in_turn else None)
    constants = dict(WIDTH=width, **tile.constants, IS_DEPENDENT=True, num_warps=tile.num_warps)
    weight, uncoded = tensor(gl.float32), RowCodes(gl.bfloat16, *[0.0] * 3).constants
    if name == "sum_of_norms":
        return sum_of_norms_kernel, (tensor(), weight, tensor(), weight, tensor(), 300, 1e-6), constants
    if name == "router_norms":
        arguments = (tensor(), weight, tensor(), None, tensor(), 0.1, tensor(), 300, 1, width, width, 1e-6)
        return rms_norm_kernel, arguments, constants | uncoded
    rows = (tensor(), tensor(), weight, weight, tensor(), tensor())
    if name == "coded_add_norm":
        return add_norm_kernel, (*rows, tensor(gl.int8), weight, 300, 1e-6), constants | INT8_CODES.constants
    return add_norm_kernel, (*rows, tensor(), None, 300, 1e-6), constants | uncoded


def drafts_launch(
    group: int, num_heads: int, head_dim: int, window: int, block_n: int
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Rows of drafts, which read their keys together: one share within a window, four shares without."""
    constants = dict(
        GROUP=group,
        GROUP_PAD=group,
        ROWS=16 // group,
        LOOKED_BACK=64,
        MERGED_SHARES=0 if window else 4,
        IS_WHOLE=window > 0,
        HAS_WINDOW=window > 0,
        HEAD_DIM=head_dim,
        TOKENS_PER_BLOCK=16,
        BLOCK_N=block_n,
        IS_DEPENDENT=True,
    )
    numbers, num_splits, stride = tensor(gl.int32), 1 if window else 4, num_heads // group * head_dim
    arguments = (tensor(), tensor(), tensor(), numbers, numbers, numbers, tensor(), tensor(gl.float32),
                 tensor(gl.float32), numbers, 1.0, window, 300, num_splits, 512, 576, 16 * stride, stride,
                 num_heads)  # fmt: skip
    return grouped_kernel, arguments, {**constants, "num_warps": 4, "num_stages": 3 if head_dim == 512 else 5}


def in_turn_launch(
    group: int, num_heads: int, head_dim: int, window: int, *, adds: bool, rows: int = 1
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Rows that are decoded in fixed shares, those of drafts in groups."""
    share, block_n = window // 16 or 64, 32
    constants = dict(
        HAS_MAP=False,
        HAS_WINDOW=window > 0,
        IS_ANCHORED=rows > 1 and window > 0,
        ROWS=rows,
        LOOKED_BACK=64,
        ADDS=adds,
        AT_ONCE=16 + (rows > 1) if window else 8,
        ONE_TILE=share == block_n,
        GROUP=group,
        GROUP_PAD=group,
        HEAD_DIM=head_dim,
        TOKENS_PER_BLOCK=16,
        BLOCK_M=16,
        BLOCK_N=block_n,
        IS_DEPENDENT=True,
    )
    numbers, floats, stride = tensor(gl.int32), tensor(gl.float32), num_heads // group * head_dim
    arguments = (tensor(), tensor(), tensor(), numbers, numbers, numbers, numbers, tensor(), floats, floats, numbers,
                 1.0, window, 500, 16 if window else 64, share, 512, 576, 16 * stride, stride, num_heads)  # fmt: skip
    return in_turn_kernel, arguments, {**constants, "num_warps": 4, "num_stages": 3 if head_dim == 512 else 5}


def decode_ring_launch(
    group: int, num_heads: int, head_dim: int, *, has_window: bool = True, is_shared: bool = False
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Rows that are decoded through a ring."""
    stride = num_heads // group * head_dim
    constants = dict(
        HAS_MAP=False,
        SHARE=64,
        GROUP=group,
        HEAD_DIM=head_dim,
        TOKEN_STRIDE=stride,
        TOKENS_PER_BLOCK=16,
        SLOTS=3,
        AT_ONCE=9 if head_dim < 512 else 4,
        IS_DEPENDENT=True,
        num_warps=4,
    )
    numbers, floats, vectors = tensor(gl.int32), tensor(gl.float32), tensor()
    where = (numbers, numbers, numbers, numbers, vectors, floats, floats, numbers, 1.0)
    strides = (64, 8 if has_window else 64, 576, 16 * stride, num_heads)
    if is_shared:
        return decode_shared_kernel, (vectors, vectors, floats, floats, *where, *strides), {**constants, "PAIRS": 64}
    constants["HAS_WINDOW"] = has_window
    return decode_separate_kernel, (vectors, vectors, vectors, *where, 512, *strides), constants


def experts_launch(*, is_first: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of 8192 rows of 26B-A4B."""
    num_out, num_in = (1408, 2816) if is_first else (2816, 704)
    constants = dict(
        NUM_OUT=num_out, NUM_IN=num_in, NUM_CHOSEN=8 if is_first else 1, IS_FIRST=is_first, IS_DEPENDENT=True
    )
    source = tensor() if is_first else tiles((65536, 704), [64, 64])
    numbers = tensor(gl.int32)
    arguments = (source, tiles((128 * num_out, num_in), [64, 64]), numbers, numbers, numbers, tensor(), 640, 0, 128)
    return experts.hopper_kernel, arguments, {**constants, **experts.LAUNCH}


def sorting_launch(num_pairs: int, *, counts: bool = False) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of pairs of 26B-A4B: those of one block, or of several, which are counted before they are placed."""
    pairs, numbers = tensor(gl.int64), tensor(gl.int32)
    is_one = num_pairs <= sorting.BLOCK
    block = num_pairs if is_one else sorting.BLOCK
    sizes = dict(EXPERTS_PAD=128, BLOCK=block, num_warps=8, IS_DEPENDENT=True)
    if counts:
        return sorting.count_kernel, (pairs, tensor(gl.int16), num_pairs), sizes
    arguments = (pairs, None if is_one else tensor(gl.int16), numbers, numbers, numbers, num_pairs, 640)
    sizes |= dict(GROUP_SIZE=16 if is_one else 128, CHUNK=min(block, sorting.CHUNK), COUNTS=sorting.COUNTS)
    return sorting.place_kernel, arguments, sizes


def sum_over_ranks_launch() -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Of a row of 31B on eight ranks."""
    constants = sum_launch(Rank(index=3, size=8), value_bytes=2)
    arguments = (tensor(), tensor(gl.int64), tensor(gl.int32), 5376, 1)
    return sum_kernel, arguments, {**constants, "IS_DEPENDENT": True}


def launches() -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """A launch of each: the kernel, its arguments, its constants and options."""
    heads_of_31b = (tiles((8192, 32, 256), [32, 2, 256]), tensor(), tiles((9216, 256), [64, 256]))
    heads_of_e4b = (tiles((8192, 8, 512), [16, 4, 512]), tensor(), tiles((8192, 512), [64, 128]))
    vectors = tiles((8192, 512), [64, 256])
    numbers, scale = tensor(gl.int32), 1.44
    return {
        "shared_512": (
            shared_512.shared_512_kernel,
            (
                tensor(),
                tensor(),
                vectors,
                tiles((8192, 128), [64, 128]),
                tensor(gl.float32),
                numbers,
                scale,
                8192,
                32,
                0,
            ),
            dict(PROGRAMS_PER_TILE=2, GROUP=8, **LAUNCH),
        ),
        "separate_512": (
            separate_512.separate_512_kernel,
            (*heads_of_e4b, vectors, numbers, scale, 8192, 8, 0),
            dict(PROGRAMS_PER_TILE=2, GROUP=4, **LAUNCH),
        ),
        "separate_256": (
            separate_256.separate_256_kernel,
            (*heads_of_31b, tiles((9216, 256), [64, 256]), numbers, scale, 1024, 2048, 16, 9216, 32, 0),
            dict(HAS_WINDOW=True, GROUP=2, **LAUNCH),
        ),
        **{f"int4_{rows}": int4_launch(rows, choose_tuning(2688, 42, rows)) for rows in ROW_KINDS},
        "ring_of_down": ring_launch(cases.E4B[1]),
        "ring_of_gate_up": ring_launch(cases.E4B[0]),
        "warpgroup_ring_of_down": warpgroup_ring_launch(cases.E4B[1], is_ahead=True),
        "warpgroup_ring_of_gate_up": warpgroup_ring_launch(cases.E4B[0]),
        "warpgroup_ring_of_gated_input": warpgroup_ring_launch(cases.E4B[8]),
        "warpgroup_ring_of_16_rows": warpgroup_ring_launch(cases.E4B[6], 16),
        "warpgroup_ring_of_32_rows": warpgroup_ring_launch(cases.E4B[1], 32),
        "warpgroup_ring_of_64_rows": warpgroup_ring_launch(cases.E4B[3], 64),
        "warpgroup_ring_of_64_rows_of_gate_up": warpgroup_ring_launch(cases.E4B[0], 64),
        "warpgroup_ring_of_80_outputs": warpgroup_ring_launch(cases.MEDIUM[3]),
        "warpgroup_ring_of_two_programs": warpgroup_ring_launch(cases.NANO[0]),
        "warpgroup_ring_of_64_rows_of_two_programs": warpgroup_ring_launch(cases.NANO[0], 64),
        "expert_ring_of_gate_up": expert_ring_launch(WarpgroupRing(96, 256, 4), is_first=True),
        "expert_ring_of_down": expert_ring_launch(WarpgroupRing(96, 128, 4), is_first=False),
        "normed_ring_of_qkv": normed_ring_launch(cases.E4B[2]),
        "normed_ring_of_gate_up": normed_ring_launch(cases.E4B[0]),
        "normed_ring_of_gated_input": normed_ring_launch(cases.E4B[8]),
        "normed_ring_of_80_outputs": normed_ring_launch(cases.MEDIUM[3]),
        "normed_ring_of_narrow_qkv": normed_ring_launch(cases.SMALL[4]),
        "fp8_ring_of_down": eight_bit_ring_launch(cases.LARGE[1], gl.float8e4nv),
        "fp8_ring_that_rounds": eight_bit_ring_launch(cases.LARGE[1], gl.float8e4nv, num_magnitudes=672),
        "fp8_ring_of_gate_up": eight_bit_ring_launch(cases.LARGE[0], gl.float8e4nv),
        "int8_ring_of_down": eight_bit_ring_launch(cases.LARGE[1], gl.int8),
        "int8_ring_of_gate_up": eight_bit_ring_launch(cases.LARGE[0], gl.int8),
        "fp8_by_warpgroups_of_down": fp8_in_order_launch(cases.E4B[1], 2048, by_warpgroups=True),
        "fp8_by_warpgroups_of_gate_up": fp8_in_order_launch(cases.E4B[0], 2048, by_warpgroups=True),
        "fp8_in_turn_of_down": fp8_in_order_launch(cases.E4B[1], 2048),
        "fp8_in_turn_of_gate_up": fp8_in_order_launch(cases.LARGE[0], 2048),
        "fp8_apart_of_down": fp8_in_order_launch(cases.E4B[1], 100),
        "fp8_apart_of_gate_up": fp8_in_order_launch(cases.E4B[0], 100),
        "int8_head": head_launch(gl.int8, in_tiles=True),
        "fp8_head": head_launch(gl.float8e4nv, in_tiles=True),
        "int8_row_of_head": head_launch(gl.int8, in_tiles=False),
        "fp8_row_of_head": head_launch(gl.float8e4nv, in_tiles=False),
        "int8_embedding": embed_launch(gl.int8),
        "fp8_embedding": embed_launch(gl.float8e4nv),
        "fp4_8": int4_launch(8, choose_tuning(2688, 42, 8), scale_dtype=gl.float8e4nv),
        "fp4_64": int4_launch(64, choose_tuning(2688, 42, 64), scale_dtype=gl.float8e4nv),
        "fp4_ring_of_gate_up": int4_ring_launch(2688, 42, "geglu_linear", scale_dtype=gl.float8e4nv),
        "fp4_ring_of_down": int4_ring_launch(336, 168, "linear", scale_dtype=gl.float8e4nv),
        "int4_ring_of_gate_up": int4_ring_launch(2688, 42, "geglu_linear"),
        "int4_ring_of_down": int4_ring_launch(336, 168, "linear"),
        "int4_ring_of_qkv": int4_ring_launch(1024, 42, "linear"),
        "int4_ring_of_narrow_down": int4_ring_launch(160, 80, "linear"),
        "int4_ring_of_gated_input": int4_ring_launch(16, 20, "gated_input_linear"),
        "int4_ring_of_16_of_gate_up": int4_ring_launch(2688, 42, "geglu_linear", 16),
        "int4_ring_of_16_of_down": int4_ring_launch(336, 168, "linear", 16),
        "int4_ring_of_16_of_qkv": int4_ring_launch(1024, 42, "linear", 16),
        "int4_ring_of_16_of_o": int4_ring_launch(336, 64, "linear", 16),
        "int4_ring_of_16_of_narrow_gate_up": int4_ring_launch(1280, 20, "geglu_linear", 16),
        "int4_ring_of_16_of_narrow_down": int4_ring_launch(160, 80, "linear", 16),
        "int4_ring_of_16_of_gated_input": int4_ring_launch(16, 20, "gated_input_linear", 16),
        **{
            f"q4_k_{rows}": int4_launch(rows, choose_tuning(2688, 42, rows, has_minimums=True), scale_dtype=gl.uint8)
            for rows in ROW_KINDS
        },
        "q4_k_ring_of_gate_up": int4_ring_launch(2688, 42, "geglu_linear", scale_dtype=gl.uint8),
        "q4_k_ring_of_down": int4_ring_launch(336, 168, "linear", scale_dtype=gl.uint8),
        "q4_k_ring_of_qkv": int4_ring_launch(1024, 42, "linear", scale_dtype=gl.uint8),
        "q4_k_ring_of_narrow_down": int4_ring_launch(160, 80, "linear", scale_dtype=gl.uint8),
        "q4_k_experts": int4_experts_launch(scale_dtype=gl.uint8),
        **{
            f"{name}_wide_{rows}": int4_wide_launch(2688, 42, rows, is_gated=True, **kind)
            for name, kind in INT4_KINDS.items()
            for rows in (16, 32, 64)
        },
        **{f"{name}_wide_narrow_down": int4_wide_launch(160, 80, 64, **kind) for name, kind in INT4_KINDS.items()},
        **{f"{name}_wide_narrow_o": int4_wide_launch(336, 64, 16, **kind) for name, kind in INT4_KINDS.items()},
        "int4_experts": int4_experts_launch(),
        **{f"q8_0_{rows}": int8_groups_launch(2688, 84, rows, is_gated=True) for rows in ROW_KINDS},
        **{
            f"q6_k_{rows}": int8_groups_launch(2688, 84, rows, levels=1, is_narrow=True, is_gated=True)
            for rows in ROW_KINDS
        },
        **{
            f"q5_k_{rows}": int8_groups_launch(2688, 84, rows, levels=2, is_narrow=True, is_gated=True)
            for rows in ROW_KINDS
        },
        "q8_0_of_down": int8_groups_launch(336, 336, 8),
        "q6_k_of_down": int8_groups_launch(336, 336, 8, levels=1, is_narrow=True),
        "q5_k_of_down": int8_groups_launch(336, 336, 8, levels=2, is_narrow=True),
        **{
            f"{name}_ring_of_{'16_of_' if rows == 16 else ''}{matrix}": int8_groups_ring_launch(
                *sizes, rows, levels=levels, is_gated="gate" in matrix
            )
            for rows in (8, 16)
            for levels, name in enumerate(("q8_0", "q6_k", "q5_k"))
            for matrix, sizes in {
                "gate_up": (2688, 84),
                "down": (336, 336),
                "qkv": (1024, 84),
                "narrow_gate_up": (1280, 40),
                "narrow_down": (160, 160),
            }.items()
        },
        **{
            f"{name}_wide_{rows}": int8_groups_wide_launch(2688, 84, rows, levels=levels, is_gated=True)
            for levels, name in enumerate(("q8_0", "q6_k", "q5_k"))
            for rows in (16, 32, 64, 128)
        },
        **{
            f"{name}_dequantize": int8_groups_dequantize_launch(levels=levels)
            for levels, name in enumerate(("q8_0", "q6_k", "q5_k"))
        },
        "q8_0_wide_narrow_down": int8_groups_wide_launch(160, 160, 64, levels=0),
        "q5_k_wide_narrow_down": int8_groups_wide_launch(160, 160, 64, levels=2),
        "q4_k": any_format_launch(is_q4_k=True),
        "q6_k": any_format_launch(is_q4_k=False),
        "round_geglu_31b": round_geglu_launch(21504),
        "round_geglu_e4b": round_geglu_launch(10240),
        "rounded_add_norm": rounded_add_norm_launch(),
        **{
            f"{name}_of_{width}{'_in_turn' if in_turn else ''}": norms_launch(name, width, in_turn=in_turn)
            for name in ("add_norm", "coded_add_norm", "sum_of_norms", "router_norms")
            for width in (2560, 5376)
            for in_turn in (False, True)
        },
        "predict_streams": streams_launch(predict_kernel, 7, 3),
        "correct_streams": streams_launch(correct_kernel, 8, 1),
        "drafts_e4b_sliding": drafts_launch(4, 8, 256, 512, 32),
        "drafts_e4b_global": drafts_launch(4, 8, 512, 0, 32),
        "drafts_31b_sliding": drafts_launch(2, 32, 256, 1024, 32),
        "decode_ring_e4b": decode_ring_launch(4, 8, 256),
        "decode_ring_e2b": decode_ring_launch(8, 8, 256),
        "decode_ring_31b": decode_ring_launch(2, 32, 256),
        "decode_ring_3_27b": decode_ring_launch(2, 32, 128),
        "decode_ring_e4b_global": decode_ring_launch(4, 8, 512, has_window=False),
        "decode_ring_e2b_global": decode_ring_launch(8, 8, 512, has_window=False),
        "decode_ring_31b_global": decode_ring_launch(8, 32, 512, has_window=False, is_shared=True),
        "decode_ring_3_27b_global": decode_ring_launch(2, 32, 128, has_window=False),
        "shares_e4b_sliding": in_turn_launch(4, 8, 256, 512, adds=True),
        "shares_e4b_sliding_left": in_turn_launch(4, 8, 256, 512, adds=False),
        "shares_31b_sliding": in_turn_launch(2, 32, 256, 1024, adds=True),
        "shares_e4b_global": in_turn_launch(4, 8, 512, 0, adds=False),
        "shares_e4b_sliding_drafts": in_turn_launch(4, 8, 256, 512, adds=True, rows=4),
        "shares_e4b_global_drafts": in_turn_launch(4, 8, 512, 0, adds=False, rows=4),
        "experts_gate_up": experts_launch(is_first=True),
        "experts_down": experts_launch(is_first=False),
        "count_pairs": sorting_launch(65_536, counts=True),
        "place_pairs": sorting_launch(65_536),
        "place_512_pairs": sorting_launch(512),
        "place_64_pairs": sorting_launch(64),
        "sum_over_ranks": sum_over_ranks_launch(),
    }


def compiled(name: str) -> Any:
    kernel, args, given = launches()[name]
    backend = make_backend(TARGET)
    constants = {name: value for name, value in given.items() if name.isupper()}
    options = {name: value for name, value in given.items() if not name.isupper()} | {"sanitize_overflow": False}
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, parsed = bind(*args, **constants, **options)
    parsed, signature, constexprs, attributes = kernel._pack_args(backend, options, bound, specialization, parsed)
    make_source = GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource
    source = make_source(kernel, signature, constexprs, attributes)
    return triton.compile(source, target=TARGET, options=parsed.__dict__)


def said_by(tool: str, *flags: str, of: bytes) -> str:
    """By one of NVIDIA's tools, of a file with these bytes."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(of)
        file.flush()
        command = [Path(triton.backends.nvidia.__file__).parent / "bin" / tool, *flags, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def instructions(cubins: Sequence[bytes]) -> list[str]:
    """Of each kernel, as text. All are read at once: the tool takes half a second or more to start."""
    codes = [_code_of(cubin) for cubin in cubins]
    starts = list(accumulate(map(len, codes), initial=0))
    found: list[list[str]] = [[] for _ in codes]
    for line in said_by("nvdisasm", "--binary", "SM90", "--no-dataflow", of=b"".join(codes)).splitlines():
        if address := re.match(r"\s*/\*([0-9a-f]{4,})\*/", line):
            found[bisect_right(starts, int(address[1], 16)) - 1].append(line)
    return ["\n".join(lines) for lines in found]


def _code_of(cubin: bytes) -> bytes:
    """The section of an ELF file that has a kernel's instructions."""
    (table,), (size, count, names) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<HHH", cubin, 0x3A)
    # Of each section: where its name is, its type, flags, address, offset and length.
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + index * size) for index in range(count)]
    first_name = sections[names][4]
    (code,) = (each for each in sections if cubin.startswith(b".text.", first_name + each[0]))
    return cubin[code[4] : code[4] + code[5]]


def usage(kernel: Any, code: str) -> dict[str, Any]:
    said = said_by("cuobjdump", "-res-usage", of=kernel.asm["cubin"])
    found = {name.lower(): int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    return {
        **found,
        "shared": kernel.metadata.shared,
        "signals": [kernel.asm["ptx"].count(f"atom.global.sys.{kind}") for kind in ("release", "acquire")],
        "added_halves": len(re.findall(r"HADD2(?!\.F32)", code)),  # those convert float16 numbers
        "wide_loads": len(re.findall(r"LDG\.E\.EF\.128", code)),
        "conversions": code.count("I2F.S8"),
        "single_stores": code.count("STG.E.U16"),
        "barriers": kernel.asm["ptx"].count("bar.sync"),
        "waits": code.count("WARPGROUP.DEPBAR"),
        "asks": code.count("UBLKPF"),
        "arithmetic": [len(re.findall(rf"\b{name}\b", code)) for name in ("FADD", "FMUL", "FFMA", "MUFU", "SHFL")],
        "reduced": reduced_layouts(kernel.asm["ttgir"]),
        "products": kernel.asm["ptx"].count("mma.sync") + kernel.asm["ptx"].count("wgmma.mma_async"),
    }


def reduced_layouts(code: str) -> list[str]:
    """How what is summed or compared lies in registers, in order."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.MULTILINE))
    reduced = re.findall(r'"tt.reduce".*?\}\) : \(tensor<[^#>]*(#\w+)>\)', code, re.DOTALL)
    return [layouts[name] for name in reduced]


def reports(names: Sequence[str]) -> list[dict[str, Any]]:
    kernels, errors = {}, {}
    for name in dict.fromkeys(names):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # where it fails, the compiler prints what it was given
                kernels[name] = compiled(name)
        except Exception:  # the other kernels have their lines all the same
            errors[name] = {"error": traceback.format_exc()}
    codes = instructions([kernel.asm["cubin"] for kernel in kernels.values()]) if kernels else []
    found = {name: usage(kernels[name], code) | ring_of_launch(name) for name, code in zip(kernels, codes, strict=True)}
    return [(found | errors)[name] for name in names]


def ring_of_launch(name: str) -> dict[str, Any]:
    constants = launches()[name][2]
    num_stages = constants.get("STAGES", 0)
    block_bytes = 1216 if constants.get("SCALE_DTYPE") == gl.uint8 else 1152  # of 4-bit codes
    ring = num_stages * constants["num_warps"] * constants.get("TILES", 0) * block_bytes
    return {"stages": num_stages, "ring": ring}


if __name__ == "__main__":
    driver.set_active(SimpleNamespace(get_current_target=lambda: TARGET))  # kernels ask it
    for found in reports(sys.argv[1:]):
        print(json.dumps(found))
