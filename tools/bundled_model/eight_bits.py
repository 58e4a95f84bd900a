"""Stores matrices in eight bits, which makes room for a tower and a drafter.

A weight is a whole number times a scale for its row, as compressed-tensors writes it. Inputs are not rounded. The
decoder keeps such matrices as they are, and on a CPU without instructions for it their products take longer: so only
as many layers as needed are stored so. Towers and drafters compute with what the numbers stand for.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tools.bundled_model.checkpoint import checkpoint_name

_LARGEST = 127


def feed_forward_modules(layers: Iterable[int]) -> list[str]:
    """Of these layers, as the checkpoint of a model that sees names them."""
    return [
        checkpoint_name(f"layers.{layer}.mlp.{name}_proj", sees=True)
        for layer in layers
        for name in ("gate", "up", "down")
    ]


def in_eight_bits(tensors: Mapping[str, Tensor], modules: Iterable[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a checkpoint, those of `modules` as codes and scales, and its `quantization_config`."""
    stored, names = dict(tensors), list(modules)
    for module in names:
        matrix = stored.pop(f"{module}.weight").float()
        scales = (matrix.abs().amax(dim=1, keepdim=True) / _LARGEST).clamp(min=1e-12).bfloat16()
        codes = (matrix / scales.float()).round().clamp(-_LARGEST, _LARGEST)
        stored[f"{module}.weight"] = codes.to(torch.int8)
        stored[f"{module}.weight_scale"] = scales
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    group = {"targets": names, "weights": weights, "input_activations": None, "output_activations": None}
    return stored, {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
