"""Loads a model as a config asks for it, ready to run."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn

from facet.config import ModelConfig
from facet.errors import CapacityError
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.kernels.linear import never_split_sums
from facet.layers.host_memory import serve_from_host
from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rank_group import RankGroup
from facet.layers.weight_kinds import prepared_on
from facet.media_span import MediaKind
from facet.model.adapters import AdapterBank, plan_room
from facet.model.checkpoint import common_dtype, formats_of, load_weights, match_tensors
from facet.model.config_fields import read_config_file
from facet.model.dummy_weights import fill_dummy_weights
from facet.model.gemma import Gemma
from facet.model.named_model import read_spec
from facet.model.placing import WithoutMatrices, place_weights
from facet.model.quantized.choose import read_scheme
from facet.model.quantized.scheme import CACHE_SCALES
from facet.model.resolving import (
    check_dtype,
    dtype_of_config,
    multiplies_bfloat16,
    resolve_context_length,
    resolve_device,
    resolve_dtype,
)
from facet.model.shard import Cut, cut_of, shard_of
from facet.model.towers import FoundTowers, find_towers
from facet.model.weight_files import find_weight_files, read_headers
from facet.model.weight_formats import (
    Formats,
    expected_formats,
    online_formats,
    quantization_while_loading,
    weight_bytes,
)
from facet.model.weight_map import PER_LAYER_TABLE, is_cache_scale, tensor_targets
from facet.model_spec import ModelSpec
from facet.progress import Progress, Silent
from facet.ranks import ALONE, Rank

NO_TABLES = "--embeddings-on-cpu changes nothing: this model has no per-layer embeddings."
ON_THE_HOST_ANYWAY = "--embeddings-on-cpu changes nothing on a CPU: all weights are in the host's memory."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A decoder and its towers with their weights, and the folder they came from."""

    model: Gemma
    spec: ModelSpec
    folder: Path
    context_length: int
    formats: Formats  # of the quantized matrices
    tables_on_host: bool = False
    towers: Mapping[MediaKind, nn.Module] = field(default_factory=dict)  # by what goes through them
    notes: tuple[str, ...] = ()  # what the checkpoint has or asks for that is not used
    adapters: AdapterBank | None = None  # None: it has no room for any

    def lines(self) -> tuple[str, ...]:
        """What a user is told of quantized weights at start-up."""
        dtype, device = self.model.placement.dtype, self.model.placement.device
        weights = weight_bytes(
            self.model.share,
            self.formats,
            dtype=dtype,
            tables_on_host=self.tables_on_host,
            prepared_on=prepared_on(device),
        )
        return (
            *([f"Weights: {weights.line}."] if weights.line else []),
            *([] if self.adapters is None else [self.adapters.line()]),
            *([f"Per-layer embeddings: {weights.on_host / 2**30:.2f} GiB in the host's memory."] * self.tables_on_host),
            *self.notes,
        )


def load_model(
    config: ModelConfig,
    progress: Progress | None = None,
    *,
    arithmetic: Arithmetic = USUAL,
    group: RankGroup | None = None,
) -> LoadedModel:
    """Read, check, build, fill. Nothing is allocated before everything has been checked.

    `group`: the ranks that share the model; only what this one holds is read.
    """
    progress = progress or Silent()
    spec, folder = read_spec(config)
    room = plan_room(config, spec)
    fields = read_config_file(folder / "config.json", config.hf_overrides)
    scheme = read_scheme(fields, folder)
    quantization = quantization_while_loading(config.quantization, None if scheme is None else scheme.name)
    context_length = resolve_context_length(config.max_model_len, spec)
    rank = ALONE if group is None else group.rank
    device = resolve_device(config.device, rank)
    if arithmetic is BATCH_INVARIANT and device.type == "cuda":
        never_split_sums()
    notes = () if scheme is None else scheme.notes
    tables_on_host = config.embeddings_on_cpu and device.type == "cuda" and spec.per_layer_input is not None
    if config.embeddings_on_cpu and not tables_on_host:
        notes += (NO_TABLES if spec.per_layer_input is None else ON_THE_HOST_ANYWAY,)
    formats: Formats
    found = FoundTowers()
    if config.load_format == "dummy":
        if not config.language_model_only:
            found = find_towers(fields, spec, None)
        dtype = resolve_dtype(config.dtype, dtype_of_config(spec), device)
        formats = online_formats(spec, expected_formats(spec, scheme), quantization, config.quantize_head)
        share = shard_of(spec, rank.size, formats)
        placement = Placement(dtype=dtype, device=device, arithmetic=arithmetic, group=group)
        model = build_model(spec, context_length, placement, share, formats=formats, tables_on_host=tables_on_host)
        if tables_on_host:  # first, so that the GPU draws the numbers
            serve_from_host(model.get_submodule(PER_LAYER_TABLE), device)
        fill_dummy_weights(model, device, config.seed, progress)
    else:
        headers = read_headers(find_weight_files(folder))
        matched = match_tensors(spec, headers, scheme)
        if not config.language_model_only:
            found = find_towers(fields, spec, headers, scheme)
        # A GGUF file keeps norms and routers in float32, whatever its matrices are: its config says what to compute in.
        stored = dtype_of_config(spec) if scheme is not None and scheme.name == "gguf" else common_dtype(matched)
        dtype = resolve_dtype(config.dtype, stored, device)
        stored_formats = formats_of(matched)
        formats = online_formats(spec, stored_formats, quantization, config.quantize_head)
        online = {name: format for name, format in formats.items() if name not in stored_formats}
        share = shard_of(spec, rank.size, formats)
        placement = Placement(dtype=dtype, device=device, arithmetic=arithmetic, group=group)
        model = build_model(spec, context_length, placement, share, formats=formats, tables_on_host=tables_on_host)
        load_weights(model, matched, progress, scheme, cuts=cuts_of(spec, share, rank), online=online)
        if tables_on_host:
            serve_from_host(model.get_submodule(PER_LAYER_TABLE), device)
        notes += cache_notes(headers, notes)
    adapters = None if room is None else AdapterBank(model, room, cuts_of(spec, share, rank))
    for module in model.modules():
        if isinstance(module, Linear):
            module.prepare()
    if adapters is not None and room is not None:
        for number, file in enumerate(room.files, start=1):
            adapters.put(number, file)
    return LoadedModel(
        model=model.eval(),
        spec=spec,
        folder=folder,
        context_length=context_length,
        formats=formats,
        tables_on_host=tables_on_host,
        towers=found.load(replace(placement, group=None), progress, seed=config.seed),  # each rank has them whole
        notes=(*notes, *found.notes),
        adapters=adapters,
    )


def cuts_of(spec: ModelSpec, share: ModelSpec, rank: Rank) -> dict[str, Cut]:
    """The cuts of the tensors of which a rank holds only a part, by name."""
    targets = zip(tensor_targets(spec), tensor_targets(share), strict=True)
    cuts = {whole.name: cut_of(whole, part, rank) for whole, part in targets}
    return {name: cut for name, cut in cuts.items() if cut is not None}


def cache_notes(names: Iterable[str], notes: Sequence[str]) -> tuple[str, ...]:
    """What to say of scales for the KV cache among tensors, unless it has been said."""
    has_scales = any(is_cache_scale(name) for name in names)
    return (CACHE_SCALES,) if has_scales and CACHE_SCALES not in notes else ()


def build_model(
    spec: ModelSpec,
    context_length: int,
    placement: Placement,
    share: ModelSpec | None = None,
    *,
    formats: Formats = MappingProxyType({}),
    tables_on_host: bool = False,
) -> Gemma:
    """A model with uninitialised weights, those of `formats` quantized. `share`: what this rank holds; None:
    everything."""
    share = share or spec
    dtype, device = placement.dtype, placement.device
    check_dtype(dtype, device)
    needed = memory_needed(share, context_length, dtype, formats, tables_on_host=tables_on_host, on=prepared_on(device))
    asked = f"The weights take {needed / 2**30:,.1f} GiB as {str(dtype).removeprefix('torch.')}"
    if device.type == "cpu":
        # Asked beforehand: an operating system promises more than it has, and ends the process when that is used.
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > total:
            raise CapacityError(
                f"{asked}, but this machine has {total / 2**30:,.1f} GiB of memory. Use a smaller model"
                f"{' or --dtype bfloat16, which is slow on this processor' * (not multiplies_bfloat16(device))}."
            )
    try:
        if not formats and not tables_on_host:
            return Gemma(spec, context_length, placement, share)
        without = WithoutMatrices(dtype=dtype, device=device, arithmetic=placement.arithmetic, group=placement.group)
        model = Gemma(spec, context_length, without, share)
        place_weights(model, formats, tables_on_host=tables_on_host)
        return model
    except torch.OutOfMemoryError:
        free, total = torch.cuda.mem_get_info(device)
        raise CapacityError(
            f"{asked}, but {device} has {total / 2**30:,.1f} GiB of memory, {free / 2**30:,.1f} GiB of it free. "
            "Use a smaller model or --device cpu."
        ) from None


def memory_needed(
    spec: ModelSpec,
    context_length: int,
    dtype: torch.dtype,
    formats: Formats = MappingProxyType({}),
    *,
    tables_on_host: bool = False,
    on: str | None = None,
) -> int:
    """Bytes of a model's weights and tables of angles, without what is in the host's memory."""
    weights = weight_bytes(spec, formats, dtype=dtype, tables_on_host=tables_on_host, prepared_on=on)
    return weights.total + table_bytes(spec, context_length, dtype)


def table_bytes(spec: ModelSpec, context_length: int, dtype: torch.dtype) -> int:
    """The bytes of the cosines and sines of every position, for each kind of layer."""
    layers = {layer.attention: layer for layer in spec.layers}.values()
    num_pairs = sum(layer.rotary.num_rotated_pairs(layer.head_dim) for layer in layers)
    return context_length * 2 * num_pairs * dtype.itemsize
