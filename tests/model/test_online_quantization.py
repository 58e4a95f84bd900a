"""`--quantization` and `--quantize-head`: unquantized checkpoints become quantized while they are loaded."""

from pathlib import Path

import pytest
import torch

from facet.errors import ConfigError
from facet.kernels.quantized import packed_int4
from facet.kernels.quantized.quantize import quantize
from facet.layers.cpu_weights import PackedInt4Weight
from facet.layers.quantized_weight import QuantizedWeight
from facet.model.loader import LoadedModel, memory_needed
from facet.model.weight_formats import FLAGS
from tests.model.paged_model import PagedSequence, load
from tests.model.quantized_files import VARIANTS, wide, write_variant
from tests.tiny_checkpoints import random_tensors, write_checkpoint, write_config

PROMPT = [2, 3, 60, 5, 5, 17, 42, 63, 8, 9, 11, 30, 31, 32]  # past the window of six
NAMES = ("Gemma 4 E4B", "Gemma 4 26B-A4B", "Gemma 3n E4B")
MAIN_PLACES = {"projections", "output", "gate_up", "down"}
PER_LAYER_PLACES = {"gate", "projection"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_checkpoint(tmp_path_factory.mktemp("model"), wide(name), random_tensors(wide(name)))
        for name in NAMES
    }


def logits(loaded: LoadedModel) -> torch.Tensor:
    return PagedSequence(loaded.model, len(PROMPT)).run(PROMPT)


def quantized_places(loaded: LoadedModel) -> set[str]:
    modules = loaded.model.named_modules()
    return {place.removesuffix(".weight") for place, module in modules if isinstance(module, QuantizedWeight)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("quantization", "error"), [("int8", 0.1), ("fp8", 0.25), ("int4", 0.5)])
def test_matrices_are_rounded_as_they_are_loaded(
    name: str, quantization: str, error: float, folders: dict[str, Path]
) -> None:
    dense = load(folders[name], dtype="float32")
    loaded = load(folders[name], dtype="float32", quantization=quantization)
    has_gates = dense.spec.per_layer_input is not None and quantization == "int4"
    expected_places = MAIN_PLACES | (PER_LAYER_PLACES if has_gates else set())
    assert {place.split(".")[-1] for place in quantized_places(loaded)} == expected_places
    assert set(loaded.formats.values()) == {FLAGS[quantization]}
    some = {"layers.1.attention.projections", "layers.0.mlp.down"}
    gates = {f"layers.{index}.per_layer_gate.{part}" for index in range(4) for part in PER_LAYER_PLACES}
    for place in some | (gates & quantized_places(loaded)):
        values = dense.model.get_submodule(place).weight.values
        got = loaded.model.get_submodule(place).weight.matrix.values()
        assert torch.equal(got, quantize(values, FLAGS[quantization]).values())
    tensors = (*loaded.model.parameters(), *loaded.model.buffers())
    counted = memory_needed(loaded.spec, loaded.context_length, torch.float32, loaded.formats)
    assert counted == sum(tensor.nbytes for tensor in tensors)
    difference = (logits(loaded) - (expected := logits(dense))).norm() / expected.norm()
    assert 0 < difference <= error


@pytest.mark.skipif(not packed_int4.runs_on(torch.device("cpu")), reason="PyTorch has no fast kernel here")
@pytest.mark.parametrize("name", NAMES)
def test_a_processor_keeps_4_bits_in_the_order_of_its_kernel(
    name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = load(folders[name], dtype="bfloat16", quantization="int4")
    monkeypatch.setattr(packed_int4, "can_pack", lambda *_: False)
    plain = load(folders[name], dtype="bfloat16", quantization="int4")
    places = {place for place, module in packed.model.named_modules() if isinstance(module, PackedInt4Weight)}
    assert places
    assert not any(isinstance(module, PackedInt4Weight) for module in plain.model.modules())
    for place in places:
        same, as_it_was = (loaded.model.get_submodule(place).matrix for loaded in (packed, plain))
        assert torch.equal(same.values(), as_it_was.values()), place
    difference = (logits(packed) - (expected := logits(plain))).norm() / expected.norm()
    assert difference <= 4e-2
    monkeypatch.undo()
    tensors = (*packed.model.parameters(), *packed.model.buffers())
    counted = memory_needed(packed.spec, packed.context_length, torch.bfloat16, packed.formats, on="cpu")
    assert counted == sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("name", ["Gemma 4 E4B", "Gemma 3n E4B"])
def test_both_matrices_of_every_per_layer_gate(name: str, folders: dict[str, Path]) -> None:
    """As GGUF files of llama.cpp have them; what makes the inputs stays as it is."""
    loaded = load(folders[name], dtype="float32", quantization="int4")
    in_gates = {place for place in quantized_places(loaded) if "per_layer" in place}
    assert in_gates == {f"layers.{index}.per_layer_gate.{part}" for index in range(4) for part in PER_LAYER_PLACES}


def test_groups_that_do_not_fit_leave_a_gates_second_matrix_alone(tmp_path: Path) -> None:
    """Of 16 inputs: no error, as llama.cpp has none."""
    config = wide("Gemma 4 E4B") | {"hidden_size_per_layer_input": 16}
    folder = write_checkpoint(tmp_path, config, random_tensors(config))
    loaded = load(folder, dtype="float32", quantization="int4")
    in_gates = {place for place in quantized_places(loaded) if "per_layer_gate" in place}
    assert {place.split(".")[-1] for place in in_gates} == {"gate"}
    assert logits(loaded).isfinite().all()


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
