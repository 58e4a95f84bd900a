"""The definition of the soft cap."""

import torch
from torch import Tensor


def softcap(logits: Tensor, cap: float | None, out: Tensor | None = None) -> Tensor:
    """cap * tanh(logits / cap), in float32, into `out` if there is one. cap None: the logits, in float32.

    Models' reference code caps in the activations' type; in bfloat16 that makes several tokens share the top value
    at a few positions in a hundred, and the arg-max a matter of index order. Float32 keeps them apart.
    """
    wide = logits.float()
    capped = wide if cap is None else torch.tanh(wide / cap) * cap
    return capped if out is None else out.copy_(capped)
