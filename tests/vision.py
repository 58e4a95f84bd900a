"""Random pictures as towers take them, and the rows that transformers makes of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from facet.vision_spec import PatchEmbedderSpec, PatchTowerSpec, VisionSpec

Picture = dict[str, Tensor]
GRIDS = ((2, 3), (1, 1), (4, 2), (1, 5), (3, 3))  # rows and columns of what becomes a row each


def random_pictures(spec: VisionSpec, grids: Sequence[tuple[int, int]] = GRIDS, seed: int = 0) -> list[Picture]:
    """One of each shape, or as many squares where the tower takes no others."""
    generator = torch.Generator().manual_seed(seed)

    def random_bytes(*shape: int) -> Tensor:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)

    if not isinstance(spec, PatchTowerSpec | PatchEmbedderSpec):
        return [{"pixels": random_bytes(3, spec.image_size, spec.image_size)} for _ in grids]
    size = spec.cell_size if isinstance(spec, PatchTowerSpec) else 1
    pictures = []
    for rows, columns in grids:
        places = torch.cartesian_prod(torch.arange(rows * size), torch.arange(columns * size)).flip(1).int()
        pictures.append({"patches": random_bytes(len(places), spec.patch_width), "positions": places})
    return pictures


@torch.no_grad()
def oracle_rows(oracle: Any, picture: Picture) -> Tensor:
    if "pixels" in picture:
        features = oracle.model.get_image_features(picture["pixels"][None].float() / 127.5 - 1)
    else:
        features = oracle.model.get_image_features(
            picture["patches"][None].float() / 255, image_position_ids=picture["positions"][None].long()
        )
    rows = features.pooler_output
    found: Tensor = rows if isinstance(rows, Tensor) else rows[0]
    return found.reshape(-1, found.shape[-1])
