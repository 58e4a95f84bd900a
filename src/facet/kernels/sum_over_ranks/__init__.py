"""Adds what several ranks have, in the order of the ranks: the same bits on all of them, whatever else is summed.

The reference has all parts at hand. The Triton kernel runs on every rank, has one part, and reads the others from the
memory of the other GPUs; whoever uses it has to see that all ranks do, so it is chosen where ranks meet
(`layers/direct_sums.py`).
"""

from facet.kernels.sum_over_ranks.reference import sum_over_ranks

__all__ = ["sum_over_ranks"]
