"""Builds and fills what turns media into rows of the decoder: towers, or embedders, with their projections."""

from collections.abc import Mapping

from torch import nn

from facet.layers.placement import Placement
from facet.layers.sound.conformer_tower import ConformerTower
from facet.layers.sound.sample_embedder import SampleEmbedder
from facet.layers.sound.usm_tower import UsmTower
from facet.layers.vision.patch_embedder import PatchEmbedder
from facet.layers.vision.patch_tower import PatchTower
from facet.layers.vision.square_tower import SquareTower
from facet.model.checkpoint import load_weights, match_tower
from facet.model.sound_weights import sound_targets
from facet.model.stored_tensor import StoredTensor
from facet.model.vision_weights import vision_targets
from facet.progress import Progress
from facet.sound_spec import ConformerTowerSpec, SoundSpec, UsmTowerSpec
from facet.vision_spec import PatchEmbedderSpec, PatchTowerSpec, VisionSpec


def build_vision_tower(spec: VisionSpec, placement: Placement) -> nn.Module:
    """With uninitialised weights. It takes a sequence of pictures, each as named tensors on its device, and returns a
    list of their rows [num_rows, output_size]."""
    if isinstance(spec, PatchTowerSpec):
        return PatchTower(spec, placement)
    if isinstance(spec, PatchEmbedderSpec):
        return PatchEmbedder(spec, placement)
    return SquareTower(spec, placement)


def build_sound_tower(spec: SoundSpec, placement: Placement) -> nn.Module:
    """As `build_vision_tower`, for clips of sound."""
    if isinstance(spec, ConformerTowerSpec):
        return ConformerTower(spec, placement)
    if isinstance(spec, UsmTowerSpec):
        return UsmTower(spec, placement)
    return SampleEmbedder(spec, placement)


def load_vision_tower(
    spec: VisionSpec, placement: Placement, stored: Mapping[str, StoredTensor], progress: Progress
) -> nn.Module:
    """Checked before anything is allocated. `stored`: every tensor of the checkpoint."""
    matched = match_tower(vision_targets(spec), stored)
    tower = build_vision_tower(spec, placement)
    load_weights(tower, matched, progress)
    return tower.eval()


def load_sound_tower(
    spec: SoundSpec, placement: Placement, stored: Mapping[str, StoredTensor], progress: Progress
) -> nn.Module:
    """As `load_vision_tower`."""
    matched = match_tower(sound_targets(spec), stored)
    tower = build_sound_tower(spec, placement)
    load_weights(tower, matched, progress)
    return tower.eval()
