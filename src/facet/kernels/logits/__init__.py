"""The last step: a soft cap on the logits."""

from facet.kernels.logits.reference import softcap

__all__ = ["softcap"]
