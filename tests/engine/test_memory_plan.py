"""The plan against the engine it plans for: the same memory must give the same numbers, in the same words."""

from pathlib import Path

import pytest

from facet.config import EngineConfig, PlanConfig
from facet.engine.capacity import Capacity
from facet.engine.memory_plan import MemoryPlan, estimate_activations, make_plan, parse_size
from facet.engine.settings import resolve
from facet.errors import CapacityError, ConfigError
from facet.kv_dtypes import KV_DTYPES
from facet.model.families import read_model_spec
from facet.model.loader import load_model
from facet.runner.graphs import default_sizes
from facet.runner.memory import graph_bytes, piece_bytes, scratch_bytes
from facet.runner.pieces import SIZES
from facet.sampling import max_device_bytes
from tests.published_configs import PUBLISHED, Config
from tests.tiny_checkpoints import SHRUNK, write_config

GIB = 2**30


def plan_of(folder: Path, config: Config, **flags: object) -> MemoryPlan:
    write_config(folder, config)
    return make_plan(PlanConfig(model=str(folder), **flags))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 4 31B", "Gemma 4 26B-A4B", "Gemma 3 4B"])
@pytest.mark.parametrize(
    "choice", ["auto", *(name for name, dtype in KV_DTYPES.items() if dtype.is_quantized), "global=fp8,sliding=auto"]
)
def test_an_engine_with_the_same_memory_says_the_same(name: str, choice: str, tmp_path: Path) -> None:
    shared = dict(
        kv_cache_memory_bytes=2**20,
        kv_cache_dtype=choice,
        kv_cache_dtype_skip_layers=("1",),
        max_num_batched_tokens=33,
        max_num_seqs=7,
        max_model_len=50,
    )
    plan = plan_of(tmp_path, SHRUNK[name], **shared)
    config = EngineConfig(model=str(tmp_path), load_format="dummy", device="cpu", **shared)  # type: ignore[arg-type]
    settings = resolve(config, load_model(config).model)
    assert plan.capacity == settings.capacity
    assert plan.capacity.lines() == settings.lines()
    assert plan.capacity.sequences(50).num_sequences > 0


def test_memory_is_divided_as_at_start_up(tmp_path: Path) -> None:
    """All but activations, which an engine measures."""
    plan = plan_of(tmp_path, PUBLISHED["Gemma 4 31B"], gpu_memory="141GB", max_model_len=131_072)
    memory = plan.gpu_memory
    assert memory is not None
    assert (memory.total, memory.weights) == (141 * 10**9, plan.weights.total)
    sizes = dict(max_num_batched_tokens=8192, value_bytes=2)
    scratch = scratch_bytes(plan.spec, plan.capacity.layout, max_model_len=131_072, **sizes)
    activations = memory.activations - scratch
    graphs = graph_bytes(default_sizes(128), activations=activations, vocab_size=262_144, **sizes)
    assert memory.graphs == graphs + piece_bytes(plan.spec, SIZES, activations=activations, **sizes)
    assert memory.sampling == max_device_bytes(num_seats=128, vocab_size=262_144, context_len=131_072)
    parts = memory.weights + memory.activations + memory.graphs + memory.sampling + memory.cache
    assert parts == int(0.9 * memory.total)
    assert plan.capacity.num_blocks == memory.cache // plan.capacity.layout.total_page_bytes


@pytest.mark.parametrize(("name", "cache_gib"), [("Gemma 4 31B", 64.3), ("Gemma 4 E4B", 108.2)])
def test_the_estimate_is_close_to_what_an_engine_measured(name: str, cache_gib: float, tmp_path: Path) -> None:
    """benchmarks/h200.md: what was left for the cache on an H200 of 139.8 GiB. The driver keeps half a GiB itself."""
    plan = plan_of(tmp_path, PUBLISHED[name], gpu_memory="139.8GiB", max_model_len=131_072)
    assert plan.gpu_memory is not None
    assert cache_gib < plan.gpu_memory.cache / GIB < cache_gib + 1.5


def test_activations_grow_with_tokens_and_shrink_with_gpus() -> None:
    spec = read_model_spec(PUBLISHED["Gemma 4 E4B"])
    sizes = [
        estimate_activations(spec, spec, num_tokens=num_tokens, max_num_seqs=1, value_bytes=2)
        for num_tokens in (2048, 4096, 8192)
    ]
    assert sizes[2] == 2 * sizes[1] == 4 * sizes[0]
    # A step that samples many rows at once is bound by their logits.
    assert estimate_activations(spec, spec, num_tokens=64, max_num_seqs=64, value_bytes=2) == 64 * 262_144 * 6


def test_the_reports_case(tmp_path: Path) -> None:
    """31B, INT4 in groups of 32, two GPUs, 11.54 GiB of keys and values each, 131,072 tokens."""
    plan = plan_of(
        tmp_path,
        PUBLISHED["Gemma 4 31B"],
        weight_format="int4",
        gpus=2,
        kv_cache_memory_bytes=int(11.54 * GIB),
        max_model_len=131_072,
    )
    assert plan.weights.total / GIB == pytest.approx(8.99, abs=0.01)
    counts = {}
    for name, capacity in plan.capacities.items():
        assert isinstance(capacity, Capacity)
        counts[name] = (capacity.num_blocks, capacity.longest_request, capacity.sequences(131_072).num_sequences)
    assert counts["bfloat16"] == (1890, 583_680, 2)
    assert counts["int8_per_token_head"] == counts["fp8_per_token_head"] == (3723, 1_170_240, 6)
    # What the other engine printed: a table of 16 tokens for each of six groups of ten layers, windows or not.
    bytes_of_ten_layers = 10 * 16 * 2 * 8 * 256 * 2
    assert int(11.54 * GIB) // bytes_of_ten_layers // 6 * 16 == 25_200


def test_more_gpus_hold_more(tmp_path: Path) -> None:
    one, two = (
        plan_of(tmp_path, PUBLISHED["Gemma 4 31B"], gpu_memory="80GiB", gpus=gpus, max_model_len=65_536)
        for gpus in (1, 2)
    )
    assert two.weights.total < 0.51 * one.weights.total
    assert two.capacity.sequences(65_536).num_sequences > 4 * one.capacity.sequences(65_536).num_sequences


def test_another_dtype_may_not_fit_where_the_one_asked_for_does(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        PUBLISHED["Gemma 4 E4B"],
        kv_cache_memory_bytes=GIB,
        kv_cache_dtype="int8_per_token_head",
        max_model_len=100_000,
    )
    refused = plan.capacities["bfloat16"]
    assert isinstance(refused, CapacityError)
    assert "max_model_len = 100000 tokens needs" in str(refused)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (dict(gpu_memory="24GiB"), r"Weights take 57\.18 GiB per GPU, .* but 21\.60 GiB of 24GiB may be used"),
        (dict(kv_cache_memory_bytes=10**6), "0 MiB are left for keys and values, less than the 38 MiB"),
        (
            dict(kv_cache_memory_bytes=10**9),
            r"max_model_len = 262144 tokens needs 885 cache blocks \(11062 MiB\), but 75 are available .* "
            "--max-model-len to 3200 or less",
        ),
        (dict(gpu_memory="24GiB", gpus=3), "16 key heads"),
        (dict(gpu_memory="24GiB", gpus=0), "--gpus is 0"),
        (dict(gpu_memory="24 apples"), "--gpu-memory 24 apples is not a size"),
        ({}, "--gpu-memory 24GiB, or --kv-cache-memory-bytes"),
        (dict(kv_cache_memory_bytes=10**12, kv_cache_dtype="fp3"), "'fp3' is not a KV dtype"),
        (dict(kv_cache_memory_bytes=10**12, kv_cache_dtype="big=fp8"), "'big' is not a kind of layer"),
        (
            dict(kv_cache_memory_bytes=10**12, kv_cache_dtype_skip_layers=("60",)),
            r"'60' is neither a layer of this model \(0 to 59\)",
        ),
        (dict(kv_cache_memory_bytes=10**12, max_model_len=10**6), "--max-model-len 1000000 is outside"),
        (dict(kv_cache_memory_bytes=10**12, max_num_seqs=0), "--max-num-seqs is 0"),
    ],
    ids=str,
)
def test_what_cannot_be_planned(flags: dict[str, object], words: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, CapacityError), match=words):
        plan_of(tmp_path, PUBLISHED["Gemma 4 31B"], **flags)


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GIB), ("24GB", 24 * 10**9), ("24g", 24 * GIB), ("1.5 TiB", 3 * 2**39), ("1000", 1000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "1e3", "24GiBs", "0.0000000001KiB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)
