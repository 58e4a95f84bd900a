"""Tensor operations, one folder each; the plain-PyTorch reference is the definition of an operation."""
