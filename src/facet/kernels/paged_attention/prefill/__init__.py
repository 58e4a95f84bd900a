"""Attention of runs of rows of one sequence, as in prefill: keys and values are unpacked first, then attended to."""
