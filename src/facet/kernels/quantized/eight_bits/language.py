"""The names that the kernel in Gluon is made of; some of them are Triton's, which Gluon can call."""

from facet.kernels.arrivals import arrives_last
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
from facet.kernels.to_eight_bits import largest_magnitude

__all__ = [
    "allocate_shared_memory",
    "arrives_last",
    "commit_copies",
    "copy_to_shared",
    "fence_async_shared",
    "gl",
    "gluon",
    "largest_magnitude",
    "let_next_start",
    "let_through",
    "thread_barrier",
    "wait_for_copies",
    "wait_for_previous",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
