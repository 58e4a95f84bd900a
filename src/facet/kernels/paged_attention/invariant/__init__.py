"""Attention whose rows are bit for bit the same whatever else is computed in the step."""
