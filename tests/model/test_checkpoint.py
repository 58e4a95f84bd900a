"""Weights land where they belong, whatever the files are called and however they are cut; wrong ones do not land."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from facet.errors import CheckpointError
from facet.layers.linear import Linear
from facet.layers.weight import DenseWeight
from facet.model.loader import LoadedModel
from facet.model.weight_map import tensor_targets
from tests.model.paged_model import load
from tests.published_configs import PUBLISHED, Config
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def wrap(config: Config) -> Config:
    """A text-only config as a checkpoint with towers spells it."""
    (architecture,) = config["architectures"]
    return {
        "architectures": [architecture.replace("CausalLM", "ConditionalGeneration")],
        "model_type": config["model_type"].removesuffix("_text"),
        "text_config": {field: value for field, value in config.items() if field != "architectures"},
        "vision_config": {},
    }


def values_of(linear: Linear) -> Tensor:
    assert isinstance(linear.weight, DenseWeight)
    return linear.weight.values


def same_weights(one: LoadedModel, other: LoadedModel) -> bool:
    ours, theirs = (dict(loaded.model.named_parameters()) for loaded in (one, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_tensor_lands_in_its_rows(name: str, tmp_path: Path) -> None:
    tensors = random_tensors(SHRUNK[name])
    loaded = load(write_checkpoint(tmp_path, SHRUNK[name], tensors))
    expected: dict[str, list[Tensor]] = defaultdict(list)
    for target in tensor_targets(loaded.spec):  # in the order of their parts
        is_less_one = name.startswith("Gemma 3 ") and "norm" in target.name
        expected[target.place].append(tensors[f"model.{target.name}"] + (1 if is_less_one else 0))
    for key, parameter in loaded.model.named_parameters():
        assert torch.equal(parameter, torch.cat(expected.pop(key.removesuffix(".weight.values")))), key
    assert not expected


@pytest.mark.parametrize("name", ["Gemma 4 E2B", "Gemma 4 26B-A4B", "Gemma 3 1B", "Gemma 3n E4B"])
@pytest.mark.parametrize("num_shards", [2, 7])
def test_shards_equal_a_single_file(name: str, num_shards: int, tmp_path: Path) -> None:
    tensors = random_tensors(SHRUNK[name])
    single = load(write_checkpoint(tmp_path / "single", SHRUNK[name], tensors))
    sharded = load(write_checkpoint(tmp_path / "sharded", SHRUNK[name], tensors, num_shards=num_shards))
    assert same_weights(single, sharded)


def test_shards_load_without_their_index(tmp_path: Path) -> None:
    tensors = random_tensors(SHRUNK["Gemma 3 1B"])
    folder = write_checkpoint(tmp_path, SHRUNK["Gemma 3 1B"], tensors, num_shards=3)
    indexed = load(folder)
    (folder / "model.safetensors.index.json").unlink()
    assert same_weights(load(folder), indexed)


def test_an_index_leaves_other_files_alone(tmp_path: Path) -> None:
    """Some repositories keep a second copy of the weights beside the indexed one."""
    tensors = random_tensors(SHRUNK["Gemma 3 1B"])
    folder = write_checkpoint(tmp_path, SHRUNK["Gemma 3 1B"], tensors, num_shards=2)
    expected = load(folder)
    (folder / "consolidated.safetensors").write_bytes(b"not read")
    assert same_weights(load(folder), expected)


class TestPrefixes:
    """Where published files keep the decoder, and what else they hold."""

    OTHER_PARTS = {  # noqa: RUF012  (read only)
        "Gemma 3 4B": (
            "vision_tower.vision_model.post_layernorm.bias",
            "multi_modal_projector.mm_soft_emb_norm.weight",
        ),
        "Gemma 4 E4B": ("model.vision_tower.encoder.x", "model.audio_tower.output_proj.bias", "model.embed_vision.x"),
        "Gemma 4 12B": ("model.vision_embedder.pos_embedding", "model.embed_audio.embedding_projection.weight"),
        "Gemma 3n E4B": ("model.vision_tower.timm_model.conv_stem.conv.bias", "model.embed_audio.embedding.weight"),
    }

    @pytest.mark.parametrize("name", OTHER_PARTS)
    def test_published_checkpoints_with_towers(self, name: str, tmp_path: Path) -> None:
        config = SHRUNK[name]
        plain = load(write_checkpoint(tmp_path / "plain", config, random_tensors(config)))
        prefix = "language_model.model." if name == "Gemma 3 4B" else "model.language_model."
        tensors = random_tensors(config, prefix) | {part: torch.zeros(3) for part in self.OTHER_PARTS[name]}
        published = load(write_checkpoint(tmp_path / "published", wrap(config), tensors))
        assert same_weights(plain, published)

    def test_an_unknown_part_of_such_a_checkpoint_is_named(self, tmp_path: Path) -> None:
        config = SHRUNK["Gemma 4 E4B"]
        tensors = random_tensors(config, "model.language_model.") | {"model.smell_tower.x": torch.zeros(1)}
        with pytest.raises(CheckpointError, match=r"1 unexpected: model\.smell_tower\.x\."):
            load(write_checkpoint(tmp_path, wrap(config), tensors))

    def test_no_embedding_under_any_prefix(self, tmp_path: Path) -> None:
        tensors = random_tensors(SHRUNK["Gemma 3 1B"], "transformer.")
        with pytest.raises(CheckpointError, match=rf"None of the {len(tensors)} tensors is a token embedding"):
            load(write_checkpoint(tmp_path, SHRUNK["Gemma 3 1B"], tensors))


class TestTensorsNobodyReads:
    def test_keys_and_values_of_sharing_layers_are_ignored(self, tmp_path: Path) -> None:
        config = SHRUNK["Gemma 4 E4B"]
        tensors = random_tensors(config)
        plain = load(write_checkpoint(tmp_path / "plain", config, tensors))
        extra = {
            f"model.layers.{layer}.self_attn.{part}.weight": torch.full((2, 2), float("nan"))
            for layer in range(7, 12)
            for part in ("k_proj", "v_proj", "k_norm")
        }
        assert same_weights(load(write_checkpoint(tmp_path / "extra", config, tensors | extra)), plain)

    @pytest.mark.parametrize("head", ["lm_head.weight", "language_model.lm_head.weight"])
    def test_a_repeated_tied_head_is_ignored(self, head: str, tmp_path: Path) -> None:
        config = SHRUNK["Gemma 3 1B"]
        loaded = load(write_checkpoint(tmp_path, config, random_tensors(config) | {head: torch.zeros(1)}))
        assert loaded.model.head is None

    def test_an_untied_head_is_loaded(self, tmp_path: Path) -> None:
        config = {**SHRUNK["Gemma 3 1B"], "tie_word_embeddings": False}
        tensors = random_tensors(config)
        loaded = load(write_checkpoint(tmp_path, config, tensors))
        assert loaded.model.head is not None
        assert torch.equal(values_of(loaded.model.head), tensors["lm_head.weight"])
        assert not torch.equal(values_of(loaded.model.head), values_of(loaded.model.embedding))

    def test_an_untied_head_is_missed(self, tmp_path: Path) -> None:
        config = SHRUNK["Gemma 3 1B"]
        tensors = random_tensors(config)
        with pytest.raises(CheckpointError, match=r"1 missing: lm_head\.weight\."):
            load(write_checkpoint(tmp_path, {**config, "tie_word_embeddings": False}, tensors))


@pytest.mark.usefixtures("with_bfloat16_products")
class TestDtypes:
    CONFIG = SHRUNK["Gemma 4 E4B"]

    def load_as(self, folder: Path, stored: torch.dtype, asked: str) -> tuple[LoadedModel, dict[str, Tensor]]:
        tensors = {name: tensor.to(stored) for name, tensor in random_tensors(self.CONFIG).items()}
        return load(write_checkpoint(folder, self.CONFIG, tensors), dtype=asked), tensors

    @pytest.mark.parametrize("stored", DTYPES)
    @pytest.mark.parametrize("asked", ["auto", *DTYPES])
    def test_stored_and_asked(self, stored: str, asked: str, tmp_path: Path) -> None:
        loaded, tensors = self.load_as(tmp_path, DTYPES[stored], asked)
        expected = DTYPES[stored if asked == "auto" else asked]
        assert loaded.model.placement.dtype == expected
        assert torch.equal(values_of(loaded.model.embedding), tensors["model.embed_tokens.weight"].to(expected))
        # Norms multiply before they round, so their weights keep every bit.
        assert torch.equal(loaded.model.norm.weight, tensors["model.norm.weight"].float())

    @pytest.mark.parametrize(("asked", "expected"), [("half", torch.float16), ("float", torch.float32)])
    def test_other_names(self, asked: str, expected: torch.dtype, tmp_path: Path) -> None:
        assert self.load_as(tmp_path, torch.bfloat16, asked)[0].model.embedding.weight.values.dtype == expected

    def test_auto_takes_what_most_is_stored_in(self, tmp_path: Path) -> None:
        tensors = {
            name: tensor.float() if "norm" in name else tensor.bfloat16()
            for name, tensor in random_tensors(self.CONFIG).items()
        }
        loaded = load(write_checkpoint(tmp_path, self.CONFIG, tensors))
        assert loaded.model.placement.dtype == torch.bfloat16
        assert torch.equal(loaded.model.norm.weight, tensors["model.norm.weight"])

    def test_gemma_3_norms_gain_their_one_before_they_round(self, tmp_path: Path) -> None:
        config = SHRUNK["Gemma 3 1B"]
        tensors = {name: tensor.bfloat16() / 64 for name, tensor in random_tensors(config).items()}
        loaded = load(write_checkpoint(tmp_path, config, tensors))
        assert torch.equal(loaded.model.norm.weight, tensors["model.norm.weight"].float() + 1)


class TestWrongTensors:
    """Named, counted, and refused before a single parameter is allocated."""

    CONFIG = SHRUNK["Gemma 3 1B"]

    @pytest.fixture(autouse=True)
    def _nothing_is_built(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def build(*_: object) -> None:
            raise AssertionError("memory was spent on a checkpoint that is refused")

        monkeypatch.setattr("facet.model.loader.Gemma", build)

    def refusal(self, folder: Path, change: Callable[[dict[str, Tensor]], object]) -> str:
        tensors = random_tensors(self.CONFIG)
        change(tensors)
        with pytest.raises(CheckpointError) as caught:
            load(write_checkpoint(folder, self.CONFIG, tensors))
        message = str(caught.value)
        assert "\n" not in message
        assert message.endswith("Nothing was loaded.")
        return message

    def test_one_missing(self, tmp_path: Path) -> None:
        message = self.refusal(tmp_path, lambda tensors: tensors.pop("model.layers.3.mlp.up_proj.weight"))
        assert "1 missing: layers.3.mlp.up_proj.weight." in message

    def test_one_unexpected(self, tmp_path: Path) -> None:
        message = self.refusal(tmp_path, lambda t: t.update({"model.layers.12.mlp.up_proj.weight": torch.zeros(1)}))
        assert "1 unexpected: model.layers.12.mlp.up_proj.weight." in message

    @pytest.mark.parametrize("shape", [(24,), (24, 15), (16, 24), (24, 16, 1), ()])
    def test_one_of_another_shape(self, shape: tuple[int, ...], tmp_path: Path) -> None:
        message = self.refusal(tmp_path, lambda t: t.update({"model.layers.3.mlp.up_proj.weight": torch.zeros(shape)}))
        assert f"1 of another shape: layers.3.mlp.up_proj.weight {list(shape)} instead of [24, 16]." in message

    @pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int64, torch.float64])
    def test_one_of_another_type(self, dtype: torch.dtype, tmp_path: Path) -> None:
        """Bytes of a quantized weight, taken for numbers, would load without a word and compute nonsense."""
        name = "model.layers.3.mlp.up_proj.weight"
        message = self.refusal(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
        assert "1 of another type: layers.3.mlp.up_proj.weight" in message
        assert "BF16" in message

    def test_ten_are_named_and_the_rest_counted(self, tmp_path: Path) -> None:
        def change(tensors: dict[str, Tensor]) -> None:
            for layer in range(12):
                del tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
                tensors[f"model.layers.{layer}.mlp.gate_proj.weight"] = torch.zeros(1)
            tensors |= {f"model.strange.{index}": torch.zeros(1) for index in range(25)}

        message = self.refusal(tmp_path, change)
        for count, what, word in (
            (12, "missing", "up_proj"),
            (25, "unexpected", "strange"),
            (12, "of another shape", "gate_proj"),
        ):
            assert f"{count} {what}: " in message
            assert message.count(word) == 10
            assert f"and {count - 10} more" in message

    def test_the_wrong_size_of_model(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path, {**self.CONFIG, "hidden_size": 32}, random_tensors(self.CONFIG))
        with pytest.raises(CheckpointError, match="of another shape"):
            load(folder)

    def test_fewer_layers_than_the_config_says(self, tmp_path: Path) -> None:
        config = {key: value for key, value in self.CONFIG.items() if key != "layer_types"} | {"num_hidden_layers": 13}
        with pytest.raises(CheckpointError, match=r"13 missing: layers\.12"):
            load(write_checkpoint(tmp_path, config, random_tensors(self.CONFIG)))

    def test_more_layers_than_the_config_says(self, tmp_path: Path) -> None:
        config = {key: value for key, value in self.CONFIG.items() if key != "layer_types"} | {"num_hidden_layers": 11}
        with pytest.raises(CheckpointError, match=r"13 unexpected: model\.layers\.11"):
            load(write_checkpoint(tmp_path, config, random_tensors(self.CONFIG)))
