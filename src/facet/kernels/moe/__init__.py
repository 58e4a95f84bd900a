"""A router that picks experts for each row, and the experts."""

from facet.kernels.moe.reference import route, run_experts

__all__ = ["route", "run_experts"]
