"""Chooses where a matrix product of few rows goes through rings of tiles, and how, by its shape alone.

Sums are one chain (`chain.py`), whatever the ring. Times are as in `config.py`, most of them of `rings_gpu`.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Ring:
    """A warp owns 16 rows of the weight; tiles of `block_in` columns come through a ring (`ring_kernel.py`)."""

    num_rows: int  # 8 or 16, some of them padding
    block_in: int
    num_stages: int  # tiles that a ring holds
    num_warps: int = 1

    @property
    def tile_bytes(self) -> int:
        """Of the weight and of x."""
        return 2 * self.block_in * (16 * self.num_warps + self.num_rows)


@dataclass(frozen=True, slots=True)
class WarpgroupRing:
    """A program owns `num_out` rows of the weight, gates and ups together (`warpgroup_ring_kernel.py`)."""

    num_out: int  # a power of two from 8 to 256, or the sum of two; for gates and ups, 16 each at least
    block_in: int
    num_stages: int  # tiles that a ring holds
    num_rows: int = 8  # of x, or 16, 32 or 64, some of them padding

    @property
    def wide_out(self) -> int:
        """The larger power of two."""
        return 1 << (self.num_out.bit_length() - 1)

    @property
    def more_out(self) -> int:
        """The smaller one, or 0."""
        return self.num_out - self.wide_out

    @property
    def tile_bytes(self) -> int:
        """Of the weight and of x."""
        return 2 * self.block_in * (self.num_out + self.num_rows)

    @property
    def num_bytes(self) -> int:
        """Of shared memory, but for barriers. Behind the rows there is room for others, which are read and not used."""
        row_bytes = 2 * self.block_in * self.num_rows
        return self.num_stages * self.tile_bytes + -(-(64 - self.num_rows) * 128 // row_bytes) * row_bytes


# The most rows of rings of warps, of those of warpgroups, and of the latter where outputs or inputs are as few as that.
MAX_WARP_ROWS, _MOST_ROWS, _MOST_NARROW_ROWS = 8, 64, 128
_NARROW = 512
# Outputs and inputs that the tiles of chains divide evenly: 8 rows of 31B's gate_up take 104.0, in rings 105.3.
_BETTER_IN_CHAINS = frozenset({(43008, 5376)})
# Beyond so many, as in a head, both read the weight as fast as memory gives it.
_MOST_RING_OUTPUTS = 65536
# Of rings of warps. With 16 and not 10, down of E4B takes 18.3 and not 17.6, o 5.7 and not 4.6; with 5, 25.0 and 5.7.
_MOST_STAGES, _LEAST_STAGES = 10, 4
# Of shared memory, for all programs that a multiprocessor holds if they are spread evenly.
_RING_BYTES, _WARPGROUP_RING_BYTES = 192 << 10, 220 << 10
# Multiprocessors read through one path in pairs. As many programs as there are pairs are well, and as many as there are
# multiprocessors, or twice as many, but not a few more: some pairs would have as much again to read as the others.
_NUM_MULTIPROCESSORS, _NUM_PAIRS = 132, 66
# Where inputs are as few as that, it matters less: E2B qkv of a global layer has 80 programs.
_FEW_INPUTS = 2048
# From where on cuBLAS, and tiles of many rows, are better sooner.
_MANY_INPUTS, _VERY_MANY_INPUTS = 5376, 10240
# Outputs of 132 programs that have 32 or 192 each.
_FEW_OUTPUTS, _MOST_OUTPUTS_OF_32, _MOST_EVEN_OUTPUTS = 3072, 132 * 32, 132 * 192
# Tiles of so many outputs have 64 inputs, and rings of them no more stages: that leaves room for the next product's.
_WIDE, _WIDE_STAGES = 160, 7


def choose_ring(num_rows: int, num_out: int, num_in: int) -> Ring | WarpgroupRing | None:
    """In one chain of sums.

    1 and 8 rows, through rings of warps and by `choose_chain`, which is much the same for both: E4B per-layer
    projection 1.2, 1.3 for 2.5. 31B down 59.1, 59.3 for 67.0, o 22.1, 22.8 for 26.4. More rows are padded to no fewer
    than tiles have.
    """
    if not 0 < num_rows <= _MOST_NARROW_ROWS:
        return None  # at once: every product of a prompt asks
    ring = warpgroup_ring_of(num_rows, num_out, num_in)
    if ring is not None:
        return ring
    is_served = num_out <= _MOST_RING_OUTPUTS and (num_out, num_in) not in _BETTER_IN_CHAINS
    return ring_of(num_out, num_in) if is_served and num_rows <= MAX_WARP_ROWS else None


def choose_usual_ring(num_rows: int, num_out: int, num_in: int) -> Ring | WarpgroupRing | None:
    """Where sums need not be one chain: instead of tensor core tiles, of cuBLAS, and of sums in float32 of one row.

    Some of the last are faster alone; but a step of one request of E4B takes 3.43 ms with them and 3.24 with rings
    throughout. Not where cuBLAS splits long sums: 8 rows of E2B's down of a wide layer take 13.5, in rings 14.7, a row
    of 31B's 53.8 and 59.1.
    """
    is_for_all = num_in <= _VERY_MANY_INPUTS or _FEW_OUTPUTS < num_out <= _MOST_OUTPUTS_OF_32
    return choose_ring(num_rows, num_out, num_in) if is_for_all or num_rows > MAX_WARP_ROWS else None


def ring_of(num_out: int, num_in: int) -> Ring:
    """As deep as shared memory allows, up to a bound; where outputs are many, few wide tiles."""
    num_programs = -(-num_out // (16 * _NUM_MULTIPROCESSORS))  # of a multiprocessor
    deep, wide = Ring(MAX_WARP_ROWS, 128, _MOST_STAGES), Ring(MAX_WARP_ROWS, 256, 3)
    num_stages = min(_MOST_STAGES, _RING_BYTES // (num_programs * deep.tile_bytes))
    ring = wide if num_stages < _LEAST_STAGES else replace(deep, num_stages=num_stages)
    return replace(ring, num_stages=max(2, min(ring.num_stages, -(-num_in // ring.block_in))))


def warpgroup_ring_of(num_rows: int, num_out: int, num_in: int) -> WarpgroupRing | None:
    """None where others are faster. As deep as shared memory allows, up to a bound.

    1 and 8 rows, by warps and by warpgroups: E4B down 17.3 and 15.6, 17.6 and 16.0; qkv 6.0 and 5.4, 6.2 and 5.5; q
    5.4 and 3.4, 5.5 and 3.4; o 4.6 and 4.0, 4.9 and 4.0, of a global layer 7.8 and 6.6, 8.2 and 6.7; gate_up 26.0 and
    25.0, 26.6 and 25.4; per-layer gate 4.7 and 2.9. 12B down 38.4 and 27.2, 39.4 and 27.6. 26B-A4B qkv 11.5 and 11.1,
    11.9 and 11.4; o 8.1 and 7.0, 8.7 and 7.2. 31B qkv 42.9 and 39.3, 44.3 and 39.9.

    16, 32 and 64 rows, by tiles or cuBLAS, and by warpgroups: E4B qkv 7.1 and 5.6, 7.1 and 5.6, 7.1 and 6.2, of a
    global layer 10.4 and 8.6, 10.7 and 9.1, 10.7 and 10.1; o 6.0 and 4.2, 6.0 and 4.3, 6.2 and 4.6; down 17.6 and 16.3,
    17.8 and 17.3, 18.7 and 20.0; gate_up 27.6 and 26.2, 29.9 and 26.6, 30.5 and 27.6; per-layer gate 5.6 and 3.1, 7.0
    and 3.5, 7.4 and 3.5, with 100 rows 7.4 and 4.0; projection 2.6 and 1.6, 2.3 and 1.8, 2.6 and 2.0, with 100 rows 3.0
    and 2.4. E2B gate_up 13.1 and 9.9, 13.3 and 10.1, 13.8 and 11.2. 12B down 34.8 and 28.4, 33.2 and 29.9, 34.2 and
    32.8.

    Steps of 1, 8 and 32 requests, in milliseconds, without tiles that are sums of powers of two and rings for 12B's
    down, and with them: E4B 3.33 and 3.24, 3.56 and 3.43, 4.06 and 3.91; 12B 6.40 and 6.24, 6.90 and 6.70, 8.65 and
    8.11; E2B 2.01 and 1.99, 2.10 and 2.12, 2.71 and 2.36 (benchmarks/step_gpu.py --batch-invariant).
    """
    tiles = _tiles_of(num_rows, num_out, num_in)
    if tiles is None:
        return None
    outputs, block_in = tiles
    is_narrow = num_out <= _NARROW or num_in <= _NARROW
    num_padded = next(rows for rows in (8, 16, 32, 64) if num_rows <= rows or rows == 64)
    ring = WarpgroupRing(outputs, block_in, _MOST_STAGES, num_rows=min(32, num_padded) if is_narrow else num_padded)
    num_programs = min(2, -(-num_out // (ring.num_out * _NUM_MULTIPROCESSORS)))  # of a multiprocessor
    num_behind = ring.num_bytes - ring.num_stages * ring.tile_bytes
    num_stages = (_WARPGROUP_RING_BYTES // num_programs - num_behind) // ring.tile_bytes
    most_stages = _WIDE_STAGES if outputs >= _WIDE else _MOST_STAGES
    return replace(ring, num_stages=max(2, min(most_stages, num_stages, -(-num_in // ring.block_in))))


def _tiles_of(num_rows: int, num_out: int, num_in: int) -> tuple[int, int] | None:
    """(Outputs, inputs), for as many programs as are well."""
    if num_out <= _NARROW:
        return (16, 256) if num_in > _NARROW or num_rows > MAX_WARP_ROWS else None
    if num_in <= _NARROW:
        return (32 if num_rows <= 64 else 64, 256) if num_rows > MAX_WARP_ROWS else None
    if num_rows > _MOST_ROWS or num_out > _MOST_RING_OUTPUTS:
        return None
    if num_in > _MANY_INPUTS:
        return _tiles_of_many_inputs(num_rows, num_out, num_in)
    if num_out <= (_MOST_OUTPUTS_OF_32 if num_in > num_out else 2816 if num_rows <= 16 else 4096):
        return 32, 256
    num_programs = -(-num_out // 64)
    is_even = num_programs <= _NUM_PAIRS or _NUM_PAIRS * 1.4 <= num_programs <= _NUM_MULTIPROCESSORS
    if is_even or (num_programs <= _NUM_MULTIPROCESSORS and num_in <= _FEW_INPUTS):
        return 64, 256 if num_rows <= 16 else 128
    if 0.9 <= num_programs / (2 * _NUM_MULTIPROCESSORS) <= 1:
        return (64, 128) if num_rows <= 32 else None
    if num_programs <= _NUM_MULTIPROCESSORS or num_in >= _MANY_INPUTS:
        return None
    if num_out <= _MOST_EVEN_OUTPUTS:
        outputs = _even_outputs(-(-num_out // _NUM_MULTIPROCESSORS))
        return outputs, 64 if outputs >= _WIDE else 128
    return (128, 128) if num_programs <= 4 * _NUM_MULTIPROCESSORS else None


def _tiles_of_many_inputs(num_rows: int, num_out: int, num_in: int) -> tuple[int, int] | None:
    """Few programs. With 128 outputs for each, o and down of 31B are faster alone, 22.2 and 57.5; but a step of one
    request, where less of the next product's ring finds room beside theirs, takes 15.92 and not 15.14 milliseconds."""
    if num_out > _MOST_OUTPUTS_OF_32:
        return None
    if num_in > _VERY_MANY_INPUTS:
        if num_out > _FEW_OUTPUTS:
            return 32, 256
        return (16, 256) if num_rows <= (32 if num_in <= 12288 else MAX_WARP_ROWS) else None
    if num_rows > 32:
        return None
    return (32, 256) if num_in <= 8192 else (64, 256 if num_rows <= 16 else 128)


def _even_outputs(least: int) -> int:
    """The fewest that a tile can have, of at least so many; as many gates as ups."""
    sizes = (16 << a for a in range(5))
    return min(size for size in (*sizes, *((16 << a) + (16 << b) for a in range(4) for b in range(a))) if size >= least)
