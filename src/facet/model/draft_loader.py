"""Loads a drafter and checks that it fits the model it drafts for."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from facet.config import ModelConfig
from facet.errors import ConfigError
from facet.layers.linear import Linear
from facet.model.checkpoint import load_weights, match_tensors
from facet.model.config_fields import ConfigFields, read_config_file, shown
from facet.model.draft_model import CentroidSpec, DraftModel, DraftModelSpec
from facet.model.dummy_weights import fill_dummy_weights
from facet.model.families import read_model_spec
from facet.model.gemma import Gemma
from facet.model.hub import CONFIG_ONLY, WHOLE_MODEL, access_of, local_folder
from facet.model.loader import cuts_of
from facet.model.quantized.choose import read_scheme
from facet.model.quantized.matching import Source, find_source, tensors_of
from facet.model.quantized.scheme import Scheme
from facet.model.shard import shard_of
from facet.model.stored_tensor import StoredTensor
from facet.model.weight_files import WeightFiles, find_weight_files, read_headers
from facet.model.weight_map import TensorTarget, matrix_target, tensor_targets
from facet.model_spec import LayerSpec, ModelSpec
from facet.progress import Progress
from facet.ranks import ALONE, Rank

_MODEL_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
_ORDERING = "masked_embedding.token_ordering"


def load_draft_model(name: str, target: Gemma, config: ModelConfig, progress: Progress) -> DraftModel:
    """Read, check, build, fill. `config` is of the model: it says where downloads are kept and whether to read any."""
    is_dummy = config.load_format == "dummy"
    patterns = CONFIG_ONLY if is_dummy else WHOLE_MODEL
    folder = local_folder(name, patterns=patterns, access=access_of(config), towers=None)
    fields = read_config_file(folder / "config.json")
    spec = read_draft_model_spec(fields, target.spec, name)
    model = DraftModel(spec, target)
    if is_dummy:
        fill_dummy_weights(model, target.placement.device, config.seed, progress)
        if spec.centroids is not None:
            torch.arange(spec.decoder.vocab_size, out=model.get_buffer("token_ordering"))
    else:
        group = target.placement.group
        scheme = read_scheme(fields, folder)
        _read_weights(model, folder, scheme, ALONE if group is None else group.rank, progress)
    for module in model.modules():
        if isinstance(module, Linear):
            module.prepare()
    return model.eval()


def _read_weights(model: DraftModel, folder: Path, scheme: Scheme | None, rank: Rank, progress: Progress) -> None:
    """Fills a drafter. Quantized matrices become unquantized ones: a drafter is a small part of a model."""
    spec, stored = model.spec, read_headers(find_weight_files(folder))
    beside = {target: _require(stored, target, scheme) for target in _targets_beside(spec)}
    used = {tensor.name for source in beside.values() for tensor in tensors_of(source)}
    decoder = {name: tensor for name, tensor in stored.items() if name not in used and name != _ORDERING}
    matched = match_tensors(spec.decoder, decoder, scheme) | beside
    load_weights(model, matched, progress, scheme, cuts=cuts_of(spec.decoder, model.share, rank))
    if spec.centroids is not None:
        with WeightFiles() as files:
            shape = (spec.decoder.vocab_size,)
            ordering = _require(stored, TensorTarget(name=_ORDERING, shape=shape, place="token_ordering"))
            assert isinstance(ordering, StoredTensor), "only matrices are quantized"
            model.get_buffer("token_ordering").copy_(files.read(ordering))


def read_draft_model_spec(config: Mapping[str, Any], target: ModelSpec, name: str) -> DraftModelSpec:
    """Refused where it drafts for another model."""
    top = ConfigFields(config)
    if top.raw("model_type") not in _MODEL_TYPES:
        raise ConfigError(
            f"{name} is no drafter: its model_type is {shown(top.raw('model_type'))}, not {' or '.join(_MODEL_TYPES)}."
        )
    decoder = read_model_spec({**top.section("text_config").values(), "num_kv_shared_layers": 0})
    backbone_size = top.integer("backbone_hidden_size")
    if backbone_size != target.hidden_size or target.family != "gemma4":
        raise _misfit(name, "hidden states of width", backbone_size, target.hidden_size)
    if decoder.vocab_size != target.vocab_size:
        raise _misfit(name, "a vocabulary of", decoder.vocab_size, target.vocab_size)
    centroids = None
    if top.boolean("use_ordered_embeddings"):
        centroids = CentroidSpec(
            num_clusters=top.integer("num_centroids", 2048),
            num_chosen=top.integer("centroid_intermediate_top_k", 32),
        )
        if decoder.vocab_size % centroids.num_clusters or centroids.num_chosen > centroids.num_clusters:
            raise ConfigError(
                f"{name} divides {decoder.vocab_size} tokens into {centroids.num_clusters} clusters and looks at "
                f"{centroids.num_chosen}: that cannot be."
            )
    layers = tuple(_reading(layer, target, name) for layer in decoder.layers)
    return DraftModelSpec(decoder=replace(decoder, layers=layers), backbone_size=backbone_size, centroids=centroids)


def draft_weight_bytes(spec: DraftModelSpec, *, value_bytes: int, num_ranks: int = 1) -> int:
    """What the weights of a drafter take on each rank."""
    share = replace(shard_of(spec.decoder, num_ranks), vocab_size=spec.decoder.vocab_size)
    num_values = sum(prod(target.shape) for target in (*tensor_targets(share), *_targets_beside(spec)))
    ordering = 8 * spec.decoder.vocab_size if spec.centroids is not None else 0
    return num_values * value_bytes + ordering


def _reading(layer: LayerSpec, target: ModelSpec, name: str) -> LayerSpec:
    """The layer, reading the keys of the last layer of its kind that stores any."""
    owners = [own for own in target.layers if own.owns_kv and own.attention == layer.attention]
    if not owners:
        raise ConfigError(f"{name} has {layer.attention} layers, but the model it should draft for has none.")
    source = owners[-1]
    for what, own, other in (
        ("heads of size", layer.head_dim, source.head_dim),
        ("key heads:", layer.num_kv_heads, source.num_kv_heads),
        ("a window of", layer.window, source.window),
    ):
        if own != other:
            raise _misfit(name, what, own, other)
    return replace(layer, kv_from_layer=source.index)


def _targets_beside(spec: DraftModelSpec) -> Iterator[TensorTarget]:
    width = spec.decoder.hidden_size
    yield matrix_target("pre_projection", width, 2 * spec.backbone_size, "pre_projection")
    yield matrix_target("post_projection", spec.backbone_size, width, "post_projection")
    if spec.centroids is not None:
        yield matrix_target("masked_embedding.centroids", spec.centroids.num_clusters, width, "centroids")


def _require(stored: Mapping[str, StoredTensor], target: TensorTarget, scheme: Scheme | None = None) -> Source:
    source = stored.get(target.name) if scheme is None else find_source(target, stored, scheme)
    if source is None or (isinstance(source, StoredTensor) and source.shape != target.shape):
        found = f"of shape {list(source.shape)}" if isinstance(source, StoredTensor) else "missing"
        raise ConfigError(f"The drafter's {target.name} is {found}; it should have {list(target.shape)}.")
    return source


def _misfit(name: str, what: str, own: object, other: object) -> ConfigError:
    return ConfigError(f"{name} drafts for another model: it has {what} {own}, this one {other}. Name its own drafter.")
