"""Random weights from a config alone: every family runs, and the same seed gives the same model."""

from pathlib import Path

import pytest
import torch

from facet.layers.quantized_weight import QuantizedWeight
from facet.model.loader import LoadedModel
from tests.model.paged_model import PagedSequence, load
from tests.model.quantized_files import VARIANTS, config_of
from tests.published_configs import PUBLISHED, pattern
from tests.tiny_checkpoints import SHRUNK, write_config

PROMPT = [2, 3, 60, 5, 5, 17, 42, 63, 8, 9, 11, 30, 31, 32]  # past the window of six


def dummy(folder: Path, **settings: object) -> LoadedModel:
    return load(folder, load_format="dummy", **settings)


def parameters(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return dict(loaded.model.named_parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_family_runs(name: str, dtype: str, tmp_path: Path) -> None:
    loaded = dummy(write_config(tmp_path, SHRUNK[name]), dtype=dtype)
    logits = PagedSequence(loaded.model, len(PROMPT), kv_dtype=dtype).run(PROMPT)
    assert logits.shape == (len(PROMPT), 64)
    assert logits.isfinite().all()
    assert logits.std(dim=-1).min() > 0.01, "logits that are all alike would hide mistakes"


@pytest.mark.parametrize("name", ["Gemma 4 31B", "Gemma 4 26B-A4B", "Gemma 3 27B", "Gemma 3n E4B"])
def test_full_depth_neither_explodes_nor_vanishes(name: str, tmp_path: Path) -> None:
    """float16 ends at 65,504, so a stream that grew with every layer would show."""
    num_layers = {"Gemma 4 31B": 60, "Gemma 4 26B-A4B": 30, "Gemma 3 27B": 62, "Gemma 3n E4B": 35}[name]
    config = SHRUNK[name] | {"num_hidden_layers": num_layers, "layer_types": pattern(4, num_layers)}
    config.pop("activation_sparsity_pattern", None)
    loaded = dummy(write_config(tmp_path, config), dtype="float16")
    logits = PagedSequence(loaded.model, len(PROMPT), kv_dtype="float16").run(PROMPT)
    assert logits.isfinite().all()
    assert 0.1 <= float(logits.std()) <= 10


@pytest.mark.parametrize("name", ["Gemma 4 E2B", "Gemma 4 26B-A4B", "Gemma 3n E2B"])
def test_the_seed_decides(name: str, tmp_path: Path) -> None:
    folder = write_config(tmp_path, SHRUNK[name])
    one, again, other = dummy(folder, seed=7), dummy(folder, seed=7), dummy(folder, seed=8)
    assert all(torch.equal(value, parameters(again)[key]) for key, value in parameters(one).items())
    assert not torch.equal(one.model.embedding.weight.values, other.model.embedding.weight.values)


def test_no_parameter_is_left_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory often happens to be zero; here it is NaN."""
    empty = torch.empty

    def poisoned(*args: object, **options: object) -> torch.Tensor:
        return empty(*args, **options).fill_(float("nan"))  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("facet.layers.placement.torch.empty", poisoned)
    for name in PUBLISHED:
        loaded = dummy(write_config(tmp_path / name, SHRUNK[name]))
        assert all(value.isfinite().all() for value in parameters(loaded).values()), name


@pytest.mark.usefixtures("with_bfloat16_products")
def test_the_config_names_the_type(tmp_path: Path) -> None:
    for written, expected in (
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("torch.float32", torch.float32),
    ):
        folder = write_config(tmp_path / written, SHRUNK["Gemma 3 1B"] | {"torch_dtype": written})
        assert dummy(folder).model.placement.dtype == expected
    silent = {field: value for field, value in SHRUNK["Gemma 3 1B"].items() if field != "torch_dtype"}
    assert dummy(write_config(tmp_path / "silent", silent)).model.placement.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["int4 zero points", "nvfp4", "gemma mobile", "int4 experts split"])
def test_codes_are_random_where_the_config_says_quantized(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    folder = write_config(tmp_path, config_of(variant) | {"quantization_config": variant.config})
    loaded = dummy(folder, dtype="float32")
    quantized = [module for module in loaded.model.modules() if isinstance(module, QuantizedWeight)]
    assert len(quantized) >= 2 * loaded.spec.num_layers
    for weight in quantized:
        values = weight.matrix.values()
        assert values.std().item() == pytest.approx(values.shape[-1] ** -0.5, rel=0.5)
    assert PagedSequence(loaded.model, 4).run([2, 3, 4]).isfinite().all()


def test_files_that_are_there_are_not_read(tmp_path: Path) -> None:
    folder = write_config(tmp_path, SHRUNK["Gemma 3 1B"])
    (folder / "model.safetensors").write_bytes(b"broken")
    assert dummy(folder).model.embedding.weight.values.isfinite().all()
