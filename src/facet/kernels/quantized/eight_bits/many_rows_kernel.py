"""Products of many rows of fp8 codes on Hopper GPUs, in Gluon: a tile of 128 rows by 128 rows of the matrix.

One partition of warps copies codes into shared memory, 128 inputs at a time and several stages ahead, and goes on with
the next tile while the last is still multiplied or stored. Two warpgroups multiply 64 rows each by the same rows of the
matrix. A *ready* barrier says that a stage has landed, a *free* one that both are done with it. While a warpgroup adds
what tensor cores have summed for it, they work for the other.

    stage   | 64 rows of x | 64 rows of x | 64 rows of the matrix | 64 |        128 inputs each

Sums are those of `ring_kernel.py` and `triton.py`, in their order: tensor cores sum BLOCK_IN inputs from zero, such
sums are added to a share's in float32, and shares to those before them.

For GeGLU, half of the matrix's rows are gate's and half are up's: column c of either lies in the same thread.

There are as many programs as multiprocessors, and each takes one tile after another. Tiles at work at a time lie in a
band of BAND rows of tiles: all read the same few rows of the matrix and of x, from the second-level cache.
"""

from facet.kernels.gluon_parts import barriers
from facet.kernels.quantized.eight_bits.language import (
    copy_tile,
    gl,
    gluon,
    let_through,
    mbarrier,
    start_after_previous,
    thread_barrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

TILE_ROWS = 128  # of x
TILE_OUT = 128  # rows of the matrix
STAGE_IN = gl.constexpr(128)  # inputs of a stage
BAND = gl.constexpr(16)

# Tiles in shared memory, as copies write and products read them.
TILE = gl.constexpr(gl.NVMMASharedLayout.get_default_for([64, 128], gl.float8e4nv))
MATRIX_TILE = gl.constexpr(gl.NVMMASharedLayout.get_default_for([128, 128], gl.float8e4nv))
# Sums in the registers of a warpgroup.
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32]))

# Three partitions of four warps. A thread of those that multiply gets 208 registers, of which sums take 192, and one of
# those that load what is left, 88: together as many as a launch with 168 for everybody has.
LAUNCH = {"num_warps": 4, "maxnreg": 168}


@gluon.constexpr_function
def lines_of(width):
    """The layout in which results are stored: 16 bytes a thread, threads of a row side by side."""
    return gl.BlockedLayout([1, 8], [256 // width, width // 8], [4, 1], [1, 0])


@gluon.constexpr_function
def num_steps(num_in, block_in):
    """Stages of a tile: of whole blocks."""
    return (num_in + block_in - 1) // block_in * (block_in // 128)


@gluon.jit
def _tile_of(turn, num_row_groups, num_out_groups):
    """(Number of a tile's 128 rows of x, number of its part of the matrix)."""
    first = turn // (BAND * num_out_groups) * BAND
    within = turn - first * num_out_groups
    num_rows = gl.minimum(num_row_groups - first, BAND)
    return first + within % num_rows, within // num_rows


@gluon.jit
def _load(
    buffers, x_tiles, matrix_tiles, num_row_groups, num_out_groups, num_out,
    NUM_IN: gl.constexpr, BLOCK_IN: gl.constexpr, STAGES: gl.constexpr, IS_GATED: gl.constexpr,
):  # fmt: skip
    x_codes, codes, ready, free = buffers
    number = 0
    for turn in range(gl.program_id(0), num_row_groups * num_out_groups, gl.num_programs(0)):
        row_group, out_group = _tile_of(turn, num_row_groups, num_out_groups)
        row = row_group * 128
        matrix_row = out_group * (64 if IS_GATED else 128)
        # The first row of the second half of the tile.
        other_row = matrix_row + (num_out if IS_GATED else 64)
        for step in range(num_steps(NUM_IN, BLOCK_IN)):
            stage = number % STAGES
            start = step * STAGE_IN
            landed = ready.index(stage)
            mbarrier.wait(free.index(stage), (number // STAGES & 1) ^ 1)
            mbarrier.expect(landed, 256 * 128)
            copy_tile(matrix_tiles, [matrix_row, start], landed, codes.index(stage * 2))
            copy_tile(matrix_tiles, [other_row, start], landed, codes.index(stage * 2 + 1))
            copy_tile(x_tiles, [row, start], landed, x_codes.index(stage * 2))
            copy_tile(x_tiles, [row + 64, start], landed, x_codes.index(stage * 2 + 1))
            number += 1


@gluon.jit
def _add_stage(
    product, x_codes, codes, ready, number, STAGES: gl.constexpr, HALF: gl.constexpr, is_first: gl.constexpr
):
    stage = number % STAGES
    mbarrier.wait(ready.index(stage), number // STAGES & 1)
    tile = codes.index(stage).permute((1, 0))
    return warpgroup_mma(x_codes.index(stage * 2 + HALF), tile, product, use_acc=not is_first, is_async=True)


@gluon.jit
def _sum_of_block(
    x_codes, codes, ready, free, number, BLOCK_IN: gl.constexpr, STAGES: gl.constexpr, HALF: gl.constexpr
):
    """The sums of BLOCK_IN inputs, from zero."""
    product = gl.zeros([64, 128], gl.float32, SUMS)
    for part in gl.static_range(BLOCK_IN // 128):
        product = _add_stage(product, x_codes, codes, ready, number + part, STAGES, HALF, part == 0)
    product = warpgroup_mma_wait(0, deps=(product,))
    thread_barrier()
    for part in gl.static_range(BLOCK_IN // 128):
        mbarrier.arrive(free.index((number + part) % STAGES), count=1)
    return product


@gluon.jit
def _sums(
    buffers, number,
    NUM_IN: gl.constexpr, BLOCK_IN: gl.constexpr, SHARES: gl.constexpr, STAGES: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """64 rows times 128 rows of the matrix, over all inputs."""
    x_codes, codes, ready, free = buffers
    NUM_BLOCKS: gl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    PER_SHARE: gl.constexpr = (NUM_BLOCKS + SHARES - 1) // SHARES
    pair_codes = codes._reinterpret(gl.float8e4nv, [STAGES, 128, 128], MATRIX_TILE)
    sums = gl.zeros([64, 128], gl.float32, SUMS)
    for first in range(0, NUM_BLOCKS, PER_SHARE):
        of_share = gl.zeros([64, 128], gl.float32, SUMS)
        for _ in range(first, gl.minimum(first + PER_SHARE, NUM_BLOCKS)):
            of_share += _sum_of_block(x_codes, pair_codes, ready, free, number, BLOCK_IN, STAGES, HALF)
            number += BLOCK_IN // 128
        sums += of_share
    return sums


@gluon.jit
def _multiply(
    buffers, staged, row_scales, scales, gated, output, num_row_groups, num_out_groups, num_rows, num_out,
    scale_stride, gated_stride,
    NUM_IN: gl.constexpr, BLOCK_IN: gl.constexpr, SHARES: gl.constexpr, STAGES: gl.constexpr, HALF: gl.constexpr,
    IS_GATED: gl.constexpr, HAS_GATED_INPUT: gl.constexpr,
):  # fmt: skip
    """64 rows of every tile: the first of them, or the second."""
    WIDTH: gl.constexpr = 64 if IS_GATED else 128
    LINES: gl.constexpr = lines_of(WIDTH)
    number = 0
    for turn in range(gl.program_id(0), num_row_groups * num_out_groups, gl.num_programs(0)):
        row_group, out_group = _tile_of(turn, num_row_groups, num_out_groups)
        first_row = row_group * 128 + HALF * 64
        first_column = out_group * WIDTH
        sums = _sums(buffers, number, NUM_IN, BLOCK_IN, SHARES, STAGES, HALF)
        number += num_steps(NUM_IN, BLOCK_IN)
        rows = first_row + gl.arange(0, 64, gl.SliceLayout(1, SUMS))
        sums *= gl.expand_dims(gl.load(row_scales + rows, mask=rows < num_rows, other=0.0), 1)
        local = gl.arange(0, 128, gl.SliceLayout(0, SUMS))
        # Beyond the last column that one's is taken; the store drops the result.
        matrix_row = gl.minimum(first_column + local % WIDTH, num_out - 1) + local // WIDTH * num_out
        sums *= gl.expand_dims(gl.load(scales + matrix_row.to(gl.int64) * scale_stride).to(gl.float32), 0)
        result = sums.to(output.dtype.element_ty)
        if IS_GATED:
            gate, up = gl.split(gl.permute(gl.reshape(result, [64, 2, 64]), [0, 2, 1]))
            result = let_through(gate, up)
        # Through shared memory, so that lines are whole.
        staged.store(result)
        thread_barrier()
        row = gl.expand_dims(first_row + gl.arange(0, 64, gl.SliceLayout(1, LINES)), 1)
        column = gl.expand_dims(first_column + gl.arange(0, WIDTH, gl.SliceLayout(0, LINES)), 0)
        is_there = (row < num_rows) & (column < num_out)
        numbers = staged.load(LINES)
        if HAS_GATED_INPUT:
            given = gl.load(gated + row.to(gl.int64) * gated_stride + column, mask=is_there, other=0.0)
            numbers = let_through(numbers, given)
        gl.store(output + row.to(gl.int64) * num_out + column, numbers, mask=is_there)
        thread_barrier()


# Not specialized: one kernel serves all steps.
@gluon.jit(do_not_specialize=["num_rows"])
def many_rows_kernel(
    x_tiles,
    row_scales,
    matrix_tiles,
    scales,
    gated,
    output,
    num_rows,
    num_out,
    scale_stride,
    gated_stride,
    NUM_IN: gl.constexpr,
    BLOCK_IN: gl.constexpr,
    SHARES: gl.constexpr,
    STAGES: gl.constexpr,
    IS_GATED: gl.constexpr,  # GeGLU
    HAS_GATED_INPUT: gl.constexpr,  # gelu, times `gated`
    IS_DEPENDENT: gl.constexpr,
):
    OUT: gl.constexpr = output.dtype.element_ty
    WIDTH: gl.constexpr = 64 if IS_GATED else 128
    STAGED: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, WIDTH], OUT)
    x_codes = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 64, STAGE_IN], TILE)
    codes = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * 2, 64, STAGE_IN], TILE)
    first_staged = gl.allocate_shared_memory(OUT, [64, WIDTH], STAGED)
    second_staged = gl.allocate_shared_memory(OUT, [64, WIDTH], STAGED)
    buffers = (x_codes, codes, barriers(STAGES, 1), barriers(STAGES, 2))
    # Before the other partitions begin, which read what kernels before this one wrote.
    start_after_previous(IS_DEPENDENT)
    num_row_groups = gl.cdiv(num_rows, 128)
    num_out_groups = gl.cdiv(num_out, WIDTH)
    gl.warp_specialize(
        [
            (
                _load,
                (buffers, x_tiles, matrix_tiles, num_row_groups, num_out_groups, num_out,
                 NUM_IN, BLOCK_IN, STAGES, IS_GATED),
            ),
            (
                _multiply,
                (buffers, first_staged, row_scales, scales, gated, output, num_row_groups, num_out_groups, num_rows,
                 num_out, scale_stride, gated_stride, NUM_IN, BLOCK_IN, SHARES, STAGES, 0, IS_GATED, HAS_GATED_INPUT),
            ),
            (
                _multiply,
                (buffers, second_staged, row_scales, scales, gated, output, num_row_groups, num_out_groups, num_rows,
                 num_out, scale_stride, gated_stride, NUM_IN, BLOCK_IN, SHARES, STAGES, 1, IS_GATED, HAS_GATED_INPUT),
            ),
        ],
        [4, 4],
        [208, 208],
    )  # fmt: skip
