"""Files of adapters: every tensor has its place or is refused by name."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from facet.adapter import AdapterSource, read_adapter_sources
from facet.config import ModelConfig
from facet.errors import CapacityError, CheckpointError, ConfigError
from facet.model.adapters import AdapterFile, plan_room, read_adapter_file
from facet.model.families import read_model_spec
from facet.model_spec import ModelSpec
from tests.tiny_adapters import adaptable_modules, write_adapter
from tests.tiny_models import TinyModel

TinyModels = Callable[[str], TinyModel]
LAYERS = "gemma4_e2b_small"


@pytest.fixture(scope="module")
def tiny(tiny_model: TinyModels) -> TinyModel:
    return tiny_model(LAYERS)


@pytest.fixture(scope="module")
def spec(tiny: TinyModel) -> ModelSpec:
    return read_model_spec(json.loads((tiny.folder / "config.json").read_text()))


@pytest.fixture(scope="module")
def modules(tiny: TinyModel) -> dict[str, tuple[int, int]]:
    return adaptable_modules(tiny, "q_proj", "down_proj")


def read(folder: Path, spec: ModelSpec) -> AdapterFile:
    return read_adapter_file(AdapterSource("mine", str(folder)), folder, spec)


@pytest.mark.parametrize(
    "prefix",
    [
        "base_model.model.model.language_model.",  # trained on a model with towers
        "base_model.model.language_model.model.",  # the same, before transformers 4.52
        "base_model.model.model.",  # on a text model
        "model.language_model.",
        "base_model.model.language_model.",  # on a model without its head
        "base_model.model.",
    ],
)
def test_wherever_the_decoder_was(
    prefix: str, modules: dict[str, tuple[int, int]], spec: ModelSpec, tmp_path: Path
) -> None:
    inside = {name.removeprefix("model."): shape for name, shape in modules.items()}
    write_adapter(tmp_path, inside, prefix=prefix)
    file = read(tmp_path, spec)
    assert [pair.target.name for pair in file.pairs] == [f"{name}.weight" for name in sorted(inside, key=_order)]
    assert file.endings == ("q_proj", "down_proj")
    assert (file.rank, file.num_unused) == (4, 0)


def _order(name: str) -> tuple[int, bool]:
    return int(name.split(".")[1]), "mlp" in name


def test_keys_that_a_layer_reads_from_another_are_unused(tiny: TinyModel, spec: ModelSpec, tmp_path: Path) -> None:
    """Training leaves them as they began: PEFT puts matrices there, and nothing computes with them."""
    all_keys = {f"model.layers.{layer.index}.self_attn.k_proj": (layer.kv_width, 32) for layer in spec.layers}
    owned = adaptable_modules(tiny, "k_proj")
    shape = next(iter(owned.values()))
    write_adapter(tmp_path, {name: owned.get(name, shape) for name in all_keys})
    file = read(tmp_path, spec)
    assert len(file.pairs) == sum(layer.owns_kv for layer in spec.layers) < spec.num_layers
    assert file.num_unused == 2 * (spec.num_layers - len(file.pairs))


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ({"base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight": (4, 32)}, "1 unexpected: .*layers.99"),
        ({"base_model.model.model.layers.0.self_attn.w_proj.lora_A.weight": (4, 32)}, "1 unexpected: .*w_proj"),
        ({"base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight": (4, 64)}, r"o_proj \(without lora_B\)"),
        ({"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": (64,)}, "lora_magnitude_vector"),
        ({"base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias": (64,)}, "unexpected: .*lora_B.bias"),
        ({"base_model.model.lm_head.lora_A.weight": (4, 32)}, "embedding and the head are not supported"),
        (
            {"base_model.model.model.embed_tokens.lora_embedding_A": (4, 512)},
            "embedding and the head are not supported",
        ),
        ({"base_model.model.model.layers.0.experts.lora_A.weight": (4, 32)}, "1 unexpected: .*layers.0.experts"),
        (
            {"base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.lora_A.weight": (4, 32)},
            "towers for media are not supported",  # without lora_B
        ),
        ({"something": (1,)}, "unexpected: something. Was it trained for another model"),
    ],
)
def test_what_has_no_place_is_refused_by_name(
    extra: dict[str, tuple[int, ...]], error: str, modules: dict[str, tuple[int, int]], spec: ModelSpec, tmp_path: Path
) -> None:
    write_adapter(tmp_path, modules, more={name: torch.zeros(shape) for name, shape in extra.items()})
    with pytest.raises(CheckpointError, match=error) as refused:
        read(tmp_path, spec)
    assert str(refused.value).startswith(f"The adapter mine ({tmp_path}) does not fit this model: ")
    assert str(refused.value).endswith("Nothing of it was loaded.")


def test_an_adapter_of_another_model_names_shapes(
    modules: dict[str, tuple[int, int]], spec: ModelSpec, tmp_path: Path
) -> None:
    write_adapter(tmp_path, {name: (rows + 8, columns) for name, (rows, columns) in modules.items()})
    with pytest.raises(CheckpointError, match=r"8 of other matrices: .*0.self_attn.q_proj \(\[4, \d+\] and"):
        read(tmp_path, spec)


def test_towers_that_were_not_trained_are_unused(
    modules: dict[str, tuple[int, int]], spec: ModelSpec, tmp_path: Path
) -> None:
    """Training with text alone leaves `lora_B` beside them as it began: zeros."""
    tower = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj.linear"
    pair = {f"{tower}.lora_A.weight": torch.ones(4, 8), f"{tower}.lora_B.weight": torch.zeros(8, 4)}
    write_adapter(tmp_path, modules, more=pair)
    file = read(tmp_path, spec)
    assert (len(file.pairs), file.num_unused) == (len(modules), 2)
    assert file.line.endswith("; 2 tensors are beside matrices that are not used")
    pair[f"{tower}.lora_B.weight"][7, 3] = 1e-6
    write_adapter(tmp_path, modules, more=pair)
    with pytest.raises(CheckpointError, match=r"2 unexpected: .*vision_tower.*Adapters of the towers for media"):
        read(tmp_path, spec)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', but only LORA is supported"),
        ({"use_dora": True}, "use_dora is set, but DoRA is not supported. Merge it"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\], but whole modules"),
        ({"modules_to_save": 5}, "modules_to_save is 5, but whole modules"),
        ({"bias": "all"}, "it trained biases"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the base model's weights, too"),
        ({"trainable_token_indices": [1]}, "trained rows of the embedding are not supported"),
        ({"r": 0}, "r is 0"),
        ({"r": 8}, r"\[4, \d+\] and \[\d+, 4\] instead of \[8, \d+\]"),
        ({"lora_alpha": "much"}, "lora_alpha is 'much', but must be a number"),
        ({"rank_pattern": {"(": 4}}, "regular expressions"),
        ({"rank_pattern": {"(?i)q_proj": 4}}, "regular expressions"),
        ({"rank_pattern": {"([a-z_.0-9]+)+!": 4}}, "simple patterns"),
        ({"rank_pattern": {"q_proj": 0}}, "positive numbers"),
        ({"lora_alpha": 10**400}, "must be a number"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    config: dict[str, Any], error: str, modules: dict[str, tuple[int, int]], spec: ModelSpec, tmp_path: Path
) -> None:
    write_adapter(tmp_path, modules)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    with pytest.raises((CheckpointError, ConfigError), match=error):
        read(tmp_path, spec)


def test_files_that_are_not_there(tmp_path: Path, spec: ModelSpec) -> None:
    with pytest.raises(CheckpointError, match=r"has no adapter_config.json. An adapter is a folder as PEFT saves it"):
        read(tmp_path, spec)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"There is one in inner: name that folder"):
        read(tmp_path, spec)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"has no adapter_model.safetensors. Its .bin file is a program"):
        read(tmp_path, spec)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors"):
        read(tmp_path, spec)


def test_scales(modules: dict[str, tuple[int, int]], spec: ModelSpec, tmp_path: Path) -> None:
    def scales(**config: Any) -> set[tuple[str, float]]:
        write_adapter(tmp_path, modules, rank=4, alpha=8.0, **config)
        return {(pair.ending, pair.scale) for pair in read(tmp_path, spec).pairs}

    assert scales() == {("q_proj", 2.0), ("down_proj", 2.0)}
    assert scales(use_rslora=True) == {("q_proj", 8 / math.sqrt(4)), ("down_proj", 8 / math.sqrt(4))}
    assert scales(alpha_pattern={"q_proj": 2}) == {("q_proj", 0.5), ("down_proj", 2.0)}
    first = scales(alpha_pattern={r"layers\.0\.self_attn\.q_proj": 2, "self_attn.q_proj": 12})
    assert first == {("q_proj", 0.5), ("q_proj", 3.0), ("down_proj", 2.0)}
    assert scales(r=64, rank_pattern={"q_proj": 4, "down_proj": 4}) == {("q_proj", 2.0), ("down_proj", 2.0)}


def test_room(modules: dict[str, tuple[int, int]], spec: ModelSpec, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", modules, rank=4)
    write_adapter(tmp_path / "b", {name: shape for name, shape in modules.items() if "q_proj" in name}, rank=20)
    both = tuple(f"{name}={tmp_path / name}" for name in "ab")

    def room(**settings: Any) -> Any:
        return plan_room(ModelConfig(model="m", **settings), spec)

    assert room() is None
    found = room(lora_modules=both)
    assert (found.num_adapters, found.rank, found.endings) == (2, 20, ("q_proj", "down_proj"))
    assert (room(lora_modules=both, max_loras=1).num_adapters, room(lora_modules=both, max_loras=5).num_adapters) == (
        2,
        5,
    )
    later = room(enable_lora=True)
    assert (later.num_adapters, later.rank, later.files) == (8, 16, ())
    assert later.endings[:6] == ("per_layer_model_projection", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj")
    both_ways = room(enable_lora=True, lora_modules=both)
    assert (both_ways.num_adapters, both_ways.rank, both_ways.endings) == (10, 20, later.endings)
    with pytest.raises(
        CapacityError, match=r"adapter b has rank 20, but there is room for rank 16. Start with --max-lora-r"
    ):
        room(lora_modules=both, max_lora_rank=16)
    with pytest.raises(CapacityError, match=r"changes down_proj, .* --lora-target-modules q_proj down_proj"):
        room(lora_modules=both, lora_target_modules=("q_proj",))
    with pytest.raises(
        ConfigError, match=r"--lora-target-modules names w_proj, which this model has not. It has down_proj,"
    ):
        room(enable_lora=True, lora_target_modules=("w_proj",))
    with pytest.raises(ConfigError, match="--max-loras is 0, but must be from 1 to 256"):
        room(enable_lora=True, max_loras=0)
    with pytest.raises(ConfigError, match="--max-lora-rank is about adapters, but there are none"):
        room(max_lora_rank=16)


def test_sources() -> None:
    given = ("a=/x", '{"name": "b", "path": "o/r", "base_model_name": "g"}', "c=x=y")
    assert [(source.name, source.path) for source in read_adapter_sources(given)] == [
        ("a", "/x"),
        ("b", "o/r"),
        ("c", "x=y"),
    ]
    for wrong, error in (
        ("a", "names no path. Write name=path"),
        ("=x", "cannot be called ''"),
        ("a=", "names no path"),
        ("a b=x", "none of them blank"),
        ('{"name": "a"}', "is not what it should be"),
        ('{"name": "a", "path": ""}', "names no path"),
    ):
        with pytest.raises(ConfigError, match=error):
            read_adapter_sources((wrong,))
    with pytest.raises(ConfigError, match="names 'a' twice"):
        read_adapter_sources(("a=x", "a=y"))
