"""Products of four-bit codes: INT4, FP4, Q4_K."""

from typing import Any

from facet.kernels.gluon_names import gl
from facet.kernels.quantized.int4 import tuning as int4
from facet.kernels.quantized.int4.experts_kernel import experts_kernel
from facet.kernels.quantized.int4.few_rows_kernel import few_rows_kernel
from facet.kernels.quantized.int4.ring_16_kernel import ring_16_kernel as int4_ring_16_kernel
from facet.kernels.quantized.int4.ring_kernel import ring_kernel as int4_ring_kernel
from facet.kernels.quantized.int4.tuning import ROW_KINDS, Tuning, choose_tuning
from facet.kernels.quantized.int4.wide_kernel import wide_kernel
from tests.kernels.hopper_launches.making import Launch, tensor

# Of 4-bit codes: scales, and what stands beside them.
INT4_KINDS: dict[str, dict[str, Any]] = {
    "int4": dict(scale_dtype=gl.bfloat16),
    "int4_half": dict(scale_dtype=gl.float16),
    "int4_zeros": dict(scale_dtype=gl.bfloat16, has_zeros=True),
    "fp4": dict(scale_dtype=gl.float8e4nv),
    "q4_k": dict(scale_dtype=gl.uint8),
}


def zeros_beside(scale_dtype: Any) -> Any:
    """Or coarse scales, that 4-bit kernels take beside such scales."""
    return tensor(gl.int32 if scale_dtype == gl.uint8 else gl.int16)


def int4_launch(num_rows: int, tuning: Tuning, *, scale_dtype: Any = gl.bfloat16) -> Launch:
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


def int4_ring_launch(
    num_tiles: int, num_blocks: int, operation: str, num_rows: int = 8, *, scale_dtype: Any = gl.bfloat16
) -> Launch:
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
) -> Launch:
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


def int4_experts_launch(*, scale_dtype: Any = gl.bfloat16) -> Launch:
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


def launches() -> dict[str, Launch]:
    return {
        **{f"int4_{rows}": int4_launch(rows, choose_tuning(2688, 42, rows)) for rows in ROW_KINDS},
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
    }
