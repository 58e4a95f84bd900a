"""`--quantization` and `--quantize-head`: unquantized checkpoints become quantized while they are loaded."""

from pathlib import Path

import pytest
import torch

from facet.errors import ConfigError
from facet.kernels.quantized.quantize import quantize
from facet.layers.quantized_weight import QuantizedWeight
from facet.model.loader import LoadedModel
from facet.model.weight_formats import FLAGS
from tests.model.paged_model import PagedSequence, load
from tests.model.quantized_files import VARIANTS, wide, write_variant
from tests.tiny_checkpoints import random_tensors, write_checkpoint, write_config

PROMPT = [2, 3, 60, 5, 5, 17, 42, 63, 8, 9, 11, 30, 31, 32]  # past the window of six
NAMES = ("Gemma 4 E4B", "Gemma 4 26B-A4B")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_checkpoint(tmp_path_factory.mktemp("model"), wide(name), random_tensors(wide(name)))
        for name in NAMES
    }


def logits(loaded: LoadedModel) -> torch.Tensor:
    return PagedSequence(loaded.model, len(PROMPT)).run(PROMPT)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("quantization", "error"), [("int8", 0.1), ("fp8", 0.25), ("int4", 0.5)])
def test_matrices_are_rounded_as_they_are_loaded(
    name: str, quantization: str, error: float, folders: dict[str, Path]
) -> None:
    dense = load(folders[name], dtype="float32")
    loaded = load(folders[name], dtype="float32", quantization=quantization)
    places = {place for place, module in loaded.model.named_modules() if isinstance(module, QuantizedWeight)}
    assert {place.split(".")[-2] for place in places} == {"projections", "output", "gate_up", "down"}
    assert set(loaded.formats.values()) == {FLAGS[quantization]}
    for place in ("layers.1.attention.projections", "layers.0.mlp.down"):
        values = dense.model.get_submodule(place).weight.values
        got = loaded.model.get_submodule(place).weight.matrix.values()
        assert torch.equal(got, quantize(values, FLAGS[quantization]).values())
    difference = (logits(loaded) - (expected := logits(dense))).norm() / expected.norm()
    assert 0 < difference <= error


def test_a_head_is_quantized_only_if_asked(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["Gemma 4 E4B"]
    loaded = load(folder, dtype="float32", quantize_head=True)
    assert set(loaded.formats) == {"embed_tokens.weight"}  # one table with the head
    assert (logits(loaded) - (expected := logits(load(folder, dtype="float32")))).norm() <= 0.05 * expected.norm()
    both = load(folder, dtype="float32", quantization="fp8", quantize_head=True)
    assert both.formats["embed_tokens.weight"].codes == "fp8"
    assert both.formats["embed_tokens.weight"].rounding is None
    config = wide("Gemma 4 E4B") | {"tie_word_embeddings": False}
    apart = load(write_checkpoint(tmp_path, config, random_tensors(config)), dtype="float32", quantize_head=True)
    assert set(apart.formats) == {"lm_head.weight"}
    assert logits(apart).isfinite().all()


def test_weights_are_not_rounded_twice(tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS["int4 groups of 32"])
    folder = tmp_path / "quantized"
    with pytest.raises(ConfigError, match="--quantization fp8: the checkpoint is quantized already"):
        load(folder, dtype="float32", quantization="fp8")
    with pytest.raises(ConfigError, match="--quantization awq: the checkpoint is quantized by compressed-tensors"):
        load(folder, dtype="float32", quantization="awq")
    with pytest.raises(ConfigError, match="--quantization awq: the checkpoint is not quantized"):
        load(tmp_path / "dense", dtype="float32", quantization="awq")
    named = load(folder, dtype="float32", quantization="compressed-tensors")
    assert {format.codes for format in named.formats.values()} == {"int4"}
    head = load(folder, dtype="float32", quantize_head=True)
    assert {format.codes for format in head.formats.values()} == {"int4", "int8"}
    assert logits(head).isfinite().all()


def test_random_weights_can_be_quantized_too(tmp_path: Path) -> None:
    folder = write_config(tmp_path, wide("Gemma 4 26B-A4B"))
    loaded = load(folder, dtype="float32", load_format="dummy", quantization="int4", quantize_head=True)
    assert {format.codes for format in loaded.formats.values()} == {"int4", "int8"}
    assert logits(loaded).isfinite().all()


def test_groups_must_divide_the_inputs(tmp_path: Path) -> None:
    folder = write_config(tmp_path, wide("Gemma 4 31B") | {"intermediate_size": 40})
    with pytest.raises(ConfigError, match=r"mlp\.down_proj\.weight has 40 inputs, which groups of 32 do not divide"):
        load(folder, load_format="dummy", quantization="int4")
