"""What threads hold of tiles of shuffled codes and of their sums, and how sums become results, in Gluon.

Tensors are [threads, tiles, row tiles]: every thread of the program, the tiles of 16 outputs that its warp multiplies,
and the tiles of 8 rows that it multiplies them by. Thread 4 g + t of a warp holds outputs g and g + 8 of a tile. The
warps of a program are NUM_OUT_WARPS x NUM_IN_WARPS: the latter take blocks of inputs in turn, and their sums are added
at the end, in a fixed order.
"""

from facet.kernels.quantized.shuffled.language import gl, gluon


@gluon.jit
def axis(LENGTH: gl.constexpr, DIM: gl.constexpr, LAYOUT: gl.constexpr):
    """0, 1, ... along a dimension of tensors that have four."""
    if DIM == 0:
        numbers = gl.arange(0, LENGTH, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT))))
        return gl.expand_dims(gl.expand_dims(gl.expand_dims(numbers, 1), 2), 3)
    elif DIM == 1:
        numbers = gl.arange(0, LENGTH, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT))))
        return gl.expand_dims(gl.expand_dims(gl.expand_dims(numbers, 0), 2), 3)
    elif DIM == 2:
        numbers = gl.arange(0, LENGTH, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, LAYOUT))))
        return gl.expand_dims(gl.expand_dims(gl.expand_dims(numbers, 0), 1), 3)
    else:
        numbers = gl.arange(0, LENGTH, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT))))
        return gl.expand_dims(gl.expand_dims(gl.expand_dims(numbers, 0), 1), 2)


@gluon.jit
def axis_of_three(LENGTH: gl.constexpr, DIM: gl.constexpr, LAYOUT: gl.constexpr):
    """0, 1, ... along a dimension of tensors that have three."""
    if DIM == 0:
        numbers = gl.arange(0, LENGTH, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
        return gl.expand_dims(gl.expand_dims(numbers, 1), 2)
    elif DIM == 1:
        numbers = gl.arange(0, LENGTH, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
        return gl.expand_dims(gl.expand_dims(numbers, 0), 2)
    else:
        numbers = gl.arange(0, LENGTH, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
        return gl.expand_dims(gl.expand_dims(numbers, 0), 1)


@gluon.jit
def words_of(vectors, LAYOUT: gl.constexpr):
    """The four words of each thread's vector, apart."""
    halves = gl.reshape(vectors, [vectors.shape[0], vectors.shape[1], vectors.shape[2], 2, 2])
    even, odd = gl.split(halves)
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True),
        gl.convert_layout(second, LAYOUT, assert_trivial=True),
        gl.convert_layout(third, LAYOUT, assert_trivial=True),
        gl.convert_layout(fourth, LAYOUT, assert_trivial=True),
    )


@gluon.jit
def gelu(gate):
    """The tanh form: gate * (1 + tanh(u)) / 2 is gate * sigmoid(2 * u)."""
    return gate / (1.0 + gl.exp(-1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)))


@gluon.jit
def opened(gate, up):
    """gelu(gate) * up, rounded where the reference rounds."""
    return (gelu(gate.to(gl.float32)).to(gl.bfloat16).to(gl.float32) * up.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def sum_warps(sums, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr, LAYOUT: gl.constexpr):
    """Adds the sums of the warps that share outputs: [threads of NUM_OUT_WARPS, tiles, row tiles]."""
    if NUM_IN_WARPS > 1:
        sums = gl.sum(gl.reshape(sums, [NUM_IN_WARPS, 32 * NUM_OUT_WARPS, sums.shape[1], sums.shape[2]]), 0)
        sums = gl.convert_layout(sums, LAYOUT, assert_trivial=True)
    return sums


@gluon.jit
def sums_of_warps(sums, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr, LAYOUT: gl.constexpr):
    """Adds each of a thread's four sums over warps, one after the other: joined, with fewer barriers, a layer of E4B
    takes 5 us more."""
    return (
        sum_warps(sums[0], NUM_OUT_WARPS, NUM_IN_WARPS, LAYOUT),
        sum_warps(sums[1], NUM_OUT_WARPS, NUM_IN_WARPS, LAYOUT),
        sum_warps(sums[2], NUM_OUT_WARPS, NUM_IN_WARPS, LAYOUT),
        sum_warps(sums[3], NUM_OUT_WARPS, NUM_IN_WARPS, LAYOUT),
    )


@gluon.jit
def places_of_sums(
    first_tile,
    TILES: gl.constexpr, ROW_TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """(tile, g, first of the two rows), of sums of warps."""
    SINGLES: gl.constexpr = gl.BlockedLayout([1, 1, 1], [32, 1, 1], [NUM_OUT_WARPS * NUM_IN_WARPS, 1, 1], [2, 1, 0])
    thread = axis_of_three(32 * NUM_OUT_WARPS, 0, SINGLES)
    tile = first_tile + thread // 32 * TILES + axis_of_three(TILES, 1, SINGLES)
    return tile, thread % 32 // 4, 8 * axis_of_three(ROW_TILES, 2, SINGLES) + thread % 4 * 2


@gluon.jit
def rounded(sums, tile, member, factors, num_tiles):
    """Sums in bfloat16, times the factors that whole rows of the matrix share. `factors` None: there are none."""
    sum_0, sum_1, sum_2, sum_3 = sums
    if factors is not None:
        place = gl.minimum(tile, num_tiles - 1) * 16 + member
        upper, lower = gl.load(factors + place), gl.load(factors + place + 8)
        sum_0 *= upper
        sum_1 *= upper
        sum_2 *= lower
        sum_3 *= lower
    return sum_0.to(gl.bfloat16), sum_1.to(gl.bfloat16), sum_2.to(gl.bfloat16), sum_3.to(gl.bfloat16)


@gluon.jit
def store_sums(
    sums, factors, first_tile, first_row, gated, output, gated_stride, num_rows, num_tiles,
    IS_GATED: gl.constexpr, HAS_GATED_INPUT: gl.constexpr,
    TILES: gl.constexpr, ROW_TILES: gl.constexpr, NUM_OUT_WARPS: gl.constexpr, NUM_IN_WARPS: gl.constexpr,
):  # fmt: skip
    """Applies the activation to sums of warps, and stores."""
    tile, member, row = places_of_sums(first_tile, TILES, ROW_TILES, NUM_OUT_WARPS, NUM_IN_WARPS)
    store_at(
        sums, factors, tile, member, first_row + row, gated, output, gated_stride, num_rows, num_tiles,
        IS_GATED, HAS_GATED_INPUT,
    )  # fmt: skip


@gluon.jit
def store_at(
    sums, factors, tile_o, member, row_o, gated, output, gated_stride, num_rows, num_tiles,
    IS_GATED: gl.constexpr, HAS_GATED_INPUT: gl.constexpr,
):  # fmt: skip
    """Like `store_sums`, with a thread's place in its tile, and its first row."""
    sum_0, sum_1, sum_2, sum_3 = rounded(sums, tile_o, member, factors, num_tiles)
    is_first = (row_o < num_rows) & (tile_o < num_tiles)
    is_second = (row_o + 1 < num_rows) & (tile_o < num_tiles)
    if IS_GATED:
        num_out = num_tiles * 8
        place_o = output + row_o * num_out + tile_o * 8 + member
        gl.store(place_o, opened(sum_0, sum_2), mask=is_first)
        gl.store(place_o + num_out, opened(sum_1, sum_3), mask=is_second)
    else:
        num_out = num_tiles * 16
        column = tile_o * 16 + member
        if HAS_GATED_INPUT:
            gated_o = gated + row_o * gated_stride + column
            sum_0 = opened(sum_0, gl.load(gated_o, mask=is_first, other=0.0))
            sum_1 = opened(sum_1, gl.load(gated_o + gated_stride, mask=is_second, other=0.0))
            sum_2 = opened(sum_2, gl.load(gated_o + 8, mask=is_first, other=0.0))
            sum_3 = opened(sum_3, gl.load(gated_o + (gated_stride + 8), mask=is_second, other=0.0))
        place_o = output + row_o * num_out + column
        gl.store(place_o, sum_0, mask=is_first)
        gl.store(place_o + num_out, sum_1, mask=is_second)
        gl.store(place_o + 8, sum_2, mask=is_first)
        gl.store(place_o + (num_out + 8), sum_3, mask=is_second)
