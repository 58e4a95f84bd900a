"""Makes a runner of a config: loads the model, sizes the cache, compiles kernels and captures graphs."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from facet.config import EngineConfig
from facet.drafts.combined_drafter import CombinedDrafter
from facet.drafts.config import DraftConfig, ModelDrafts, read_draft_config
from facet.drafts.model_drafter import ModelDrafter
from facet.drafts.step_times import StepTimes
from facet.drafts.text_drafter import TextDrafter
from facet.engine.adapters import Adapters, without_adapters
from facet.engine.device_failures import device_failures_in_words
from facet.engine.found_drafter import with_found_drafter
from facet.engine.number_checks import check_numbers
from facet.engine.settings import EngineSettings, resolve
from facet.engine.start_times import StartClock
from facet.errors import ConfigError
from facet.kv_dtypes import parse_kv_cache_dtype
from facet.layers.kv_arena import KVArena
from facet.layers.rank_group import RankGroup
from facet.model.batch_invariance import arithmetic_of, with_batch_invariance
from facet.model.draft_loader import load_draft_model
from facet.model.draft_model import DraftModel
from facet.model.loader import LoadedModel, load_model
from facet.model.resolving import resolve_device
from facet.model.weight_map import PER_LAYER_TABLE
from facet.progress import Progress, Silent
from facet.ranks import ALONE
from facet.runner.compile_ahead import CompileAhead
from facet.runner.compile_process import CompileProcess
from facet.runner.late_kernels import report_late_kernels
from facet.runner.runner import Runner
from facet.runner.sleeping import Sleeper, move_weights
from facet.scheduler.drafting import Drafter

MADE_UP_RATES = (
    "Drafts are accepted at made-up rates (synthetic_acceptance_rates), for measurements: answers mean nothing."
)
# Settings that change no kernel: a start that differs in these alone finds everything compiled.
_NEED_NO_KERNELS = {
    "hf_token", "download_dir", "seed", "max_step_ms", "enable_prefix_caching", "async_scheduling", "enable_sleep_mode"
}  # fmt: skip


class ReadyRunner(NamedTuple):
    runner: Runner
    settings: EngineSettings
    folder: Path  # that the model came from
    drafter: Drafter | None
    sleeper: Sleeper | None = None  # None: it never sleeps
    adapters: Adapters | None = None  # None: there is no room for any


def make_runner(
    config: EngineConfig,
    progress: Progress,
    group: RankGroup | None = None,
    clock: StartClock | None = None,
    compiling: CompileProcess | None = None,
) -> ReadyRunner:
    """`group`: the ranks that share the model; the runner is of what this one holds. Of a start that has begun before:
    its `clock`, and a process for `compiling` kernels."""
    clock = clock or StartClock()
    with device_failures_in_words():
        check_numbers(config)
        parse_kv_cache_dtype(config.kv_cache_dtype)  # refused now rather than after loading
        rank = ALONE if group is None else group.rank
        chosen_device = resolve_device(config.device, rank)
        config = with_batch_invariance(config, chosen_device)
        config, draft_lines = with_found_drafter(config, chosen_device)
        draft_config = read_draft_config(config.speculative_config)
        if config.enable_sleep_mode and group is not None:
            raise ConfigError("--enable-sleep-mode works with --tensor-parallel-size 1 only. Leave one of the two out.")
        ahead = None
        if chosen_device.type == "cuda":
            like = (settings_of_kernels(config), torch.cuda.get_device_name(chosen_device))
            ahead = CompileAhead(like, compiling)
        elif compiling is not None:
            compiling.end()
        loaded, draft_model = _load(config, draft_config, progress, group)
        if ahead is not None:
            ahead.wait_for_hash()
        clock.ends("weights")
        made_up_rates = draft_config.made_up_rates if isinstance(draft_config, ModelDrafts) else ()
        lines = (*loaded.lines(), *_sum_lines(group), *draft_lines, *((MADE_UP_RATES,) if made_up_rates else ()))
        settings = resolve(config, loaded.model, lines, loaded.towers, ahead)
        clock.ends("memory")
        if settings.num_threads is not None:
            torch.set_num_threads(settings.num_threads)
        device = loaded.model.placement.device
        modules = _modules(loaded, draft_model)
        weights = None
        if config.enable_sleep_mode:  # they move when they have been measured, before graphs keep their addresses
            tables = [loaded.model.get_submodule(PER_LAYER_TABLE)] if loaded.tables_on_host else []
            weights = move_weights(modules, tables_on_host=tables)
        arena = KVArena(settings.layout, settings.num_blocks, device, is_removable=config.enable_sleep_mode)
        runner = Runner(
            loaded.model,
            arena,
            max_num_seqs=settings.max_num_seqs,
            max_model_len=settings.max_model_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            fast_prefill=settings.fast_prefill,
            poison_freed_blocks=settings.poison_freed_blocks,
            graph_sizes=settings.graph_sizes,
            piece_sizes=settings.piece_sizes,
            towers=loaded.towers,
            has_drafts=draft_config is not None,
            draft_model=draft_model,
            made_up_rates=made_up_rates,
            num_encoder_rows=0 if settings.encoder is None else settings.encoder.num_rows,
        )
        clock.ends("cache")
        runner.compile_kernels(progress, ahead)
        if ahead is not None:
            ahead.end()
        clock.ends("kernels")
        graphs_taken = runner.capture_graphs(progress)
        clock.ends("graphs")
        if device.type == "cuda":
            report_late_kernels()
        # On every rank, though only rank 0 drafts: they run the steps that are timed together.
        drafter = None
        if draft_config is not None:
            drafter = _make_drafter(draft_config, StepTimes(runner.time_steps(), runner.time_drafts()))
            clock.ends("steps timed")
        adapters = None
        if loaded.adapters is not None:
            adapters = Adapters(loaded.adapters, runner.shift_of)
            clock.ends("adapters")
        if group is not None:
            group.meet(device)  # a model is ready once all its ranks are
    if settings.gpu_memory is not None:
        settings = replace(settings, gpu_memory=replace(settings.gpu_memory, graphs_taken=graphs_taken))
    if adapters is not None:
        settings = replace(settings, weight_lines=(*settings.weight_lines, *adapters.lines()))
    sleeper = None
    if weights is not None:
        again = config if loaded.adapters is None else without_adapters(config, loaded.adapters.room)
        sleeper = Sleeper(modules, weights, arena, partial(_load_again, again, draft_config))
    return ReadyRunner(runner, settings, loaded.folder, drafter, sleeper, adapters)


def _load(
    config: EngineConfig, draft_config: DraftConfig | None, progress: Progress, group: RankGroup | None = None
) -> tuple[LoadedModel, DraftModel | None]:
    loaded = load_model(config, progress, arithmetic=arithmetic_of(config), group=group)
    if not isinstance(draft_config, ModelDrafts):
        return loaded, None
    return loaded, load_draft_model(draft_config.model, loaded.model, config, progress)


def _load_again(config: EngineConfig, draft_config: DraftConfig | None) -> Sequence[nn.Module]:
    with device_failures_in_words():
        return _modules(*_load(config, draft_config, Silent()))


def settings_of_kernels(config: EngineConfig) -> list[tuple[str, object]]:
    """The settings that may decide which kernels are needed: not those that only a server has, for example."""
    names = (field.name for field in fields(EngineConfig))
    return [(name, getattr(config, name)) for name in names if name not in _NEED_NO_KERNELS]


def _sum_lines(group: RankGroup | None) -> tuple[str, ...]:
    return () if group is None or not group.line else (group.line,)


def _modules(loaded: LoadedModel, draft_model: DraftModel | None) -> Sequence[nn.Module]:
    return [loaded.model, *loaded.towers.values(), *([] if draft_model is None else [draft_model])]


def _make_drafter(config: DraftConfig, step_times: StepTimes) -> Drafter:
    if not isinstance(config, ModelDrafts):
        return TextDrafter(config, step_times)
    drafter = ModelDrafter(config.num_drafts, step_times)
    if config.from_text is None:
        return drafter
    return CombinedDrafter(TextDrafter(config.from_text, step_times), drafter, step_times)
