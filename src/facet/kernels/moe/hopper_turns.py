"""Which tiles a grouped product has, and which of them a program takes.

A tile is a group of pairs and 256 rows of its expert's weight. Those with 128 or less, the last of a weight, are narrow
and come after all others: they take half the time, and fill up what those left.

Each program takes the next tile when it has loaded one, since tiles take unequal times. Who loads tells those who
multiply, who may be a tile behind.
"""

from facet.kernels.gluon_parts import barriers
from facet.kernels.moe.language import gl, gluon, mbarrier, thread_barrier

# Groups, or a single number, in registers.
FLAT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.constexpr_function
def num_tiles(num_out):
    """How many tiles a weight with `num_out` rows has."""
    return (num_out + 255) // 256


@gluon.constexpr_function
def num_wide(num_out):
    """How many of its tiles have more than 128 rows: all, or all but the last."""
    return (num_out + 127) // 256


@gluon.jit
def groups_of(table, num_groups, first_expert, num_experts):
    """(first group, number of groups) of some experts. Groups lie in order of experts; those not there are last."""
    num_before = gl.zeros([1024], gl.int32, FLAT)
    num_own = gl.zeros([1024], gl.int32, FLAT)
    for start in range(0, num_groups, 1024):
        groups = start + gl.arange(0, 1024, FLAT)
        is_listed = groups < num_groups
        is_there = gl.load(table + groups * 3 + 2, mask=is_listed, other=0) > 0
        experts = gl.load(table + groups * 3, mask=is_listed, other=0) - first_expert
        num_before += (is_there & (experts < 0)).to(gl.int32)
        num_own += (is_there & (experts >= 0) & (experts < num_experts)).to(gl.int32)
    return gl.sum(num_before, 0), gl.sum(num_own, 0)


@gluon.jit
def tile_of(turn, table, first_group, num_groups, NUM_OUT: gl.constexpr):
    """(expert, first place, end, number in its weight) of a tile."""
    NUM_WIDE: gl.constexpr = num_wide(NUM_OUT)
    is_wide = turn < num_groups * NUM_WIDE
    group = turn - num_groups * NUM_WIDE
    tile = turn * 0 + NUM_WIDE
    if NUM_WIDE > 0:
        group = gl.where(is_wide, turn // NUM_WIDE, group)
        tile = gl.where(is_wide, turn % NUM_WIDE, tile)
    entry = table + (first_group + group) * 3
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), tile


@gluon.jit
def make_turns():
    """Room for what is told about two tiles, and barriers: (numbers, ready, free)."""
    numbers = gl.allocate_shared_memory(gl.int32, [6, 1], PLAIN)
    return numbers, barriers(2, 1), barriers(2, 2)


@gluon.jit
def tell(turns, number, first_place, end, tile):
    """Tell both warpgroups about a tile."""
    numbers, ready, free = turns
    side = number % 2
    mbarrier.wait(free.index(side), (number // 2 & 1) ^ 1)
    numbers.index(side * 3).store(gl.full([1], first_place, gl.int32, FLAT))
    numbers.index(side * 3 + 1).store(gl.full([1], end, gl.int32, FLAT))
    numbers.index(side * 3 + 2).store(gl.full([1], tile, gl.int32, FLAT))
    thread_barrier()
    mbarrier.arrive(ready.index(side), count=1)


@gluon.jit
def told(turns, number):
    """(first place, end, number in its weight) of a tile, which ends at 0 where there are no more."""
    numbers, ready, free = turns
    side = number % 2
    mbarrier.wait(ready.index(side), number // 2 & 1)
    first_place = gl.max(numbers.index(side * 3).load(FLAT), 0)
    end = gl.max(numbers.index(side * 3 + 1).load(FLAT), 0)
    tile = gl.max(numbers.index(side * 3 + 2).load(FLAT), 0)
    thread_barrier()
    mbarrier.arrive(free.index(side), count=1)
    return first_place, end, tile
