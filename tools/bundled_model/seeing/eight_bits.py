"""Stores the feed-forward matrices of some layers in eight bits, which makes room for a tower.

A weight is a whole number times a scale for its row, as compressed-tensors writes it. Inputs are not rounded, and only
as many layers as needed are stored so: on a CPU without instructions for it, such a product takes longer.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from tools.bundled_model.checkpoint import checkpoint_name

_LARGEST = 127


def in_eight_bits(tensors: Mapping[str, Tensor], layers: Iterable[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a checkpoint that sees, some of them as codes and scales, and its `quantization_config`."""
    stored = dict(tensors)
    modules = [
        checkpoint_name(f"layers.{layer}.mlp.{name}_proj", sees=True)
        for layer in layers
        for name in ("gate", "up", "down")
    ]
    for module in modules:
        matrix = stored.pop(f"{module}.weight").float()
        scales = (matrix.abs().amax(dim=1, keepdim=True) / _LARGEST).clamp(min=1e-12).bfloat16()
        codes = (matrix / scales.float()).round().clamp(-_LARGEST, _LARGEST)
        stored[f"{module}.weight"] = codes.to(torch.int8)
        stored[f"{module}.weight_scale"] = scales
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    group = {"targets": modules, "weights": weights, "input_activations": None, "output_activations": None}
    return stored, {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
