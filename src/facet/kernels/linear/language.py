"""The names that kernels in Gluon are made of; some of them are Triton's, which Gluon can call."""

from facet.kernels.dependent_launch import let_next_start, wait_for_previous
from facet.kernels.geglu.triton import let_through
from facet.kernels.gluon_names import (
    allocate_shared_memory,
    commit_copies,
    copy_tile,
    copy_to_shared,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    mma_v2,
    thread_barrier,
    wait_for_copies,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = [
    "allocate_shared_memory",
    "commit_copies",
    "copy_tile",
    "copy_to_shared",
    "fence_async_shared",
    "gl",
    "gluon",
    "let_next_start",
    "let_through",
    "mbarrier",
    "mma_v2",
    "thread_barrier",
    "wait_for_copies",
    "wait_for_previous",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
