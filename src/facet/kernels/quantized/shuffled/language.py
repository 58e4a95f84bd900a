"""The names that kernels of shuffled codes are made of: Gluon's, and Triton's, which Gluon can call."""

from facet.kernels.dependent_launch import let_next_start, wait_for_previous
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
from facet.kernels.gluon_parts import stay_in_order

__all__ = [
    "allocate_shared_memory",
    "commit_copies",
    "copy_to_shared",
    "fence_async_shared",
    "gl",
    "gluon",
    "let_next_start",
    "stay_in_order",
    "thread_barrier",
    "wait_for_copies",
    "wait_for_previous",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
