"""Makes the tensors of a checkpoint's towers of those in a GGUF file."""

import torch
from torch import Tensor

from facet.model.gguf.forms import Form, shape_in


def in_form(form: Form, stored: Tensor) -> Tensor:
    """As a checkpoint has it."""
    shape = shape_in(form, tuple(stored.shape))
    if form == "pixels":
        side = round((shape[-1] / 3) ** 0.5)
        return stored.reshape(*shape[:-1], 3, side * side).transpose(-1, -2).reshape(shape)
    if form == "places" and stored.ndim == 3:
        return stored.transpose(0, 1)
    if form == "before softplus":
        # The logarithm of exp(y) - 1, also where exp(y) is no number.
        return stored.float() + torch.log(-torch.expm1(-stored.float()))
    if form == "less one":
        return stored.float() - 1
    return stored.reshape(shape)
