"""The names of Gluon that kernels use, as the installed Triton spells them.

They are not stable yet. What differs between Triton 3.6, with which the kernels have been run, and 3.7 to 3.9, with
which they have been compiled, is absorbed here.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = [
    "TensorDescriptor",
    "allocate_shared_memory",
    "arrive_after_copies",
    "commit_copies",
    "copy_tile",
    "copy_to_shared",
    "fence_async_shared",
    "gl",
    "gluon",
    "mbarrier",
    "mma_v2",
    "thread_barrier",
    "wait_for_copies",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]

# Triton 3.7 renamed the first, 3.9 the second.
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
copy_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared

allocate_shared_memory = gl.allocate_shared_memory
copy_to_shared = async_copy.async_copy_global_to_shared
commit_copies = async_copy.commit_group
wait_for_copies = async_copy.wait_group
# At a barrier, once for each thread, when what the thread copied before has landed.
arrive_after_copies = async_copy.mbarrier_arrive
