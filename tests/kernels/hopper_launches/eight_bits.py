"""Products of eight-bit codes with a scale for each row, and what goes with them: heads, embeddings, rounded rows."""

from typing import Any

from facet.kernels.add_norm.triton_rounded import rounded_add_norm_kernel
from facet.kernels.gluon_names import gl
from facet.kernels.linear import cases
from facet.kernels.quantized.eight_bits import config as eight_bits
from facet.kernels.quantized.eight_bits.embedding import embed_codes_kernel
from facet.kernels.quantized.eight_bits.few_rows_kernel import few_rows_kernel as eight_bit_few_rows_kernel
from facet.kernels.quantized.eight_bits.many_rows_kernel import LAUNCH as MANY_ROWS_LAUNCH
from facet.kernels.quantized.eight_bits.many_rows_kernel import many_rows_kernel
from facet.kernels.quantized.eight_bits.ring_kernel import ring_kernel as eight_bit_ring_kernel
from facet.kernels.quantized.eight_bits.row_rounding import choose_whole_rows, round_whole_rows_kernel
from facet.kernels.quantized.eight_bits.triton import product_kernel
from facet.kernels.quantized.eight_bits.widened import widened_row_kernel
from facet.kernels.rms_norm.triton import row_tile
from facet.kernels.rounded_rows import FP8_CODES, INT8_CODES
from tests.kernels.hopper_launches.making import Launch, tensor, tiles


def eight_bit_ring_launch(shape: cases.Shape, dtype: Any, num_magnitudes: int = 0) -> Launch:
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


def fp8_in_order_launch(shape: cases.Shape, num_rows: int, *, by_warpgroups: bool = False) -> Launch:
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


def head_launch(dtype: Any, *, in_tiles: bool) -> Launch:
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


def embed_launch(dtype: Any) -> Launch:
    """Of a row of 31B."""
    tile = row_tile(5376, 1)
    constants = dict(WIDTH=5376, ROWS=tile.num_rows, BLOCK=tile.block, IS_DEPENDENT=True)
    arguments = (tensor(gl.int64), tensor(dtype), tensor(gl.float32), tensor(), 1, 262144, 5376, 1, 73.5)
    return embed_codes_kernel, arguments, {**constants, "num_warps": tile.num_warps}


def round_geglu_launch(width: int) -> Launch:
    whole = choose_whole_rows(width)
    constants = dict(WIDTH=width, BLOCK=whole.block, IS_GATED=True, IS_DEPENDENT=True, **FP8_CODES.constants)
    arguments = (tensor(), tensor(gl.float8e4nv), tensor(gl.float32), 2 * width)
    return round_whole_rows_kernel, arguments, {**constants, "num_warps": whole.num_warps}


def rounded_add_norm_launch() -> Launch:
    """Of many rows of 31B."""
    constants = dict(WIDTH=5376, BLOCK=2048, IS_DEPENDENT=True, **FP8_CODES.constants)
    weight, scales = tensor(gl.float32), tensor(gl.float32)
    arguments = (tensor(), tensor(), weight, weight, tensor(), tensor(), tensor(gl.float8e4nv), scales, 1e-6)
    return rounded_add_norm_kernel, arguments, {**constants, "num_warps": 8}


def launches() -> dict[str, Launch]:
    return {
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
        "round_geglu_31b": round_geglu_launch(21504),
        "round_geglu_e4b": round_geglu_launch(10240),
        "rounded_add_norm": rounded_add_norm_launch(),
    }
