"""The names that the kernel in Gluon is made of; two of them are Triton's, which Gluon can call."""

from facet.kernels.dependent_launch import start_after_previous
from facet.kernels.geglu.triton import let_through
from facet.kernels.gluon_names import (
    arrive_after_copies,
    copy_tile,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    thread_barrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "arrive_after_copies",
    "copy_tile",
    "copy_to_shared",
    "fence_async_shared",
    "gl",
    "gluon",
    "let_through",
    "mbarrier",
    "start_after_previous",
    "thread_barrier",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
