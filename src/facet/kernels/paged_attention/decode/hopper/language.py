"""The names that the kernels in Gluon are made of; some of them are Triton's, which Gluon can call."""

from facet.kernels.arrivals import arrives_last
from facet.kernels.dependent_launch import let_next_start, wait_for_previous
from facet.kernels.gluon_names import (
    allocate_shared_memory,
    commit_copies,
    copy_to_shared,
    gl,
    gluon,
    mma_v2,
    thread_barrier,
    wait_for_copies,
)

__all__ = [
    "allocate_shared_memory",
    "arrives_last",
    "commit_copies",
    "copy_to_shared",
    "gl",
    "gluon",
    "let_next_start",
    "mma_v2",
    "thread_barrier",
    "wait_for_copies",
    "wait_for_previous",
]
