"""A quantized model computes what it would without quantization, matrix by matrix, and is given back unchanged."""

from pathlib import Path

import pytest
import torch

from facet.model.loader import LoadedModel
from facet.model.original_weights import original_weights
from tests.model.paged_model import PagedSequence, load
from tests.model.quantized_files import VARIANTS, wide, write_variant
from tests.tiny_checkpoints import random_tensors, write_checkpoint, write_config

PROMPT = [2, 3, 60, 5, 5, 17, 42, 63, 8, 9, 11, 30, 31, 32]  # past the window of six


def logits(loaded: LoadedModel) -> torch.Tensor:
    return PagedSequence(loaded.model, len(PROMPT)).run(PROMPT)


def check(loaded: LoadedModel, dense: LoadedModel, folder: Path, *, are_stored: bool) -> None:
    quantized, expected = logits(loaded), logits(dense)
    with original_weights(loaded.model, folder) as originals:
        assert originals.are_stored is are_stored
        with originals.in_place():
            got = logits(loaded)
        assert torch.equal(logits(loaded), quantized)
    assert (got - expected).abs().max() <= 2e-4 * max(1.0, float(expected.abs().max()))
    if are_stored:
        assert (quantized - expected).abs().max() > 0.01


@pytest.mark.parametrize(
    ("name", "quantization"), [("Gemma 4 E4B", "int4"), ("Gemma 4 26B-A4B", "int8"), ("Gemma 3n E4B", "fp8")]
)
def test_numbers_of_the_checkpoint(name: str, quantization: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, wide(name), random_tensors(wide(name)))
    loaded = load(folder, dtype="float32", quantization=quantization, quantize_head=True)
    check(loaded, load(folder, dtype="float32"), folder, are_stored=True)


@pytest.mark.parametrize(
    "name",
    ["int4 partly", "int4 g_idx", "int4 down of experts alone", "int8 static", "fp8 experts", "nvfp4", "gemma mobile"],
)
def test_numbers_that_codes_stand_for(name: str, tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS[name])
    loaded = load(tmp_path / "quantized", dtype="float32")
    check(loaded, load(tmp_path / "dense", dtype="float32"), tmp_path / "quantized", are_stored=False)


def test_weights_that_were_drawn_have_no_others(tmp_path: Path) -> None:
    folder = write_config(tmp_path, wide("Gemma 4 31B"))
    loaded = load(folder, dtype="float32", load_format="dummy", quantization="int4")
    with original_weights(loaded.model, None) as originals:
        assert not originals.are_stored
        with originals.in_place():
            assert (logits(loaded) - logits(loaded)).abs().max() == 0
            got = logits(loaded)
    assert (got - logits(loaded)).abs().max() <= 2e-4 * float(got.abs().max())
