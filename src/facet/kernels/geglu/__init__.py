"""The gated activation of the MLP."""

from facet.kernels.geglu.reference import geglu, sparse_geglu

__all__ = ["geglu", "sparse_geglu"]
