"""Resolves an `EngineConfig` into settings with a definite value for every question, for one model on one device."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from facet.config import EngineConfig
from facet.drafts.config import ModelDrafts, most_drafts, read_draft_config
from facet.engine.capacity import Capacity, capacity_of
from facet.engine.cpu_threads import are_threads_given, choose_num_threads, usable_cores
from facet.engine.start_lines import NO_KERNELS, arithmetic_line, fp8_lines, threads_line, widened_line
from facet.errors import ConfigError
from facet.kv_cache.accountant import blocks_for, longest_request
from facet.kv_dtypes import check_hardware, choose_kv_dtypes
from facet.kv_layout import KVLayout, make_kv_layout
from facet.layers.moe import Experts
from facet.layers.quantized_weight import ProductWeight
from facet.media_span import MediaKind
from facet.model.gemma import Gemma
from facet.model.shard import division_line
from facet.model_spec import ModelSpec
from facet.runner.compile_ahead import CompileAhead
from facet.runner.draft_ahead import draft_sizes
from facet.runner.graphs import default_sizes
from facet.runner.measuring import cpu_cache_bytes, measure_gpu_memory
from facet.runner.memory import (
    MAX_ENCODED_ROWS,
    EncoderCapacity,
    GpuMemory,
    StepShape,
    TowerShape,
    divide_memory,
    tower_shape,
)
from facet.runner.pieces import sizes_up_to
from facet.runner.runner import NO_TOWERS

GPU_BATCHED_TOKENS, CPU_BATCHED_TOKENS = 8192, 2048  # where --max-num-batched-tokens does not say
# Steps with drafts are captured for so many rows at least: beyond, few drafts are worth their time.
MOST_ROWS_WITH_DRAFTS = 384


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine runs with: every question is answered, and nothing changes it later."""

    layout: KVLayout
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_prefix_caching: bool
    fast_prefill: bool
    overlapped: bool
    poison_freed_blocks: bool
    heeds_priority: bool = True  # of requests
    weight_lines: tuple[str, ...] = ()  # how weights are quantized, and what of the checkpoint is not used
    widened: str | None = None  # said of what is stored in bfloat16 and computed in float32
    arithmetic_line: str = ""  # whether answers are batch-invariant, for people
    keeps_answers: bool = True  # the prefix cache has generated tokens, too
    graph_sizes: tuple[int, ...] = ()  # empty: no graphs
    piece_sizes: tuple[int, ...] = ()  # of steps with longer runs; empty: their lower layers are not captured
    max_step_seconds: float | None = None  # None: prompts get as many rows as the budget has
    num_threads: int | None = None  # None: on a GPU, or as torch was told
    encoder: EncoderCapacity | None = None  # None: the model has no towers
    max_num_encoded_rows: int = MAX_ENCODED_ROWS  # by towers, in one step
    gpu_memory: GpuMemory | None = None  # None: on a CPU, or the cache was given its size
    division: str = ""  # how ranks divide the model; empty: there is one

    @property
    def capacity(self) -> Capacity:
        return Capacity(
            layout=self.layout,
            num_blocks=self.num_blocks,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
        )

    def lines(self) -> list[str]:
        """The lines printed at start-up."""
        return [
            *([self.division] if self.division else []),
            *self.weight_lines,
            *(() if self.gpu_memory is None else (self.gpu_memory.line(),)),
            *self.capacity.lines(),
            *(() if self.encoder is None else (self.encoder.line(),)),
            *([] if self.widened is None else [self.widened]),
            *([] if self.num_threads is None else [threads_line(self.num_threads)]),
            self.arithmetic_line,
        ]


def resolve(
    config: EngineConfig,
    model: Gemma,
    weight_lines: tuple[str, ...] = (),
    towers: Mapping[MediaKind, nn.Module] = NO_TOWERS,
    ahead: CompileAhead | None = None,
) -> EngineSettings:
    """Fills in what the user left open, and refuses what is impossible. `weight_lines`: what to say of the weights.

    `ahead`: see `Runner.compile_kernels`.
    """
    on_gpu = model.placement.device.type == "cuda"
    group = model.placement.group
    num_ranks = 1 if group is None else group.rank.size
    weights = [module for module in model.modules() if isinstance(module, ProductWeight | Experts)]
    if on_gpu and not all(weight.has_kernels for weight in weights):
        # Their products are plain PyTorch, some of which a graph cannot hold.
        config = replace(config, enforce_eager=True)
        weight_lines += (NO_KERNELS,)
    weight_lines += fp8_lines(weights, model.placement.device)
    shape = shape_steps(
        config,
        model.share,
        make_kv_layout(model.share, dtype=resolve_kv_dtypes(config, model)),
        vocab_size=model.spec.vocab_size,
        value_bytes=model.placement.dtype.itemsize,
        max_model_len=model.num_positions,
        is_batch_invariant=model.placement.is_batch_invariant,
        on_gpu=on_gpu,
        towers=tower_shape(towers),
    )
    num_bytes, gpu_memory = config.kv_cache_memory_bytes, None
    if num_bytes is None and on_gpu:
        measured = measure_gpu_memory(model, shape, ahead)
        gpu_memory = divide_memory(
            shape,
            total=measured.total,
            usable=usable_bytes(config, measured.total),
            weights=measured.weights,
            activations=measured.activations,
            others=measured.total - measured.free - measured.weights,
        )
        num_bytes = gpu_memory.cache
    elif num_bytes is None:
        num_bytes = cpu_cache_bytes(_weight_bytes(model), at_least=_one_request_bytes(shape)) // num_ranks
    if group is not None:
        num_bytes = group.least(num_bytes, model.placement.device)  # all ranks keep the same books
    max_model_len = context_that_fits(config, shape, num_bytes)
    capacity = capacity_of(
        shape.layout,
        num_bytes,
        takes_all=on_gpu or config.kv_cache_memory_bytes is not None,
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=max_model_len,
    )
    return EngineSettings(
        layout=shape.layout,
        num_blocks=capacity.num_blocks,
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=config.enable_prefix_caching,
        fast_prefill=config.kv_sharing_fast_prefill,
        # A CPU computes a step while it is launched: to settle it later would only deliver its tokens later.
        overlapped=config.async_scheduling and on_gpu,
        poison_freed_blocks=config.debug_poison_freed_blocks,
        heeds_priority=config.scheduling_policy == "priority",
        weight_lines=weight_lines,
        widened=widened_line(config, model),
        arithmetic_line=arithmetic_line(is_batch_invariant=shape.is_batch_invariant),
        keeps_answers=not model.placement.attends_by_role,
        graph_sizes=shape.graph_sizes,
        piece_sizes=shape.piece_sizes,
        max_step_seconds=None if config.max_step_ms is None else config.max_step_ms / 1000,
        num_threads=(
            None
            if on_gpu or are_threads_given()
            else choose_num_threads(_weight_bytes(model), max(1, usable_cores() // num_ranks))
        ),
        encoder=shape.encoder,
        gpu_memory=gpu_memory,
        division=division_line(model.spec, model.share, num_ranks, has_towers=bool(towers)),
    )


def _weight_bytes(model: Gemma) -> int:
    quantized = (module for module in model.modules() if isinstance(module, ProductWeight))
    codes = (buffer for module in quantized for buffer in module.buffers(recurse=False))
    return sum(tensor.nbytes for tensor in (*model.parameters(), *codes))


def _one_request_bytes(shape: StepShape) -> int:
    """The bytes of the pages that a request of the whole context needs."""
    num_blocks = blocks_for(
        shape.layout,
        num_sequences=1,
        num_tokens=shape.max_model_len,
        max_num_batched_tokens=shape.max_num_batched_tokens,
    )
    return num_blocks * shape.layout.total_page_bytes


def shape_steps(
    config: EngineConfig,
    spec: ModelSpec,
    layout: KVLayout,
    *,
    vocab_size: int,
    value_bytes: int,
    max_model_len: int,
    is_batch_invariant: bool,
    on_gpu: bool,
    towers: TowerShape | None = None,
) -> StepShape:
    """What the flags say about steps. `spec` and `layout` are of one GPU's share, `vocab_size` of the whole model."""
    drafts = read_draft_config(config.speculative_config)
    graph_sizes = resolve_graph_sizes(config) if on_gpu else ()
    max_num_batched_tokens = config.max_num_batched_tokens or (GPU_BATCHED_TOKENS if on_gpu else CPU_BATCHED_TOKENS)
    return StepShape(
        spec=spec,
        vocab_size=vocab_size,
        layout=layout,
        value_bytes=value_bytes,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        graph_sizes=graph_sizes,
        piece_sizes=resolve_piece_sizes(config, spec, max_num_batched_tokens) if on_gpu else (),
        is_batch_invariant=is_batch_invariant,
        towers=towers,
        draft_sizes=draft_sizes(graph_sizes, config.max_num_seqs) if isinstance(drafts, ModelDrafts) else (),
        has_adapters=config.enable_lora or bool(config.lora_modules),
    )


def context_that_fits(config: EngineConfig, shape: StepShape, num_bytes: int) -> int:
    """The longest context: what the config and the model say, or for `auto` as much of it as the cache can hold."""
    if config.max_model_len != "auto":
        return shape.max_model_len
    longest = longest_request(shape.layout, max(0, num_bytes) // shape.layout.total_page_bytes)
    return shape.max_model_len if longest is None else max(1, min(longest, shape.max_model_len))


def usable_bytes(config: EngineConfig, total: int) -> int:
    """The bytes of a GPU's memory that weights, activations and cache may take."""
    return int(total * config.gpu_memory_utilization)


def resolve_kv_dtypes(config: EngineConfig, model: Gemma) -> dict[int, str]:
    """What each layer that owns keys stores them in, on this device."""
    model_dtype = str(model.placement.dtype).removeprefix("torch.")
    dtypes = choose_kv_dtypes(
        model.spec,
        asked=config.kv_cache_dtype,
        skip_layers=config.kv_cache_dtype_skip_layers,
        model_dtype=model_dtype,
    )
    device = model.placement.device
    if device.type == "cuda":
        name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
        check_hardware(dtypes.values(), device=name, capability=capability)
    return dtypes


def resolve_graph_sizes(config: EngineConfig) -> tuple[int, ...]:
    if config.enforce_eager:
        return ()
    most_rows, drafts = config.max_num_seqs, read_draft_config(config.speculative_config)
    if drafts is not None:
        most_rows = max(most_rows, min(most_rows * (1 + most_drafts(drafts)), MOST_ROWS_WITH_DRAFTS))
    sizes = config.cudagraph_capture_sizes
    if not sizes:
        return tuple(sorted({*default_sizes(most_rows), config.max_num_seqs}))
    if min(sizes) < 1:
        raise ConfigError(f"--cudagraph-capture-sizes holds {min(sizes)}, but a step has 1 request or more.")
    return tuple(sorted({min(size, most_rows) for size in sizes}))


def resolve_piece_sizes(config: EngineConfig, spec: ModelSpec, max_num_batched_tokens: int) -> tuple[int, ...]:
    """A step has as many rows of prompts as the budget says, and beside them a single one of every other request."""
    return () if config.enforce_eager else sizes_up_to(max_num_batched_tokens + config.max_num_seqs, spec)
