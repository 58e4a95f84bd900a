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
        """The bytes of a tile of the weight and of x."""
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
        """The larger of the two powers of two in `num_out`."""
        return 1 << (self.num_out.bit_length() - 1)

    @property
    def more_out(self) -> int:
        """The smaller of the two, or 0."""
        return self.num_out - self.wide_out

    @property
    def tile_bytes(self) -> int:
        """The bytes of a tile of the weight and of x."""
        return 2 * self.block_in * (self.num_out + self.num_rows)

    @property
    def bytes_behind(self) -> int:
        """The bytes of what products read behind the last outputs."""
        return 2 * self.block_in * (num_read(self.num_out) - self.num_out)

    @property
    def num_bytes(self) -> int:
        """The bytes of shared memory, but for barriers."""
        return self.num_stages * self.tile_bytes + self.bytes_behind


def num_read(num_rows: int) -> int:
    """How many rows of a weight a product of a warpgroup reads, of which `num_rows` are there (`units.py`)."""
    return 64 if num_rows <= 64 else 128 if num_rows <= 128 else 256


# The most rows of rings of warps, of those of warpgroups, and of the latter where outputs or inputs are as few as that.
MAX_WARP_ROWS, _MOST_ROWS, _MOST_NARROW_ROWS = 8, 64, 128
_NARROW = 512
# Outputs and inputs that the tiles of chains divide evenly: 8 rows of 31B's gate_up take 104.0, in rings 105.3.
_BETTER_IN_CHAINS = frozenset({(43008, 5376)})
# Beyond so many, as in a head, both read the weight as fast as memory gives it.
_MOST_RING_OUTPUTS = 65536
# Stages of rings of warps. With 16 and not 10, down of E4B takes 18.3 and not 17.6, o 5.7 and not 4.6; with 5, 25.0
# and 5.7.
_MOST_STAGES, _LEAST_STAGES = 10, 4
# Shared memory for all programs that a multiprocessor holds if they are spread evenly.
_RING_BYTES, _WARPGROUP_RING_BYTES = 192 << 10, 220 << 10
# Where a program makes the row itself: of rows so long, 1024 columns at a time, in each of which others have room, too.
_SHORTEST_NORMED, _LONGEST_NORMED, _NORMED_BYTES = 1024, 4096, 16 << 10
_NORMED_RING_BYTES = 224 << 10
# Multiprocessors read through one path in pairs. As many programs as there are pairs are well, and as many as there are
# multiprocessors, or twice as many, but not a few more: some pairs would have as much again to read as the others.
_NUM_MULTIPROCESSORS, _NUM_PAIRS = 132, 66
# Fewer outputs are divided among pairs, if inputs are so many; else 32 each are as well.
_FEW_OUTPUTS, _MANY_INPUTS = 3584, 8192
# Where cuBLAS splits sums, and wins where outputs are few, or very many.
_VERY_MANY_INPUTS = 10240
# Tiles of so many outputs have 64 inputs, and rings of them no more stages: that leaves room for the next product's.
_WIDE, _WIDE_STAGES = 144, 7
_WIDEST = 192


def choose_ring(num_rows: int, num_out: int, num_in: int) -> Ring | WarpgroupRing | None:
    """The ring for products whose sums are one chain. None: rings do not serve.

    Up to 8 rows with few inputs go through rings of warps: E4B per-layer projection takes 1.2 and 1.3 for 1 and 8, by
    `choose_chain` 2.5. More rows are padded to no fewer than tiles have.
    """
    if not 0 < num_rows <= _MOST_NARROW_ROWS:
        return None  # at once: every product of a prompt asks
    ring = warpgroup_ring_of(num_rows, num_out, num_in)
    if ring is not None:
        return ring
    is_served = num_out <= _MOST_RING_OUTPUTS and (num_out, num_in) not in _BETTER_IN_CHAINS
    return ring_of(num_out, num_in) if is_served and num_rows <= MAX_WARP_ROWS else None


def choose_usual_ring(num_rows: int, num_out: int, num_in: int) -> Ring | WarpgroupRing | None:
    """The ring for products whose sums need not be one chain: it takes the place of tensor core tiles, of cuBLAS, and
    of sums of one row in float32. None: those serve.

    Some of the last are faster alone; but a step of one request of E4B took 3.43 ms with them and 3.24 with rings
    throughout. Rings do not serve where cuBLAS splits long sums: 8 and 32 rows of 31B's down take 57.0 and 58.5, in
    rings 59.0, 61.1.
    """
    is_for_all = num_in <= _VERY_MANY_INPUTS or _FEW_OUTPUTS < num_out <= 32 * _NUM_MULTIPROCESSORS
    return choose_ring(num_rows, num_out, num_in) if is_for_all else None


def ring_of(num_out: int, num_in: int) -> Ring:
    """A ring as deep as shared memory allows, up to a bound; where outputs are many, few wide tiles."""
    num_programs = -(-num_out // (16 * _NUM_MULTIPROCESSORS))  # of a multiprocessor
    deep, wide = Ring(MAX_WARP_ROWS, 128, _MOST_STAGES), Ring(MAX_WARP_ROWS, 256, 3)
    num_stages = min(_MOST_STAGES, _RING_BYTES // (num_programs * deep.tile_bytes))
    ring = wide if num_stages < _LEAST_STAGES else replace(deep, num_stages=num_stages)
    return replace(ring, num_stages=max(2, min(ring.num_stages, -(-num_in // ring.block_in))))


def warpgroup_ring_of(num_rows: int, num_out: int, num_in: int) -> WarpgroupRing | None:
    """A ring as deep as shared memory allows, up to a bound. None: other kernels are faster.

    8 rows, by warps and by warpgroups: E4B down 17.6 and 13.8; qkv 6.2 and 5.2, of a global layer 8.6 and 7.6; q 5.5
    and 3.1; o 4.9 and 3.7, of a global layer 8.2 and 6.4; gate_up 26.6 and 25.2; per-layer gate 4.8 and 2.7. 12B down
    39.4 and 28.2. 26B-A4B qkv 11.9 and 11.4; o 8.7 and 6.9. 31B qkv 44.3 and 40.2; o 23.0 and 21.5; down 60.9 and 59.0.

    32 and 64 rows, by tiles or cuBLAS, and by warpgroups: E4B down 17.8 and 16.0, 18.7 and 18.3; qkv 7.1 and 5.4, 7.1
    and 6.3, of a global layer 10.7 and 8.3, 10.7 and 9.1; o 6.0 and 4.2, 6.2 and 4.8; gate_up 29.9 and 26.5, 30.5 and
    28.8; per-layer projection 2.3 and 1.8, 2.6 and 1.9. 26B-A4B o of a global layer 16.2 and 13.7, 17.0 and 16.3. 31B
    qkv 42.7 and 41.2, 43.0 and 42.3; o 25.9 and 22.7, 29.0 and 24.2; down 58.5 and 61.1, 61.6 and 63.4, where tiles in
    one chain take 68.6 and 77.8.
    """
    outputs = _outputs_of(num_rows, num_out, num_in)
    if outputs is None:
        return None
    padded = next((rows for rows in (8, 16, 32) if num_rows <= rows), 64)
    if num_out <= _NARROW:
        padded = 8 if num_rows <= _MOST_ROWS else 16  # programs are few, and share the weight in the cache
    elif num_in <= _NARROW:
        padded = min(padded, 32)
    block_in = _inputs_of(padded, outputs, num_out, num_in)
    ring = WarpgroupRing(outputs, block_in, _WIDE_STAGES if outputs >= _WIDE else _MOST_STAGES, padded)
    num_stages = (_WARPGROUP_RING_BYTES // _num_programs(ring, num_out) - ring.bytes_behind) // ring.tile_bytes
    return replace(ring, num_stages=max(2, min(ring.num_stages, num_stages, -(-num_in // block_in))))


def normed_ring_of(num_out: int, num_in: int) -> WarpgroupRing | None:
    """The ring for one row that is made in place (`normed_ring_kernel.py`), all of whose columns are kept. None: the
    row is none of those that are added up by 8 or 16 warps, or leaves no room for what has to be on its way
    meanwhile."""
    ring = warpgroup_ring_of(1, num_out, num_in)
    if ring is None or not _SHORTEST_NORMED < num_in <= _LONGEST_NORMED:
        return None
    room = _NORMED_RING_BYTES // _num_programs(ring, num_out) - -(-num_in // 1024) * _NORMED_BYTES
    tile_bytes = 2 * ring.block_in * ring.num_out  # of the weight alone
    num_stages = min(ring.num_stages, (room - ring.bytes_behind) // tile_bytes)
    return replace(ring, num_stages=num_stages) if num_stages >= _LEAST_STAGES else None


def _num_programs(ring: WarpgroupRing, num_out: int) -> int:
    """How many programs share a multiprocessor."""
    return min(2, -(-num_out // (ring.num_out * _NUM_MULTIPROCESSORS)))


def _outputs_of(num_rows: int, num_out: int, num_in: int) -> int | None:
    """How many outputs a program has. None: rings of warpgroups do not serve."""
    if num_out <= _NARROW:
        return 16 if num_in > _NARROW or num_rows > MAX_WARP_ROWS else None
    if num_in <= _NARROW:
        return (32 if num_rows <= _MOST_ROWS else 64) if num_rows > MAX_WARP_ROWS else None
    if num_rows > _MOST_ROWS:
        return None
    if num_out <= _FEW_OUTPUTS:
        if num_in < _MANY_INPUTS:
            return 32
        return _least_outputs(-(-num_out // _NUM_PAIRS), 8) if num_out >= 2048 else 16
    if 0.95 <= num_out / (64 * _NUM_PAIRS) <= 1:
        return 64
    outputs = -(-num_out // _NUM_MULTIPROCESSORS)
    if outputs <= _WIDEST:
        return _least_outputs(outputs, 16)
    return 128 if outputs <= 256 else None


def _inputs_of(num_rows: int, outputs: int, num_out: int, num_in: int) -> int:
    """How many inputs a tile has. E2B down with 8 rows takes 6.6 with 512 and 7.2 with 256; 64 rows of q of E4B's
    global layers 6.9 with 128 and 8.0 with 256, of o 8.0 and 8.3, of q in sliding ones, whose inputs are fewer, 5.5
    with either."""
    if outputs >= _WIDE:
        return 64
    if outputs > 64:
        return 128
    if num_in <= _NARROW or outputs <= 16 or num_rows <= 16:
        return 512 if num_rows == 8 and num_out <= 2048 and num_in >= 6144 else 256
    is_large = outputs > 48 or (num_rows == 64 and (outputs > 32 or num_in >= 4096))
    return 128 if is_large else 256


def _least_outputs(least: int, unit: int) -> int:
    """The fewest outputs, from `least` on, that a tile can have: a power of two, or the sum of two. Units of 16 have as
    many gates as ups."""
    powers = [unit << bit for bit in range(6)]
    return min(size for size in (*powers, *(a + b for a in powers for b in powers if a > b)) if size >= least)
