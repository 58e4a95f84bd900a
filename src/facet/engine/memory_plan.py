"""`facet plan`: computes where a GPU's memory goes and what fits into the rest, for every KV dtype, without a GPU.

The memory is divided by the function that a starting engine uses. What that engine measures is estimated here, rather
too high than too low, so that what a plan says fits does: activations from shapes, and what a driver and others take.
Weights are counted, as a GPU's kernels want them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from facet.drafts.config import ModelDrafts, read_draft_config
from facet.engine.capacity import Capacity, capacity_of
from facet.engine.found_drafter import with_found_drafter
from facet.engine.number_checks import check_numbers
from facet.engine.plan_config import PlanConfig
from facet.engine.settings import context_that_fits, shape_steps, usable_bytes
from facet.errors import CapacityError, ConfigError
from facet.kv_dtypes import KV_DTYPES, choose_kv_dtypes
from facet.kv_layout import make_kv_layout
from facet.media_span import MediaKind
from facet.model.adapters import plan_room, room_bytes
from facet.model.batch_invariance import is_batch_invariant
from facet.model.checkpoint import formats_of, match_tensors
from facet.model.config_fields import read_config_file
from facet.model.draft_loader import draft_weight_bytes, read_draft_model_spec
from facet.model.families import read_model_spec
from facet.model.hub import CONFIG_ONLY, access_of, folder_of, local_folder
from facet.model.loader import table_bytes
from facet.model.quantized.choose import read_scheme
from facet.model.resolving import dtype_of_config, resolve_context_length, resolve_dtype
from facet.model.shard import division_line, shard_of
from facet.model.towers import find_towers
from facet.model.weight_files import find_weight_files, has_weights, read_headers
from facet.model.weight_formats import (
    Formats,
    WeightBytes,
    choose_weight_format,
    expected_formats,
    online_formats,
    quantization_while_loading,
    weight_bytes,
)
from facet.model_spec import LayerSpec, ModelSpec
from facet.quantity import parse_quantity
from facet.runner.memory import EncoderCapacity, GpuMemory, StepShape, divide_memory, tower_shape

_GPU = torch.device("cuda")
_LENGTHS = (2048, 8192, 32_768, 131_072)
_LEAST_MEMORY = 2**20  # of a GPU; a smaller number lacks its unit
# What CUDA, its kernels and the gaps between tensors took beside the weights that a plan counts: 0.72 to 0.99 GiB on an
# H200. Smaller GPUs have fewer processors to keep memory for; nothing has been measured there.
_OTHERS, _OTHERS_SHARE = 1 << 30, 1 / 24
# A slice of a matrix whose codes are brought to the type of activations before it is multiplied.
_WIDENED_BYTES = 64 << 20
# cuBLAS's, and what is too small to be counted.
_WORKSPACE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """All figures are per GPU; each GPU holds its share of every layer and of every request."""

    model: str
    spec: ModelSpec  # of the whole model
    num_gpus: int
    division: str  # what is on every GPU, and what is divided
    dtype: str
    weights: WeightBytes
    towers: int  # bytes of the weights that turn media into rows
    drafter: int  # bytes of the weights of a model that drafts
    adapters: int  # bytes of the room for adapters
    tables: int  # bytes of the angles of every position
    gpu_memory: GpuMemory | None  # None: the cache was given its size
    gpu_memory_utilization: float
    lengths: tuple[int, ...]  # of requests, in tokens, the longest allowed last
    asked: str  # the KV dtype that an engine would run with
    capacities: Mapping[str, Capacity | CapacityError]  # by KV dtype; an error: why it does not fit
    encoder: EncoderCapacity | None  # None: the model takes text alone

    @property
    def capacity(self) -> Capacity:
        """The capacity with the KV dtype asked for."""
        found = self.capacities[self.asked]
        assert isinstance(found, Capacity), "a plan whose own dtype does not fit is refused"
        return found


def make_plan(config: PlanConfig) -> MemoryPlan:
    """Read the config of the model named, and the headers of its weights where they are at hand, and count."""
    check_numbers(config)
    if not config.model:
        raise ConfigError("No model was named. Give a folder or a name on the hub (owner/name): facet plan MODEL.")
    config, _ = with_found_drafter(config, _GPU)
    num_gpus = config.tensor_parallel_size
    folder = folder_of(config, config_only=True)
    fields = read_config_file(folder / "config.json", config.hf_overrides)
    format_source = choose_weight_format(config.weight_format, config.weight_group_size, fields, folder)
    spec = read_model_spec(fields)
    dtype = resolve_dtype(config.dtype, dtype_of_config(spec), _GPU)
    model_dtype, value_bytes = str(dtype).removeprefix("torch."), dtype.itemsize
    max_model_len = resolve_context_length(config.max_model_len, spec)
    stored: Formats = expected_formats(spec, format_source)
    headers = read_headers(find_weight_files(folder)) if has_weights(folder) else None
    if config.weight_format == "auto" and format_source is not None and headers is not None:
        # Headers know what a config does not say: types of scales, and matrices that were left alone.
        stored = formats_of(match_tensors(spec, headers, read_scheme(fields, folder)))
    quantization = config.quantization
    if quantization is not None:
        scheme = read_scheme(fields, folder)
        quantization = quantization_while_loading(quantization, None if scheme is None else scheme.name)
    formats = online_formats(spec, stored, quantization, config.quantize_head)
    shard = shard_of(spec, num_gpus, formats)
    weights = weight_bytes(shard, formats, dtype=dtype, tables_on_host=config.embeddings_on_cpu, prepared_on=_GPU.type)
    widens = any(format.code_bits == 4 or not format.has_row_scales for format in formats.values())
    tables = table_bytes(shard, max_model_len, dtype)
    towers: Mapping[MediaKind, nn.Module] = {}
    if not config.language_model_only:
        found = find_towers(fields, spec, headers, None if headers is None else read_scheme(fields, folder))
        towers = found.on_meta(dtype)
    tower_weights = sum(
        tensor.nbytes for tower in dict.fromkeys(towers.values()) for tensor in (*tower.parameters(), *tower.buffers())
    )
    drafter_weights = drafter_bytes(config, spec, value_bytes)

    room = plan_room(config, spec)
    adapter_room = 0 if room is None else room_bytes(room, shard, value_bytes)

    def shape_of(asked: str) -> StepShape:
        dtypes = choose_kv_dtypes(
            spec, asked=asked, skip_layers=config.kv_cache_dtype_skip_layers, model_dtype=model_dtype
        )
        return shape_steps(
            config,
            shard,
            make_kv_layout(shard, dtype=dtypes),
            vocab_size=spec.vocab_size,
            value_bytes=value_bytes,
            max_model_len=max_model_len,
            is_batch_invariant=is_batch_invariant(config.batch_invariant, _GPU, formats),
            on_gpu=True,
            towers=tower_shape(towers),
        )

    def gpu_memory_of(shape: StepShape) -> GpuMemory | None:
        if config.kv_cache_memory_bytes is not None:
            return None
        if config.gpu_memory is None:
            raise ConfigError(
                "Say how much memory there is: --gpu-memory 24GiB, or --kv-cache-memory-bytes for the cache."
            )
        total = parse_size(config.gpu_memory)
        return divide_memory(
            shape,
            total=total,
            usable=usable_bytes(config, total),
            weights=weights.total + tower_weights + drafter_weights + adapter_room + tables,
            activations=estimate_activations(spec, shape, widens=widens),
            others=estimate_others(total),
        )

    def capacity(asked: str) -> Capacity:
        shape = shape_of(asked)
        memory = gpu_memory_of(shape)
        num_bytes = config.kv_cache_memory_bytes if memory is None else memory.cache
        assert num_bytes is not None
        return capacity_of(
            shape.layout,
            num_bytes,
            takes_all=True,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=context_that_fits(config, shape, num_bytes),
        )

    asked = model_dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    own = capacity(asked)
    capacities: dict[str, Capacity | CapacityError] = {asked: own}
    for name in (model_dtype, *(name for name, dtype in KV_DTYPES.items() if dtype.is_quantized)):
        if name not in capacities:
            try:
                capacities[name] = capacity(name)
            except CapacityError as error:
                capacities[name] = error
    return MemoryPlan(
        model=config.model,
        spec=spec,
        num_gpus=num_gpus,
        division=division_line(spec, shard, num_gpus, has_towers=bool(towers)),
        dtype=model_dtype,
        weights=weights,
        towers=tower_weights,
        drafter=drafter_weights,
        adapters=adapter_room,
        tables=tables,
        gpu_memory=gpu_memory_of(shape_of(asked)),
        gpu_memory_utilization=config.gpu_memory_utilization,
        lengths=(*(length for length in _LENGTHS if length < own.max_model_len), own.max_model_len),
        asked=asked,
        capacities=capacities,
        encoder=shape_of(asked).encoder,
    )


def drafter_bytes(config: PlanConfig, target: ModelSpec, value_bytes: int) -> int:
    """The bytes of a drafter's weights on each GPU; 0: there is none, or it has no weights."""
    drafts = read_draft_config(config.speculative_config)
    if not isinstance(drafts, ModelDrafts):
        return 0
    folder = local_folder(drafts.model, patterns=CONFIG_ONLY, access=access_of(config))
    spec = read_draft_model_spec(read_config_file(folder / "config.json"), target, drafts.model)
    return draft_weight_bytes(spec, value_bytes=value_bytes, num_ranks=config.tensor_parallel_size)


def estimate_others(total: int) -> int:
    """What a GPU of so many bytes has for nobody."""
    return min(_OTHERS, int(total * _OTHERS_SHARE))


def estimate_activations(spec: ModelSpec, shape: StepShape, *, widens: bool = False) -> int:
    """What the step takes for a moment that an engine measures: the widest layer's tensors of all its rows, or the
    logits.

    An estimate, no less than what engines have measured (tests/engine/test_memory_plan.py). A step that runs frees and
    reuses memory in its own order. `spec` is of the whole model: what one GPU holds of a row between layers is all of
    it. `widens`: slices of some matrices are brought to activations' type before they are multiplied.
    """
    longest = min(shape.max_num_batched_tokens, shape.max_model_len)
    num_rows = shape.max_num_seqs + shape.max_num_batched_tokens // longest * longest
    num_streams = 1 if spec.altup is None else spec.altup.num_streams
    # Before a layer and inside it, what their norms made, and the embedding, which the first layers' caller keeps.
    streams = (4 * num_streams + 1) * spec.hidden_size
    inputs = 0 if spec.per_layer_input is None else spec.num_layers * spec.per_layer_input.width
    widest = max(_widest_moment(layer, spec.hidden_size) for layer in shape.spec.layers)
    # Inputs of all layers are looked up and mixed before there is any layer.
    rows = num_rows * max(streams + inputs + widest, spec.hidden_size + 3 * inputs) * shape.value_bytes
    # Logits as a product leaves them, and twice in float32.
    logits = shape.max_num_seqs * shape.spec.vocab_size * 8
    return max(rows, logits) + _WORKSPACE_BYTES + (_WIDENED_BYTES if widens else 0)


def _widest_moment(layer: LayerSpec, hidden_size: int) -> int:
    """Values per token: the packed projection, queries and result of attention; or gates, their product, the output."""
    attention = layer.query_width + 2 * layer.kv_width + 2 * layer.query_width
    mlp = 3 * layer.mlp_width + hidden_size
    if layer.moe is not None:
        mlp += layer.moe.num_chosen * (3 * layer.moe.width + hidden_size)
    return max(attention, mlp)


def parse_size(text: str) -> int:
    """Bytes of a GPU's memory from 24GiB, 24GB, 24G (which is 24GiB) or a plain number of bytes."""
    try:
        size = parse_quantity(text)
    except ValueError:
        size = 0
    if text.strip().isdigit() and 0 < size < _LEAST_MEMORY:
        raise ConfigError(f"--gpu-memory {size} would be {size} bytes. GiB? Then write --gpu-memory {size}GiB.")
    if size < 1:
        raise ConfigError(f"--gpu-memory {text} is not a size. Write it like 24GiB, 24GB or 25769803776.")
    return size
