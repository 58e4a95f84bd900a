"""Makes the tensors of a checkpoint's towers of those in a GGUF file."""

import torch
from torch import Tensor

from facet.model.gguf.layouts import Layout, checkpoint_shape


def as_in_checkpoint(layout: Layout, stored: Tensor) -> Tensor:
    """What the checkpoint had, from which the file was made."""
    shape = checkpoint_shape(layout, tuple(stored.shape))
    if layout == "pixels":
        side = round((shape[-1] / 3) ** 0.5)
        return stored.reshape(*shape[:-1], 3, side * side).transpose(-1, -2).reshape(shape)
    if layout == "places" and stored.ndim == 3:
        return stored.transpose(0, 1)
    if layout == "before softplus":
        # The logarithm of exp(y) - 1, also where exp(y) is no number.
        return stored.float() + torch.log(-torch.expm1(-stored.float()))
    if layout == "less one":
        return stored.float() - 1
    return stored.reshape(shape)
