"""The plan against the engine it plans for: the same memory must give the same numbers, in the same words."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from facet.bundled_model import FOLDER as BUNDLED
from facet.config import EngineConfig, ModelConfig
from facet.engine.capacity import Capacity
from facet.engine.engine import make_engine
from facet.engine.memory_plan import MemoryPlan, estimate_activations, estimate_others, make_plan, parse_size
from facet.engine.plan_config import PlanConfig
from facet.engine.settings import EngineSettings, resolve, shape_steps
from facet.errors import CapacityError, ConfigError
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL
from facet.kernels.paged_attention.decode.plan import PARTIALS_LIMIT
from facet.kv_dtypes import KV_DTYPES
from facet.kv_layout import make_kv_layout
from facet.layers.placement import Placement
from facet.layers.quantized_weight import QuantizedWeight
from facet.layers.weight_kinds import kind_with_kernels
from facet.matrix_format import MatrixFormat
from facet.model.config_fields import read_config_file
from facet.model.families import read_model_spec
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.model.towers import find_towers
from facet.runner.measuring import MeasuredMemory
from facet.runner.memory import BYTES_PER_GRAPH, BYTES_PER_PIECE, StepShape, graph_bytes, piece_bytes
from tests.model.gguf.writing import model_file, tokenizer_metadata
from tests.model.quantized_files import VARIANTS as QUANTIZED
from tests.model.quantized_files import wide, write_variant
from tests.published_configs import PUBLISHED, Config, text_only
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint, write_config
from tests.tiny_models import TinyModel

GIB = 2**30


def plan_of(folder: Path, config: Config, **flags: object) -> MemoryPlan:
    write_config(folder, config)
    return make_plan(PlanConfig(model=str(folder), **flags))  # type: ignore[arg-type]


FLAGS: list[dict[str, object]] = [
    {},
    *(dict(kv_cache_dtype=name) for name, dtype in KV_DTYPES.items() if dtype.is_quantized),
    dict(kv_cache_dtype="global=fp8,sliding=auto", kv_cache_dtype_skip_layers=("1",)),
    dict(batch_invariant=True),
    dict(batch_invariant=False),
]


@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 4 31B", "Gemma 4 26B-A4B", "Gemma 3 4B", "Gemma 3n E2B"])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_an_engine_allocates_what_was_planned_and_says_the_same(
    name: str, flags: dict[str, object], tmp_path: Path
) -> None:
    shared = dict(
        kv_cache_memory_bytes=2**20,
        max_num_batched_tokens=33,
        max_num_seqs=7,
        max_model_len=50,
        dtype="float32",  # norm weights always are, so that weights can be compared to the byte
        **flags,
    )
    plan = plan_of(tmp_path, SHRUNK[name], **shared)
    engine, _ = make_engine(EngineConfig(model=str(tmp_path), load_format="dummy", device="cpu", **shared))  # type: ignore[arg-type]
    assert plan.capacity == engine.settings.capacity
    assert plan.capacity.lines() == engine.settings.lines()[: len(plan.capacity.lines())]
    assert plan.capacity.sequences(50).num_sequences > 0
    model, arena = engine.runner.model, engine.runner.arena
    assert plan.capacity.num_bytes == arena.bytes.nbytes + arena.scales.nbytes
    assert plan.weights.total == sum(parameter.nbytes for parameter in model.parameters())
    assert plan.tables == sum(buffer.nbytes for buffer in model.buffers())


@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma3_mm"])
def test_towers_and_their_cache_take_what_was_planned(name: str, tiny_model: Callable[[str], TinyModel]) -> None:
    flags = dict(kv_cache_memory_bytes=2**20, max_num_batched_tokens=33, max_model_len=50, dtype="float32")
    folder = str(tiny_model(name).folder)
    plan = make_plan(PlanConfig(model=folder, **flags))  # type: ignore[arg-type]
    engine, _ = make_engine(EngineConfig(model=folder, device="cpu", **flags))  # type: ignore[arg-type]
    media = engine.runner.media
    towers = set(media.towers.values())
    assert plan.towers == sum(held.nbytes for tower in towers for held in (*tower.parameters(), *tower.buffers())) > 0
    assert plan.encoder is not None
    assert plan.encoder == engine.settings.encoder
    assert plan.encoder.num_bytes == media.cache.num_bytes
    assert plan.encoder.line() in engine.settings.lines()


def resolve_on_a_gpu(folder: Path, plan: MemoryPlan, flags: dict[str, object]) -> EngineSettings:
    """What an engine resolves on a GPU where it measures just what was planned."""
    config = EngineConfig(model=str(folder), **flags)  # type: ignore[arg-type]
    arithmetic = USUAL if config.batch_invariant is False else BATCH_INVARIANT
    placement = Placement(dtype=torch.bfloat16, device=torch.device("cuda"), arithmetic=arithmetic)
    model = SimpleNamespace(
        spec=plan.spec,
        share=plan.spec,
        placement=placement,
        num_positions=plan.capacity.max_model_len,
        modules=lambda: (),
    )
    assert plan.gpu_memory is not None
    total, weights = plan.gpu_memory.total, plan.weights.total + plan.towers + plan.tables
    towers = find_towers(read_config_file(folder / "config.json"), plan.spec, None)
    held = towers.on_meta(torch.bfloat16)

    def measure(_: object, shape: StepShape, __: object) -> MeasuredMemory:
        return MeasuredMemory(
            total=total,
            free=total - weights - estimate_others(total),
            weights=weights,
            activations=estimate_activations(plan.spec, shape),
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
        patch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        patch.setattr("facet.engine.settings.measure_gpu_memory", measure)
        return resolve(config, cast(Gemma, model), towers=held)


@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 4 31B", "Gemma 3 27B", "Gemma 3n E4B"])
@pytest.mark.parametrize(
    "flags",
    [
        *FLAGS,
        dict(enforce_eager=True),
        dict(batch_invariant=False, enforce_eager=True),
        dict(max_num_seqs=300, cudagraph_capture_sizes=(1, 7, 1000)),
        dict(max_num_batched_tokens=500, gpu_memory_utilization=0.83),
    ],
    ids=str,
)
def test_memory_is_divided_as_at_start_up(name: str, flags: dict[str, object], tmp_path: Path) -> None:
    """To the byte, where an engine measures what a plan estimates."""
    plan = plan_of(tmp_path, PUBLISHED[name], gpu_memory="141GB", max_model_len=32_768, **flags)
    settings = resolve_on_a_gpu(tmp_path, plan, flags)
    assert settings.gpu_memory == plan.gpu_memory
    assert settings.capacity == plan.capacity
    memory = plan.gpu_memory
    assert memory is not None
    parts = memory.weights + memory.activations + memory.graphs + memory.sampling + memory.cache
    parts += memory.towers + memory.encoder_cache + memory.others
    assert parts == int(plan.gpu_memory_utilization * memory.total)
    assert plan.capacity.num_blocks == memory.cache // plan.capacity.layout.total_page_bytes


def test_a_line_says_whether_answers_depend_on_others(tmp_path: Path) -> None:
    def last_line(**flags: object) -> str:
        plan = plan_of(tmp_path, PUBLISHED["Gemma 4 E4B"], gpu_memory="141GB", max_model_len=2048, **flags)
        return resolve_on_a_gpu(tmp_path, plan, flags).lines()[-1]

    by_default, off = last_line(), last_line(batch_invariant=False)
    assert by_default == last_line(batch_invariant=True)
    assert by_default.startswith("Batch-invariant: ")
    assert "--no-batch-invariant turns it off" in by_default
    assert off.startswith("Not batch-invariant: ")
    assert "--batch-invariant turns it on" in off


def test_quantized_weights_decide_over_partial_results(tmp_path: Path) -> None:
    """As they decide over arithmetic: what a plan says holds for the engine that starts with the same flags."""
    for quantization, is_default in (("fp8", False), ("int8", True)):
        by_flag, by_default = (
            plan_of(tmp_path, text_only("Gemma 4 31B"), gpu_memory="141GB", quantization=quantization, **flags)
            for flags in (dict(batch_invariant=is_default), {})
        )
        assert by_flag == by_default


def test_batch_invariance_sets_partial_results_apart(tmp_path: Path) -> None:
    """Those of captured steps; those of others fit into the room for what prompts unpack."""
    usual, invariant, eager = (
        plan_of(tmp_path, text_only("Gemma 4 31B"), gpu_memory="141GB", max_model_len=131_072, **flags).gpu_memory
        for flags in (dict(batch_invariant=False), {}, dict(enforce_eager=True))
    )
    assert usual is not None
    assert invariant is not None
    assert eager is not None
    assert invariant.graphs - usual.graphs == PARTIALS_LIMIT
    assert invariant.activations == usual.activations
    assert (eager.graphs, eager.activations) == (0, invariant.activations)


# What engines printed at their start on an H200 of 139.80 GiB: weights, activations and cache in GiB.
USUAL_SUMS = dict(batch_invariant=False)
MEASURED: list[tuple[str, dict[str, object], tuple[float, float, float]]] = [
    ("Gemma 4 E4B", {}, (13.92, 1.39, 107.70)),
    ("Gemma 4 E4B", USUAL_SUMS, (13.92, 1.39, 107.95)),
    ("Gemma 4 E4B", dict(quantization="int4", **USUAL_SUMS), (8.69, 1.28, 113.24)),
    ("Gemma 4 12B", {}, (22.24, 1.58, 99.17)),
    ("Gemma 4 26B-A4B", USUAL_SUMS, (47.03, 1.38, 74.80)),
    ("Gemma 4 31B", {}, (57.26, 2.01, 63.82)),
    ("Gemma 4 31B", dict(max_model_len=131_072), (57.34, 2.01, 63.29)),
    ("Gemma 3 12B", {}, (21.97, 1.58, 99.46)),
    ("Gemma 3 12B", dict(max_num_batched_tokens=512), (21.97, 0.75, 100.24)),
    ("Gemma 3 27B", {}, (50.38, 2.01, 70.70)),
    ("Gemma 3n E4B", {}, (12.74, 1.95, 108.10)),
]


@pytest.mark.parametrize(("name", "flags", "printed"), MEASURED, ids=str)
def test_estimates_are_rather_high_and_close(
    name: str, flags: dict[str, object], printed: tuple[float, float, float], tmp_path: Path
) -> None:
    """So that what a plan says fits does. An engine counts gaps between tensors with the weights."""
    weights, activations, cache = printed
    memory = plan_of(tmp_path, text_only(name), gpu_memory="139.80GiB", **{"max_model_len": 8192} | flags).gpu_memory
    assert memory is not None
    assert weights - 0.08 < memory.weights / GIB < weights + 0.005
    assert activations < memory.activations / GIB < 1.15 * activations
    assert cache - 0.4 < memory.cache / GIB < cache


def test_a_plan_promises_no_more_than_a_start_found(tmp_path: Path) -> None:
    """31B in INT4 under a cap of 24 GiB on that GPU (benchmarks/plan_gpu.py): two requests of 8,192 tokens fitted."""
    flags = dict(max_model_len=8192, max_num_seqs=8, max_num_batched_tokens=1024, weight_format="int4")
    plan = plan_of(
        tmp_path, text_only("Gemma 4 31B"), gpu_memory="139.80GiB", gpu_memory_utilization=24 / 139.8, **flags
    )
    assert plan.capacity.sequences(8192).num_sequences == 2


def test_smaller_gpus_are_expected_to_keep_less_for_themselves() -> None:
    assert [estimate_others(total * GIB) for total in (12, 24, 140)] == [GIB // 2, GIB, GIB]


def shape_of_e4b(config: EngineConfig) -> StepShape:
    spec = read_model_spec(PUBLISHED["Gemma 4 E4B"])
    return shape_steps(
        config,
        spec,
        make_kv_layout(spec, dtype="bfloat16"),
        vocab_size=spec.vocab_size,
        value_bytes=2,
        max_model_len=8192,
        is_batch_invariant=False,
        on_gpu=True,
    )


@pytest.mark.parametrize("flags", [{"enable_lora": True}, {"lora_modules": ("a=b",)}], ids=str)
def test_steps_are_captured_with_adapters_and_without(flags: dict[str, object]) -> None:
    plain, adapted = (shape_of_e4b(EngineConfig(**given)) for given in ({}, flags))  # type: ignore[arg-type]
    assert plain.graph_sizes
    assert plain.piece_sizes
    num_graphs, num_pieces = 2 * len(plain.graph_sizes), len(plain.piece_sizes) * (plain.spec.num_layers + 1)
    assert graph_bytes(adapted, 0) - graph_bytes(plain, 0) == num_graphs * BYTES_PER_GRAPH
    assert piece_bytes(adapted, 0) - piece_bytes(plain, 0) == num_pieces * BYTES_PER_PIECE


def test_activations_grow_with_tokens() -> None:
    def estimate(num_tokens: int, max_num_seqs: int) -> int:
        shape = shape_of_e4b(EngineConfig(max_num_batched_tokens=num_tokens, max_num_seqs=max_num_seqs))
        return estimate_activations(shape.spec, shape)

    row = estimate(2048, 1) - estimate(2047, 1)
    assert estimate(8192, 1) - estimate(4096, 1) == 4096 * row
    assert estimate(8192, 129) - estimate(8192, 1) == 128 * row  # a single row of every request
    # A step that samples many rows at once is bound by their logits.
    assert estimate(64, 65) - estimate(64, 64) == 262_144 * 8


def test_the_reports_case(tmp_path: Path) -> None:
    """31B, INT4 in groups of 32, two GPUs, 11.54 GiB of keys and values each, 131,072 tokens."""
    plan = plan_of(
        tmp_path,
        PUBLISHED["Gemma 4 31B"],
        weight_format="int4",
        tensor_parallel_size=2,
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


def planned_and_held(model: Path, **flags: object) -> tuple[MemoryPlan, int]:
    """A plan, and the bytes of what a GPU would hold in bfloat16, in the order of its kernels."""

    def choose_kind(
        format: MatrixFormat, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> type[QuantizedWeight]:
        return kind_with_kernels(format, shape, dtype=dtype, device_type="cuda")

    shared = dict(model=str(model), max_model_len=32, dtype="bfloat16", **flags)
    plan = make_plan(PlanConfig(kv_cache_memory_bytes=2**20, **shared))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("facet.layers.weight_kinds.choose_kind", choose_kind)
        loaded = load_model(ModelConfig(device="cpu", **shared)).model  # type: ignore[arg-type]
    assert plan.weights.by_format
    return plan, sum(tensor.nbytes for tensor in (*loaded.parameters(), *loaded.buffers())) - plan.tables


@pytest.mark.parametrize("name", QUANTIZED)
def test_weights_take_what_was_planned(name: str, tmp_path: Path) -> None:
    """To the byte, in every format, with norms in float32 beside values of sixteen bits."""
    write_variant(tmp_path, QUANTIZED[name])
    plan, held = planned_and_held(tmp_path / "quantized")
    assert plan.weights.total == held
    if name in ("int4 groups of 32", "int4 g_idx"):  # reordered inputs leave a matrix in the order of files
        assert (plan.weights.fill > 0) is (name != "int4 g_idx")


@pytest.mark.parametrize(
    ("name", "type"),
    [
        *(("Gemma 4 E4B", type) for type in ("Q4_0", "Q8_0", "Q5_0", "Q4_K", "Q5_K", "Q6_K")),
        ("Gemma 4 26B-A4B", "Q4_0"),
        ("Gemma 4 26B-A4B", "Q4_K"),  # experts of two formats
    ],
)
def test_files_of_llama_cpp_take_what_was_planned(name: str, type: str, tmp_path: Path) -> None:
    """Embeddings make logits too: those of eight bits get the order of kernels, those of four bits never do."""
    config = {**SHRUNK[name], "hidden_size": 256, "intermediate_size": 256, "head_dim": 32, "global_head_dim": 64}
    config |= {"moe_intermediate_size": 96} if "moe_intermediate_size" in config else {}

    def type_of(name: str) -> str:
        return "Q8_0" if type.endswith("K") and tensors[f"model.{name}"].shape[-1] % 256 else type

    tensors = random_tensors(config)
    data, _ = model_file(config, tensors, type_of, tokenizer_metadata(BUNDLED))
    (tmp_path / "m.gguf").write_bytes(data)
    plan, held = planned_and_held(tmp_path / "m.gguf")
    assert plan.weights.total == held


@pytest.mark.parametrize("quantization", ["int4", "int8", "fp8"])
def test_weights_quantized_while_loading_take_what_was_planned(quantization: str, tmp_path: Path) -> None:
    config = wide("Gemma 4 26B-A4B")
    write_checkpoint(tmp_path, config, random_tensors(config))
    for quantize_head in (False, True):
        plan, held = planned_and_held(tmp_path, quantization=quantization, quantize_head=quantize_head)
        assert plan.weights.total == held
        assert (plan.weights.fill > 0) is (quantization == "int4")


def test_a_31b_in_four_bits_on_two_small_cards(tmp_path: Path) -> None:
    """24 GB each: weights take 9 GiB of a card, and requests of 131,072 tokens fit beside them."""
    plan = plan_of(
        tmp_path,
        PUBLISHED["Gemma 4 31B"],
        weight_format="int4",
        tensor_parallel_size=2,
        gpu_memory="24GB",
        language_model_only=True,
    )
    assert plan.weights.total / GIB == pytest.approx(8.99, abs=0.01)
    assert plan.capacity.sequences(131_072).num_sequences == 1
    eight_bits = plan.capacities["int8_per_token_head"]
    assert isinstance(eight_bits, Capacity)
    assert eight_bits.sequences(131_072).num_sequences == 3
    # One card of 24 GiB holds the model too, with smaller steps and a context that a flag cuts.
    less = dict(max_model_len=8192, max_num_seqs=8, max_num_batched_tokens=1024, language_model_only=True)
    alone = plan_of(tmp_path, PUBLISHED["Gemma 4 31B"], weight_format="int4", gpu_memory="24GiB", **less)
    assert alone.weights.total / GIB == pytest.approx(17.97, abs=0.02)
    assert alone.capacity.longest_request is not None
    assert 8192 <= alone.capacity.longest_request < 16_384


@pytest.mark.parametrize(("quantization", "gib", "num_requests"), [("fp8", 5.03, 2), ("int4", 3.37, 13)])
def test_e4b_fits_in_eight_gib_without_its_per_layer_table(
    quantization: str, gib: float, num_requests: int, tmp_path: Path
) -> None:
    flags = dict(gpu_memory="8GiB", max_model_len=8192, max_num_seqs=8, max_num_batched_tokens=1024)
    config = text_only("Gemma 4 E4B")
    plan = plan_of(tmp_path, config, quantization=quantization, embeddings_on_cpu=True, **flags)
    assert plan.weights.on_host == 262_144 * 42 * 256 * 2
    assert plan.weights.total / GIB == pytest.approx(gib, abs=0.01)
    assert plan.capacity.sequences(8192).num_sequences >= num_requests
    with pytest.raises(CapacityError):
        plan_of(tmp_path, config, quantization=quantization, **flags)


def test_more_gpus_hold_more(tmp_path: Path) -> None:
    one, two = (
        plan_of(tmp_path, PUBLISHED["Gemma 4 31B"], gpu_memory="80GiB", tensor_parallel_size=gpus, max_model_len=65_536)
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
        (
            dict(gpu_memory="24GiB"),
            r"Weights take 58\.44 GiB of a GPU, .* but 21\.60 GiB of its 24\.00 GiB may be used",
        ),
        (dict(kv_cache_memory_bytes=10**6), r"Nothing is left for keys and values, but a single token needs 37\.5 MiB"),
        (
            dict(kv_cache_memory_bytes=10**9),
            r"max_model_len = 262144 tokens needs 885 cache blocks \(11062 MiB\), but 75 are available .* "
            "--max-model-len to 3200 or less",
        ),
        (dict(gpu_memory="24GiB", tensor_parallel_size=3), "does not divide"),
        (dict(gpu_memory="24GiB", tensor_parallel_size=0), "--tensor-parallel-size is 0"),
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
    [("24GiB", 24 * GIB), ("24GB", 24 * 10**9), ("24G", 24 * GIB), ("1.5 TiB", 3 * 2**39), ("25769803776", 24 * GIB)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "1e3", "24GiBs", "0.0000000001KiB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


def test_a_context_that_fits_is_chosen(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, PUBLISHED["Gemma 4 31B"], kv_cache_memory_bytes=10**9, max_model_len="auto")
    assert (plan.capacity.max_model_len, plan.lengths) == (3200, (2048, 3200))
    plan = plan_of(tmp_path, PUBLISHED["Gemma 4 31B"], kv_cache_memory_bytes=10**12, max_model_len="auto")
    assert plan.capacity.max_model_len == plan.spec.max_positions


def test_a_size_without_its_unit() -> None:
    with pytest.raises(ConfigError, match=r"24 bytes. GiB\? Then write --gpu-memory 24GiB"):
        parse_size("24")
