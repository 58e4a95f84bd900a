"""Attention: prompts, decoded rows through rings and in shares, rows of drafts."""

from facet.kernels.gluon_names import gl
from facet.kernels.paged_attention.decode.grouped import grouped_kernel
from facet.kernels.paged_attention.decode.hopper.separate_kernel import separate_kernel as decode_separate_kernel
from facet.kernels.paged_attention.decode.hopper.shared_kernel import shared_kernel as decode_shared_kernel
from facet.kernels.paged_attention.decode.in_turn import in_turn_kernel
from facet.kernels.paged_attention.prefill.hopper import separate_256, separate_512, shared_512
from facet.kernels.paged_attention.prefill.hopper.parts import LAUNCH
from tests.kernels.hopper_launches.making import Launch, tensor, tiles


def drafts_launch(group: int, num_heads: int, head_dim: int, window: int, block_n: int) -> Launch:
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


def in_turn_launch(group: int, num_heads: int, head_dim: int, window: int, *, adds: bool, rows: int = 1) -> Launch:
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
) -> Launch:
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


def launches() -> dict[str, Launch]:
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
    }
