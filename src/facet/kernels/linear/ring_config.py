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

    num_out: int  # a power of two from 8 to 256; of gates and ups 16 at least
    block_in: int
    num_stages: int  # tiles that a ring holds
    num_rows: int = 8  # of x, or 16, 32 or 64, some of them padding

    @property
    def num_warps(self) -> int:
        return 4

    @property
    def tile_bytes(self) -> int:
        """Of the weight and of x."""
        return 2 * self.block_in * (self.num_out + self.num_rows)

    @property
    def num_bytes(self) -> int:
        """Of shared memory, but for barriers. Behind the rows there is room for others, which are read and not used."""
        row_bytes = 2 * self.block_in * self.num_rows
        return self.num_stages * self.tile_bytes + -(-(64 - self.num_rows) * 128 // row_bytes) * row_bytes


# Up to so many rows have programs that share them all, of warps or of a warpgroup; more have those of warpgroups.
MAX_WARP_ROWS = 8
# Outputs and inputs that the tiles of chains divide evenly. 1 row of 31B: qkv of a sliding layer 42.1, in rings 43.7; 8
# rows of gate_up 106.6, in rings 108.3.
_BETTER_IN_CHAINS = frozenset({(16384, 5376), (43008, 5376)})
# Beyond so many, as in a head, both read the weight as fast as memory gives it.
_MOST_RING_OUTPUTS = 65536
# With 16 and not 10, down of E4B takes 18.3 and not 17.6, o 5.7 and not 4.6; with 5, 25.0 and 5.7.
_MOST_STAGES, _LEAST_STAGES = 10, 4
# Of shared memory, for all programs that a multiprocessor holds if they are spread evenly.
_RING_BYTES, _WARPGROUP_RING_BYTES = 192 << 10, 220 << 10
_NUM_MULTIPROCESSORS = 132
# Inputs beyond which cuBLAS is faster where it may split them: 8 rows of down of 31B 58.7, in rings 62.7; of E4B 17.5
# and 17.7, but cuBLAS lets no kernel start while it ends.
_MOST_INPUTS_IN_ONE_CHAIN = 10240


# Where rings are of warpgroups: few outputs are few programs, which wait for one product after another. A step of E4B
# takes 3.45 ms and not 3.54, with 8 requests 3.63 and not 3.71 (benchmarks/step_gpu.py --batch-invariant). 1 and 8 rows
# alone, by warps and by warpgroups (benchmarks/rings_gpu.py): per-layer gate 4.8 and 2.9, 4.8 and 2.9; down 17.4 and
# 16.6, 17.7 and 16.2; o 4.6 and 4.3, 4.9 and 4.9, of a global layer 7.8 and 7.7, 8.2 and 7.5; qkv 6.0 and 6.0, 6.4 and
# 5.9. With more outputs the best that was found gains next to nothing or loses: qkv of a global layer 8.3 and 8.5, 8.7
# and 8.6; gate_up 26.0 and 26.4, 26.5 and 26.7. With inputs of a single tile they lose: per-layer projection 1.2 and
# 1.8, 1.3 and 1.8.
_MOST_WARPGROUP_OUTPUTS, _MOST_WARP_INPUTS = 3072, 512


# The most rows of narrow products, whose outputs or inputs are so few, and of others.
_MOST_NARROW_ROWS, _MOST_ROWS, _NARROW = 128, 64, 512
# With more outputs, or with many inputs, others are faster: 16 rows of 31B's down take 57.1, in rings 71.7; o 25.1 and
# 27.0, of a global layer 45.6 and 54.6; 26B-A4B qkv of a global layer 15.0 and 17.1. Or as fast: 64 rows of E4B's down
# 18.7 and 19.0; 16, 32 and 64 of its gate_up 27.3 and 27.4, 29.5 and 28.7, 30.0 and 31.3; of 31B's within 1%.
_MOST_OUTPUTS, _MOST_OUTPUTS_OF_MANY_INPUTS = 8192, 3072
_MANY_INPUTS, _MOST_INPUTS = 4096, 10240


def choose_ring(num_rows: int, num_out: int, num_in: int) -> Ring | WarpgroupRing | None:
    """In one chain of sums. 1 row of E4B: gate_up 26.3, by `choose_chain` 27.6; down 17.6, 20.0; qkv 6.2, 6.9 and 8.4,
    10.3; o 4.6, 5.7 and 7.9, 9.1; per-layer gate 4.7, 5.5, projection 1.2, 2.5. 31B: down 61.2, 67.0; qkv of a global
    layer 47.2, 56.8; o 22.6, 26.4. 26B-A4B: gate_up 7.2, 8.7; qkv 11.7, 13.5. With 8 rows up to 5% more."""
    if num_rows > MAX_WARP_ROWS:
        return _choose_ring_of_more_rows(num_rows, num_out, num_in)
    if not _is_for_rings(num_rows, num_out, num_in):
        return None
    is_for_warpgroups = num_out <= _MOST_WARPGROUP_OUTPUTS and num_in > _MOST_WARP_INPUTS
    return warpgroup_ring_of(num_rows, num_out, num_in) if is_for_warpgroups else ring_of(num_out, num_in)


def _choose_ring_of_more_rows(num_rows: int, num_out: int, num_in: int) -> WarpgroupRing | None:
    """16, 32 and 64 rows of E4B, by others and through rings: qkv 7.1 and 5.5, 7.1 and 5.6, 7.1 and 6.2; of a global
    layer 10.4 and 8.6, 10.7 and 9.1, 10.7 and 10.1; o 6.0 and 4.2, 6.0 and 4.3, 6.2 and 4.6, of a global layer 9.7 and
    6.8, 9.9 and 7.2, 9.1 and 8.3; down 17.6 and 16.3, 17.8 and 17.3; per-layer gate 5.6 and 3.1, 7.0 and 3.5, 7.4 and
    3.5, with 100 rows 7.4 and 4.0; per-layer projection 2.6 and 1.6, 2.3 and 1.8, 2.6 and 2.0, 3.0 and 2.4. 26B-A4B:
    gate_up 11.1 and 7.5, 8.3 and 7.5, 9.8 and 7.8; qkv 13.4 and 11.8, 13.0 and 11.7, 14.4 and 13.2; o 10.1 and 7.2,
    10.2 and 7.5, 9.2 and 8.6, of a global layer 15.8 and 13.8, 16.2 and 14.8."""
    if num_rows > _MOST_NARROW_ROWS:
        return None  # at once: every product of a prompt asks
    if min(num_out, num_in) > _NARROW:
        is_long = num_in > _MANY_INPUTS
        most_outputs = _MOST_OUTPUTS_OF_MANY_INPUTS if is_long else _MOST_OUTPUTS
        if num_rows > (_MOST_ROWS // 2 if is_long else _MOST_ROWS) or num_out > most_outputs or num_in > _MOST_INPUTS:
            return None
    return warpgroup_ring_of(num_rows, num_out, num_in)


def _is_for_rings(num_rows: int, num_out: int, num_in: int) -> bool:
    is_served = num_out <= _MOST_RING_OUTPUTS and (num_out, num_in) not in _BETTER_IN_CHAINS
    return is_served and 0 < num_rows <= MAX_WARP_ROWS


def choose_usual_ring(num_rows: int, num_out: int, num_in: int) -> Ring | WarpgroupRing | None:
    """Where sums need not be one chain: instead of tensor core tiles and of cuBLAS. 8 rows of E4B: qkv 6.4 for 7.0 and
    8.9 for 10.4, o 4.9 for 6.0, per-layer projection 1.3 for 2.6. 26B-A4B: gate_up 7.4 for 11.1, qkv 12.1 for 13.5.

    Not instead of the float32 kernel. Alone, some rings are faster with one row, qkv of E4B 6.2 for 7.2; but a step of
    one request takes 3.33 ms with these and not 3.29, and 3.54 with rings throughout.
    """
    if num_rows > MAX_WARP_ROWS:
        return _choose_ring_of_more_rows(num_rows, num_out, num_in)
    if num_in > _MOST_INPUTS_IN_ONE_CHAIN:
        return None
    config = choose_config(num_rows, num_out, num_in)
    is_chosen = _is_for_rings(num_rows, num_out, num_in) and (config is None or config.is_dot)
    return ring_of(num_out, num_in) if is_chosen else None


def ring_of(num_out: int, num_in: int) -> Ring:
    """As deep as shared memory allows, up to a bound; where outputs are many, few wide tiles."""
    num_programs = -(-num_out // (16 * _NUM_MULTIPROCESSORS))  # of a multiprocessor
    deep, wide = Ring(MAX_WARP_ROWS, 128, _MOST_STAGES), Ring(MAX_WARP_ROWS, 256, 3)
    num_stages = min(_MOST_STAGES, _RING_BYTES // (num_programs * deep.tile_bytes))
    ring = wide if num_stages < _LEAST_STAGES else replace(deep, num_stages=num_stages)
    return replace(ring, num_stages=max(2, min(ring.num_stages, -(-num_in // ring.block_in))))


def warpgroup_ring_of(num_rows: int, num_out: int, num_in: int) -> WarpgroupRing:
    """As deep as two programs of a multiprocessor have room for, or one where programs are fewer than those are.

    8 rows of E4B's down take 16.2; with 32 outputs 18.6, with 8 22.0, with 512 inputs 18.7. Of qkv they take 5.9, and
    5.7 with 32.
    """
    ring = _tiles_of(num_rows, num_out, num_in)
    num_programs = min(2, -(-num_out // (ring.num_out * _NUM_MULTIPROCESSORS)))
    num_behind = ring.num_bytes - ring.num_stages * ring.tile_bytes
    num_stages = (_WARPGROUP_RING_BYTES // num_programs - num_behind) // ring.tile_bytes
    return replace(ring, num_stages=max(2, min(_MOST_STAGES, num_stages, -(-num_in // ring.block_in))))


def _tiles_of(num_rows: int, num_out: int, num_in: int) -> WarpgroupRing:
    if num_rows <= MAX_WARP_ROWS:
        return WarpgroupRing(16, 256, _MOST_STAGES)
    if min(num_out, num_in) <= _NARROW:
        # Programs of 64 rows are too few for the one, and gain nothing for the other.
        num_outputs = 16 if num_out <= _NARROW else 32 if num_rows <= _MOST_ROWS else 64
        return WarpgroupRing(num_outputs, 256, _MOST_STAGES, num_rows=16 if num_rows <= 16 else 32)
    rows_of_program = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
    if num_out <= 4096 and num_in <= 8192:
        return WarpgroupRing(32, 256, _MOST_STAGES, num_rows=rows_of_program)
    return WarpgroupRing(64, 256 if num_rows <= 16 else 128, _MOST_STAGES, num_rows=rows_of_program)
