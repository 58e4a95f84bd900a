"""Finds, builds and fills what turns media into rows of the decoder: towers, or embedders, with their projections.

A tower takes a sequence of items, each as named tensors on its device (`prepared_media.py` names them), and returns a
list of their rows [num_rows, hidden].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import nn

from facet.errors import CheckpointError
from facet.layers.placement import Placement
from facet.layers.sound.conformer_tower import ConformerTower
from facet.layers.sound.sample_embedder import SampleEmbedder
from facet.layers.sound.usm_tower import UsmTower
from facet.layers.vision.mobile_net import MobileNet
from facet.layers.vision.patch_embedder import PatchEmbedder
from facet.layers.vision.patch_tower import PatchTower
from facet.layers.vision.square_tower import SquareTower
from facet.media_span import MediaKind
from facet.model.checkpoint import has_tower, load_weights, match_tower
from facet.model.config_fields import ConfigFields
from facet.model.dummy_weights import fill_dummy_weights
from facet.model.quantized.matching import Source
from facet.model.quantized.scheme import Scheme
from facet.model.sound_config import read_sound_spec
from facet.model.sound_weights import sound_targets
from facet.model.stored_tensor import StoredTensor
from facet.model.vision_config import read_vision_spec
from facet.model.vision_weights import vision_targets
from facet.model.weight_map import TensorTarget
from facet.model_spec import ModelSpec
from facet.progress import Progress
from facet.sound_spec import ConformerTowerSpec, SoundSpec, UsmTowerSpec
from facet.vision_spec import PatchEmbedderSpec, PatchTowerSpec, SquareTowerSpec, VisionSpec

TowerSpec: TypeAlias = VisionSpec | SoundSpec
Described: TypeAlias = tuple[tuple[MediaKind, ...], TowerSpec, tuple[TensorTarget, ...]]  # as a `FoundTower`

# What the names of their tensors begin with.
VISION_PREFIXES = ("vision_tower.", "vision_embedder.")
SOUND_PREFIXES = ("audio_tower.", "embed_audio.")

NO_TOWER = "The checkpoint has no weights for {}, though its config describes some: the model takes none."
SEPARATE_FILE = "The weights for {} are those of {}."
QUANTIZED_TOWER = "The weights for {} are quantized in a form that Facet does not read: the model takes none."


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTower:
    """A tower that a checkpoint has, checked and not yet loaded."""

    kinds: tuple[MediaKind, ...]  # of what goes through it
    spec: TowerSpec
    tensors: Mapping[TensorTarget, Source] | None  # None: weights are made up
    scheme: Scheme | None = None  # that quantized matrices are read by


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTowers:
    """What a checkpoint has besides its decoder."""

    towers: tuple[FoundTower, ...] = ()
    notes: tuple[str, ...] = ()  # what a user is told

    def on_meta(self, dtype: torch.dtype) -> dict[MediaKind, nn.Module]:
        """Towers without memory, by the kinds of media that go through them: to be counted, and not to be changed."""
        return {
            kind: tower
            for found in self.towers
            for tower in (_tower_on_meta(found.spec, dtype),)
            for kind in found.kinds
        }

    def load(self, placement: Placement, progress: Progress, *, seed: int = 0) -> dict[MediaKind, nn.Module]:
        """Towers with their weights, by the kinds of media that go through them."""
        loaded: dict[MediaKind, nn.Module] = {}
        for found in self.towers:
            tower = build_tower(found.spec, placement)
            if found.tensors is None:
                fill_dummy_weights(tower, placement.device, seed, progress)
            else:
                load_weights(tower, found.tensors, progress, found.scheme)
            loaded |= dict.fromkeys(found.kinds, tower.eval())
        return loaded


def find_towers(
    config: Mapping[str, Any],
    model: ModelSpec,
    stored: Mapping[str, StoredTensor] | None,
    scheme: Scheme | None = None,
) -> FoundTowers:
    """The towers of a config and of all tensors of its checkpoint. `stored` None: there are no tensors, weights are to
    be made up.

    `scheme`: how the checkpoint is quantized. Matrices of towers that are, too, become unquantized ones: towers are a
    small part of a model.
    """
    towers: list[FoundTower] = []
    notes: list[str] = []
    parts = ConfigFields(config)
    for name, section, prefixes, read in (
        ("pictures", "vision_config", VISION_PREFIXES, _read_vision),
        ("sound", "audio_config", SOUND_PREFIXES, _read_sound),
    ):
        if section not in parts or "text_config" not in parts:
            continue
        if stored is not None and not has_tower(prefixes, stored):
            notes.append(NO_TOWER.format(name))
            continue
        kinds, spec, targets = read(config, model)
        try:
            tensors = None if stored is None else match_tower(targets, stored, scheme)
        except CheckpointError:
            if scheme is None:
                raise
            notes.append(QUANTIZED_TOWER.format(name))
            continue
        towers.append(FoundTower(kinds=kinds, spec=spec, tensors=tensors, scheme=scheme))
        if tensors is not None and (file := _separate_file(tensors)) is not None:
            notes.append(SEPARATE_FILE.format(name, file))
    return FoundTowers(towers=tuple(towers), notes=tuple(notes))


def _separate_file(tensors: Mapping[TensorTarget, Source]) -> str | None:
    """The name of a GGUF file that holds towers alone."""
    source = next(iter(tensors.values()))
    if not isinstance(source, StoredTensor) or source.file.suffix != ".gguf":
        return None
    return source.file.readlink().name if source.file.is_symlink() else source.file.name


def _read_vision(config: Mapping[str, Any], model: ModelSpec) -> Described:
    spec = read_vision_spec(config, model.hidden_size)
    assert spec is not None, "the config describes one"
    # Frames of a video go through the tower one by one, in models that were made for it.
    takes_video = isinstance(spec, PatchTowerSpec | PatchEmbedderSpec)
    return ("image", "video") if takes_video else ("image",), spec, vision_targets(spec)


def _read_sound(config: Mapping[str, Any], model: ModelSpec) -> Described:
    spec = read_sound_spec(config, model)
    assert spec is not None, "the config describes one"
    return ("audio",), spec, sound_targets(spec)


# Several plans are made to find one that fits; to build a tower takes longer than the rest of a plan.
@lru_cache(maxsize=8)
def _tower_on_meta(spec: TowerSpec, dtype: torch.dtype) -> nn.Module:
    return build_tower(spec, Placement(dtype=dtype, device=torch.device("meta")))


def build_tower(spec: TowerSpec, placement: Placement) -> nn.Module:
    """A tower with uninitialised weights."""
    if isinstance(spec, VisionSpec):
        return build_vision_tower(spec, placement)
    return build_sound_tower(spec, placement)


def build_vision_tower(spec: VisionSpec, placement: Placement) -> nn.Module:
    """A tower with uninitialised weights."""
    if isinstance(spec, PatchTowerSpec):
        return PatchTower(spec, placement)
    if isinstance(spec, PatchEmbedderSpec):
        return PatchEmbedder(spec, placement)
    if isinstance(spec, SquareTowerSpec):
        return SquareTower(spec, placement)
    return MobileNet(spec, placement)


def build_sound_tower(spec: SoundSpec, placement: Placement) -> nn.Module:
    """A tower with uninitialised weights."""
    if isinstance(spec, ConformerTowerSpec):
        return ConformerTower(spec, placement)
    if isinstance(spec, UsmTowerSpec):
        return UsmTower(spec, placement)
    return SampleEmbedder(spec, placement)
