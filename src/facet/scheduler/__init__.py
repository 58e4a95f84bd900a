"""Decides which requests run in a step. Knows requests, counts of tokens and counts of blocks; no tensors, no block
ids."""
