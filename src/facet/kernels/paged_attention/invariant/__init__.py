"""Attention whose rows come out the same, bit for bit, whatever else is computed in the step."""
