"""The names of Gluon that the kernels use, as the installed Triton spells them.

Gluon's names are not stable yet. What differs between Triton 3.6, with which the kernels have been run, and 3.7 to 3.9,
with which they have been compiled, is absorbed here.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
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
    "copy_tile",
    "fence_async_shared",
    "gl",
    "gluon",
    "mbarrier",
    "thread_barrier",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]

# Triton 3.7 renamed the first, 3.9 the second.
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier
copy_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
