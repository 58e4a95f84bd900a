"""Rotary position embedding: the table of angles, and the rotation of heads by it."""

from facet.kernels.rotary.reference import apply_rotary, rotary_table

__all__ = ["apply_rotary", "rotary_table"]
