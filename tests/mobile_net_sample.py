"""A tiny MobileNet-v5 with weights made of a seed, and rows of it that timm computed.

timm is no dependency of the tests. The rows were made once with timm 1.0.30 (`mobilenetv5_300m_enc`, float32) from the
weights and the picture below, followed by the embedder as transformers 5.17 has it.
"""

import numpy as np
import torch
from torch import Tensor

from facet.model.vision_weights import vision_targets
from facet.model.weight_map import TensorTarget
from facet.vision_spec import VisionSpec

CONFIG = {
    "model_type": "gemma3n",
    "text_config": {"hidden_size": 64},
    "vision_config": {
        "model_type": "gemma3n_vision",
        "architecture": "mobilenetv5_300m_enc",
        "model_args": {"channel_multiplier": 0.0125},
        "hidden_size": 2048,
        "vocab_size": 16,
        "vocab_offset": 700,
    },
}
SIDE = 256


def random_weights(spec: VisionSpec) -> dict[str, Tensor]:
    """By their names in a checkpoint."""
    return {target.name: torch.from_numpy(_values(target, index)) for index, target in enumerate(vision_targets(spec))}


def random_picture() -> Tensor:
    return torch.from_numpy(np.random.default_rng(5).integers(0, 256, (3, SIDE, SIDE)).astype(np.uint8))


def _values(target: TensorTarget, index: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    noise = np.random.default_rng([9, index]).standard_normal(target.shape).astype(np.float32)
    if target.name.endswith("gamma"):
        return 0.3 + 0.1 * noise
    if target.name.endswith("bias"):
        return 0.1 * noise
    if len(target.shape) == 1:
        return 1 + 0.15 * noise
    return noise / np.float32(np.sqrt(np.prod(target.shape[1:])))
