"""Sums over the parallel streams of Gemma 3n, a handful of terms each. On a GPU `triton.py` has most of them, with what
comes before and after, in one launch."""

from facet.kernels.streams.invariant import mean_of_streams as invariant_mean_of_streams
from facet.kernels.streams.invariant import mix_streams as invariant_mix_streams
from facet.kernels.streams.reference import mean_of_streams, mix_streams

__all__ = ["invariant_mean_of_streams", "invariant_mix_streams", "mean_of_streams", "mix_streams"]
