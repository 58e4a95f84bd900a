"""x / rms(x) * weight, over the last axis."""

from facet.kernels.rms_norm.reference import rms_norm

__all__ = ["rms_norm"]
