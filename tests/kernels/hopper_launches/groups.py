"""Products of eight-bit codes with scales for groups of inputs (Q8_0, Q6_K, Q5_K), and of any format."""

from facet.kernels.gluon_names import gl
from facet.kernels.quantized.few_rows import any_format_kernel
from facet.kernels.quantized.int4.tuning import ROW_KINDS
from facet.kernels.quantized.int8_groups import tuning as int8_groups
from facet.kernels.quantized.int8_groups.dequantize import shuffled_kernel
from facet.kernels.quantized.int8_groups.few_rows_kernel import few_rows_kernel as int8_groups_kernel
from facet.kernels.quantized.int8_groups.ring_kernel import ring_kernel as int8_groups_ring_kernel
from facet.kernels.quantized.int8_groups.wide_kernel import wide_kernel as int8_groups_wide_kernel
from facet.kernels.quantized.widen import INTEGER, UNSIGNED
from tests.kernels.hopper_launches.making import Launch, tensor


def int8_groups_launch(
    num_tiles: int, num_blocks: int, num_rows: int, *, levels: int = 0, is_narrow: bool = False, is_gated: bool = False
) -> Launch:
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


def int8_groups_ring_launch(num_tiles: int, num_blocks: int, num_rows: int, *, levels: int, is_gated: bool) -> Launch:
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
) -> Launch:
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


def int8_groups_dequantize_launch(*, levels: int) -> Launch:
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


def any_format_launch(*, is_q4_k: bool) -> Launch:
    """Of 16 rows with the gate and up of 31B, in Q4_K or Q6_K."""
    fine, half = tensor(gl.uint8 if is_q4_k else gl.int8), tensor(gl.float16)
    codes, minimums = tensor(gl.uint8 if is_q4_k else gl.int8), (fine, half) if is_q4_k else (None, None)
    group, kind = (32, UNSIGNED) if is_q4_k else (16, INTEGER)
    constants = dict(NUM_IN=5376, GROUP=group, PER_COARSE=256 // group, KIND=kind.value, SCALES=0)
    constants |= dict(ROWS=16, BLOCK_OUT=64, BLOCK_IN=128, IS_DEPENDENT=True, num_warps=4, num_stages=3)
    tensors = (tensor(), codes, fine, half, None, *minimums, tensor())
    return any_format_kernel, (*tensors, 5376, 2688 if is_q4_k else 5376, 5376 // group, 21, 16, 43008), constants


def launches() -> dict[str, Launch]:
    return {
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
    }
