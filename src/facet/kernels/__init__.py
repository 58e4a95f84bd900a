"""Tensors -> tensors. One folder per operation; its plain-PyTorch reference is the definition."""
