"""Heads as a projection left them, where attention prepares them itself: normalised and rotated as
`head_inputs/triton.py` does, with the same sums. And the newest key and value of a row, which are put into tiles: when
these are copied, they may not have been made.
"""

from facet.kernels.paged_attention.decode.hopper.language import gl, gluon, rounded_product

# Rows of a tile that are changed together, of which one is the newest token's.
NEWEST = gl.constexpr(16)


@gluon.constexpr_function
def halves_of(head_dim):
    """Eight dimensions of a half for each thread: the order in which their squares are added."""
    lanes = head_dim // 16
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [4, 1], [1, 0])


@gluon.jit
def half_dims(HEAD_DIM: gl.constexpr):
    return gl.expand_dims(gl.arange(0, HEAD_DIM // 2, gl.SliceLayout(0, halves_of(HEAD_DIM))), 0)


@gluon.jit
def load_halves(vectors, mask, HEAD_DIM: gl.constexpr):
    """`vectors`: where they begin, [vectors, 1]."""
    low = vectors + half_dims(HEAD_DIM)
    return gl.load(low, mask=mask, other=0.0), gl.load(low + HEAD_DIM // 2, mask=mask, other=0.0)


@gluon.jit
def normed(low, high, weight, eps, HEAD_DIM: gl.constexpr):
    """`weight`: None where it is one."""
    dtype: gl.constexpr = low.dtype
    low, high = low.to(gl.float32), high.to(gl.float32)
    squares = gl.sum(rounded_product(low, low), 1) + gl.sum(rounded_product(high, high), 1)
    factors = gl.expand_dims(gl.rsqrt(squares / HEAD_DIM + eps), 1)
    low, high = low * factors, high * factors
    if weight is not None:
        dims = half_dims(HEAD_DIM)
        low, high = low * gl.load(weight + dims), high * gl.load(weight + HEAD_DIM // 2 + dims)
    return low.to(dtype), high.to(dtype)


@gluon.jit
def _product(a, b):
    return (a.to(gl.float32) * b.to(gl.float32)).to(a.dtype).to(gl.float32)


@gluon.jit
def rotated(low, high, angles, HEAD_DIM: gl.constexpr, PAIRS: gl.constexpr):
    dims = half_dims(HEAD_DIM)
    cos = gl.load(angles + dims, mask=dims < PAIRS, other=0.0)
    sin = gl.load(angles + PAIRS + dims, mask=dims < PAIRS, other=0.0)
    new_low = (_product(low, cos) - _product(high, sin)).to(low.dtype)
    new_high = (_product(high, cos) + _product(low, sin)).to(low.dtype)
    return gl.where(dims < PAIRS, new_low, low), gl.where(dims < PAIRS, new_high, high)


@gluon.jit
def prepared_queries(
    projected, row, kv_head, row_stride, weight, angles, eps,
    ROWS: gl.constexpr, GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, PAIRS: gl.constexpr,
):  # fmt: skip
    """Halves of the heads of a group, and zeros: rows of both."""
    member = gl.expand_dims(gl.arange(0, ROWS, gl.SliceLayout(1, halves_of(HEAD_DIM))), 1)
    vectors = projected + row.to(gl.int64) * row_stride + (kv_head * GROUP + member) * HEAD_DIM
    low, high = load_halves(vectors, member < GROUP, HEAD_DIM)
    low, high = normed(low, high, weight, eps, HEAD_DIM)
    return rotated(low, high, angles, HEAD_DIM, PAIRS)


@gluon.jit
def same_vector(pointer, HEAD_DIM: gl.constexpr):
    """Halves of one vector, in as many rows as are changed together."""
    nothing = gl.expand_dims(gl.arange(0, NEWEST, gl.SliceLayout(1, halves_of(HEAD_DIM))) * 0, 1)
    return load_halves(pointer + nothing, nothing == 0, HEAD_DIM)


@gluon.jit
def store_vector(pointer, low, high, HEAD_DIM: gl.constexpr):
    row = gl.expand_dims(gl.arange(0, NEWEST, gl.SliceLayout(1, halves_of(HEAD_DIM))), 1)
    places = pointer + row * 0 + half_dims(HEAD_DIM)
    gl.store(places, low, mask=row == 0)
    gl.store(places + HEAD_DIM // 2, high, mask=row == 0)


@gluon.jit
def put_in_place(tile, row, low, high, HEAD_DIM: gl.constexpr):
    """One of the tile's rows becomes the vector whose halves these are."""
    LAYOUT: gl.constexpr = halves_of(HEAD_DIM)
    HALF: gl.constexpr = HEAD_DIM // 2
    rows = gl.expand_dims(gl.arange(0, NEWEST, gl.SliceLayout(1, LAYOUT)), 1)
    for part in gl.static_range(tile.shape[0] // NEWEST):
        if row // NEWEST == part:
            some = tile.slice(part * NEWEST, NEWEST, 0)
            is_newest = rows == row % NEWEST
            some.slice(0, HALF, 1).store(gl.where(is_newest, low, some.slice(0, HALF, 1).load(LAYOUT)))
            some.slice(HALF, HALF, 1).store(gl.where(is_newest, high, some.slice(HALF, HALF, 1).load(LAYOUT)))
