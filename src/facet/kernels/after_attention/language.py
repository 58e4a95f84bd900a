"""The names that the kernel in Gluon is made of; some of them are Triton's, which Gluon can call."""

from facet.kernels.dependent_launch import let_next_start, wait_for_previous
from facet.kernels.geglu.triton import let_through
from facet.kernels.gluon_names import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    thread_barrier,
    wait_for_copies,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "allocate_shared_memory",
    "arrive",
    "commit_copies",
    "copy_to_shared",
    "fence_async_shared",
    "gl",
    "gluon",
    "let_next_start",
    "let_through",
    "meet",
    "thread_barrier",
    "wait_for_copies",
    "wait_for_previous",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]


@gluon.jit
def arrive(arrivals):
    """Count this program, and release what all its threads have stored. Returns how many arrived before it, ever."""
    thread_barrier()
    return gl.atomic_add(arrivals, 1, sem="acq_rel", scope="gpu")


@gluon.jit
def meet(arrivals, NUM_PROGRAMS: gl.constexpr):
    """Wait until all programs are here: then what each has stored can be read by all.

    Arrivals are never set back. Their number may overflow, which does not matter where the number of programs is a
    power of two.
    """
    before = arrive(arrivals)
    all_here = before - (before & (NUM_PROGRAMS - 1)) + NUM_PROGRAMS
    address = arrivals.to(gl.int64, bitcast=True)
    arrived = before
    while arrived - all_here < 0:
        arrived = gl.inline_asm_elementwise(
            "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l", [address], dtype=gl.int32, is_pure=False, pack=1
        )
