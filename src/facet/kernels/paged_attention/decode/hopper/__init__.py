"""Kernels for decoded rows on Hopper GPUs, in Gluon."""
