"""Fills a model with random weights on its device, so that a full-size model needs only a config.

Scales are chosen so that activations stay of order one through any depth, which is what timing and memory tests
need: no overflow, no denormals, no constant logits.
"""

import torch
from torch import nn

from facet.kernels.quantized.random_codes import fill_random
from facet.layers.quantized_weight import QuantizedWeight
from facet.progress import Progress

# Scalars and scales that multiply a stream: one leaves it as it is.
_ONES = ("layer_scalar", "router_scale", "expert_scale", "output_scale", "standard_scale")
# Bounds of what goes into a product and out of it: these are never reached.
_BOUNDS = {"input_min": -1e4, "input_max": 1e4, "output_min": -1e4, "output_max": 1e4}


def fill_dummy_weights(model: nn.Module, device: torch.device, seed: int, progress: Progress) -> None:
    """Fill every parameter and code in place; the same seed on the same device gives the same model."""
    generator = torch.Generator(device).manual_seed(seed)
    parameters = dict(model.named_parameters())
    quantized = [module.matrix for module in model.modules() if isinstance(module, QuantizedWeight)]
    total = sum(tensor.numel() for tensor in (*parameters.values(), *(matrix.codes for matrix in quantized)))
    with progress.task("Making random weights", total) as advance:
        for name, parameter in parameters.items():
            if name.endswith("bias"):
                parameter.data.zero_()
            elif "norm" in name or name.endswith(_ONES):
                parameter.data.fill_(1.0)
            elif (leaf := name.rpartition(".")[2]) in _BOUNDS:
                parameter.data.fill_(_BOUNDS[leaf])
            else:
                parameter.data.normal_(0.0, parameter.shape[-1] ** -0.5, generator=generator)
            advance(parameter.numel())
        for matrix in quantized:
            fill_random(matrix, generator)
            advance(matrix.codes.numel())
