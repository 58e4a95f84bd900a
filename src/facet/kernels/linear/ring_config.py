"""Chooses where a matrix product of few rows goes through rings of tiles, and how, by its shape alone.

Sums are one chain (`chain.py`), whatever the ring. Times are as in `config.py`, most of them of `rings_gpu`.
"""

from dataclasses import dataclass, replace

from facet.kernels.linear.config import choose_config


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

    num_out: int  # a power of two from 8 to 256, or the sum of two; of gates and ups 16 each at least
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
# Multiprocessors read through one path in pairs: 80 bytes a nanosecond for a program that has it to itself, 40 for each
# of two (read off the times here). So many programs as there are pairs are well, and as many as there are
# multiprocessors, but not a few more than pairs: 31B's o, 84 programs, takes 26.4, through rings of warps 22.1.
_NUM_MULTIPROCESSORS, _NUM_PAIRS = 132, 66
# With so many inputs, warpgroups have their way with few programs and few rows alone.
_MANY_INPUTS, _VERY_MANY_INPUTS = 5376, 10240
_MOST_ROWS_OF_MANY_INPUTS, _MOST_OUTPUTS_OF_VERY_MANY_INPUTS = 32, 3072


def choose_ring(num_rows: int, num_out: int, num_in: int) -> Ring | WarpgroupRing | None:
    """In one chain of sums.

    1 and 8 rows, through rings of warps and by `choose_chain`, which is much the same for both: E4B gate_up 25.7, 26.1
    for 27.6; per-layer projection 1.2, 1.3 for 2.5. 31B down 59.1, 59.3 for 67.0, o 22.1, 22.8 for 26.4, of a global
    layer 44.3, 44.8; qkv of a global layer 46.0, 47.0 for 56.8. More rows are padded to no fewer than tiles have.
    """
    if not 0 < num_rows <= _MOST_NARROW_ROWS:
        return None  # at once: every product of a prompt asks
    if _is_for_warpgroups(num_rows, num_out, num_in):
        return warpgroup_ring_of(num_rows, num_out, num_in)
    is_served = num_out <= _MOST_RING_OUTPUTS and (num_out, num_in) not in _BETTER_IN_CHAINS
    return ring_of(num_out, num_in) if is_served and num_rows <= MAX_WARP_ROWS else None


def _is_for_warpgroups(num_rows: int, num_out: int, num_in: int) -> bool:
    """1 and 8 rows, by warps and by warpgroups: E4B down 17.3 and 15.6, 17.6 and 16.0; qkv 6.0 and 5.4, 6.2 and 5.5; q
    5.4 and 3.4, 5.5 and 3.4; o 4.6 and 4.0, 4.9 and 4.0, of a global layer 7.8 and 6.6, 8.2 and 6.7; per-layer gate 4.7
    and 2.9. 26B-A4B qkv 11.5 and 11.1, 11.9 and 11.4; o 8.1 and 7.0, 8.7 and 7.2. 31B qkv 42.9 and 39.3, 44.3 and 39.9.

    16, 32 and 64 rows, by tiles or cuBLAS, and by warpgroups: E4B qkv 7.1 and 5.6, 7.1 and 5.6, 7.1 and 6.2, of a
    global layer 10.4 and 8.6, 10.7 and 9.1, 10.7 and 10.1; o 6.0 and 4.2, 6.0 and 4.3, 6.2 and 4.6; down 17.6 and 16.3,
    17.8 and 17.3, 18.7 and 20.0; per-layer gate 5.6 and 3.1, 7.0 and 3.5, 7.4 and 3.5, with 100 rows 7.4 and 4.0;
    projection 2.6 and 1.6, 2.3 and 1.8, 2.6 and 2.0, with 100 rows 3.0 and 2.4. 26B-A4B gate_up 11.1 and 7.5, 8.3 and
    7.5, 9.8 and 7.8; o 10.1 and 7.2, 10.2 and 7.5, 9.2 and 8.6. A step of E4B with one request takes 3.36 ms and not
    3.45, with 32 4.13 and not 4.57, with 100 5.65 and not 5.84 (benchmarks/step_gpu.py --batch-invariant).
    """
    if num_out <= _NARROW or num_in <= _NARROW:
        return num_in > _NARROW or num_rows > MAX_WARP_ROWS
    if num_in > _VERY_MANY_INPUTS:
        return num_rows <= MAX_WARP_ROWS and num_out <= _MOST_OUTPUTS_OF_VERY_MANY_INPUTS
    num_programs = -(-num_out // 64)
    if num_in > _MANY_INPUTS:
        return num_rows <= _MOST_ROWS_OF_MANY_INPUTS and num_programs <= _NUM_PAIRS
    # Up to half as many again as pairs, rings of warps are better, and tiles of many rows.
    is_even = num_programs <= _NUM_PAIRS or _NUM_PAIRS * 1.4 <= num_programs <= _NUM_MULTIPROCESSORS
    is_twice_even = 0.9 <= num_programs / (2 * _NUM_MULTIPROCESSORS) <= 1 and num_rows <= 32
    return num_rows <= _MOST_ROWS and (is_even or is_twice_even)


def choose_usual_ring(num_rows: int, num_out: int, num_in: int) -> Ring | WarpgroupRing | None:
    """Where sums need not be one chain: instead of tensor core tiles and of cuBLAS.

    Not instead of the float32 kernel. Alone, some rings are faster with one row; but a step of one request of E4B took
    3.33 ms with these and not 3.29, and 3.54 with rings throughout. Nor where cuBLAS may split long sums: 8 rows of
    31B's down take 57.0, in rings 59.3.
    """
    if num_rows <= MAX_WARP_ROWS:
        config = choose_config(num_rows, num_out, num_in)
        if num_in > _VERY_MANY_INPUTS or (config is not None and not config.is_dot):
            return None
    return choose_ring(num_rows, num_out, num_in)


def ring_of(num_out: int, num_in: int) -> Ring:
    """As deep as shared memory allows, up to a bound; where outputs are many, few wide tiles."""
    num_programs = -(-num_out // (16 * _NUM_MULTIPROCESSORS))  # of a multiprocessor
    deep, wide = Ring(MAX_WARP_ROWS, 128, _MOST_STAGES), Ring(MAX_WARP_ROWS, 256, 3)
    num_stages = min(_MOST_STAGES, _RING_BYTES // (num_programs * deep.tile_bytes))
    ring = wide if num_stages < _LEAST_STAGES else replace(deep, num_stages=num_stages)
    return replace(ring, num_stages=max(2, min(ring.num_stages, -(-num_in // ring.block_in))))


def warpgroup_ring_of(num_rows: int, num_out: int, num_in: int) -> WarpgroupRing:
    """As deep as shared memory allows, up to a bound."""
    ring = _tiles_of(num_rows, num_out, num_in)
    num_programs = min(2, -(-num_out // (ring.num_out * _NUM_MULTIPROCESSORS)))  # of a multiprocessor
    num_behind = ring.num_bytes - ring.num_stages * ring.tile_bytes
    num_stages = (_WARPGROUP_RING_BYTES // num_programs - num_behind) // ring.tile_bytes
    return replace(ring, num_stages=max(2, min(_MOST_STAGES, num_stages, -(-num_in // ring.block_in))))


def _tiles_of(num_rows: int, num_out: int, num_in: int) -> WarpgroupRing:
    """Outputs for as many programs as are well."""
    num_padded = next(rows for rows in (8, 16, 32, 64) if num_rows <= rows or rows == 64)
    if num_out <= _NARROW or num_in > _VERY_MANY_INPUTS:
        return WarpgroupRing(16, 256, _MOST_STAGES, num_rows=min(32, num_padded))
    if num_in <= _NARROW:
        return WarpgroupRing(32 if num_rows <= 64 else 64, 256, _MOST_STAGES, num_rows=min(32, num_padded))
    if num_in <= 8192 and num_out <= (2816 if num_rows <= 16 else 4096):
        return WarpgroupRing(32, 256, _MOST_STAGES, num_rows=num_padded)
    block_in = 256 if num_rows <= 16 and num_out <= _NUM_MULTIPROCESSORS * 64 else 128
    return WarpgroupRing(64, block_in, _MOST_STAGES, num_rows=num_padded)
