"""Towers make of pictures what transformers makes of them, alone and several at once, from the published layouts."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from facet.config import ModelConfig
from facet.errors import CheckpointError, ConfigError
from facet.layers.placement import Placement
from facet.model.config_fields import read_config_file
from facet.model.families import read_model_spec
from facet.model.loader import load_model
from facet.model.quantized.choose import read_scheme
from facet.model.towers import NO_TOWER, QUANTIZED_TOWER, build_vision_tower, find_towers
from facet.model.vision_config import read_vision_spec
from facet.model.vision_weights import vision_targets
from facet.model.weight_files import find_weight_files, read_headers
from facet.progress import Silent
from facet.vision_spec import VisionSpec
from tests.published_configs import PUBLISHED
from tests.tiny_models import VISION_NAMES, TinyModel
from tests.vision import Picture, oracle_rows, random_pictures

FLOAT32 = Placement(dtype=torch.float32, device=torch.device("cpu"))
RELATIVE_TOLERANCE = 2e-4
INT8_TOWERS = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
        }
    },
    "ignore": ["lm_head", "re:.*language_model.*", "re:.*layers.0.*", "re:.*embed.*", "re:.*multi_modal.*"],
}

TinyModels = Callable[[str], TinyModel]


def spec_of(config: Mapping[str, Any]) -> VisionSpec:
    spec = read_vision_spec(config, read_model_spec(config).hidden_size)
    assert spec is not None
    return spec


def load(folder: Path, placement: Placement = FLOAT32) -> nn.Module:
    config = read_config_file(folder / "config.json")
    found = find_towers(config, read_model_spec(config), read_headers(find_weight_files(folder)))
    return found.load(placement, Silent())["image"]


@torch.no_grad()
def rows_of(tower: nn.Module, pictures: list[Picture]) -> list[Tensor]:
    rows: list[Tensor] = tower(pictures)
    return rows


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("name", VISION_NAMES)
def test_rows_are_those_of_transformers_alone_and_together(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    tower = load(tiny.folder)
    pictures = random_pictures(spec_of(tiny.config))
    alone = [rows_of(tower, [picture])[0] for picture in pictures]
    for ours, picture in zip(alone, pictures, strict=True):
        assert relative_difference(ours, oracle_rows(tiny.oracle, picture)) <= RELATIVE_TOLERANCE
    for ours, one in zip(rows_of(tower, pictures), alone, strict=True):
        assert relative_difference(ours, one) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_stay_near(dtype: torch.dtype, tiny_model: TinyModels) -> None:
    tiny = tiny_model("gemma4_31b_mm")
    tower, small = load(tiny.folder), load(tiny.folder, replace(FLOAT32, dtype=dtype))
    pictures = random_pictures(spec_of(tiny.config))
    for ours, exact in zip(rows_of(small, pictures), rows_of(tower, pictures), strict=True):
        assert ours.dtype == dtype
        assert (ours.float() - exact).abs().mean() <= 0.05 * exact.abs().mean()


@pytest.mark.parametrize(
    ("name", "num_tensors", "millions"),
    # What is said of the published files: 355 tensors beside the projection, and these sizes.
    [("Gemma 4 E2B", None, 167.4), ("Gemma 4 31B", 356, 569.6), ("Gemma 4 26B-A4B", 356, 569.6)],
)
def test_published_towers_have_their_size(name: str, num_tensors: int | None, millions: float) -> None:
    targets = vision_targets(spec_of(PUBLISHED[name]))
    towers = [target for target in targets if target.name.startswith("vision_tower.")]
    assert num_tensors is None or len(targets) == num_tensors
    assert round(sum(target.num_values for target in towers) / 1e6, 1) == millions


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "3n" not in name])
def test_every_parameter_of_a_tower_has_a_tensor(name: str) -> None:
    spec = read_vision_spec(PUBLISHED[name], read_model_spec(PUBLISHED[name]).hidden_size)
    if spec is None:
        assert "text_config" not in PUBLISHED[name]
        return
    tower = build_vision_tower(spec, replace(FLOAT32, device=torch.device("meta")))
    places = {target.place for target in vision_targets(spec)}
    assert {name.removesuffix(".weight.values") for name, _ in tower.named_parameters()} == places


def test_gemma_3_files_are_read_with_the_published_names(tiny_model: TinyModels, tmp_path: Path) -> None:
    tiny = tiny_model("gemma3_mm")
    stored = load_file(tiny.folder / "model.safetensors")
    names = {name: name.removeprefix("model.") for name in stored}
    inner = {
        name: new.replace("vision_tower.", "vision_tower.vision_model.")
        for name, new in names.items()
        if "vision_model." not in new
    }
    save_file({{**names, **inner}[name]: tensor for name, tensor in stored.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((tiny.folder / "config.json").read_bytes())
    pictures = random_pictures(spec_of(tiny.config))
    for ours, expected in zip(rows_of(load(tmp_path), pictures), rows_of(load(tiny.folder), pictures), strict=True):
        assert torch.equal(ours, expected)


def test_tensors_that_do_not_fit_are_named(tiny_model: TinyModels) -> None:
    tiny = tiny_model("gemma4_e2b_mm")
    headers = read_headers(find_weight_files(tiny.folder))
    cases: dict[str, dict[str, Any]] = {
        "missing: vision_tower.std_bias": {"standardize": True},
        "unexpected: .*down_proj.input_max": {"use_clipped_linears": False},
        "of another shape: .*position_embedding_table": {"position_embedding_size": 65},
    }
    for message, changes in cases.items():
        wrong = {**tiny.config, "vision_config": {**tiny.config["vision_config"], **changes}}
        with pytest.raises(CheckpointError, match=message):
            find_towers(wrong, read_model_spec(tiny.config), headers)


def test_text_is_served_where_the_tower_cannot_be(tiny_model: TinyModels) -> None:
    """Files without towers, and those whose towers are kept in a form that is not read, load as before."""
    tiny = tiny_model("gemma4_e2b_mm")
    headers, spec = read_headers(find_weight_files(tiny.folder)), read_model_spec(tiny.config)
    decoder = {name: tensor for name, tensor in headers.items() if "language_model" in name}
    assert find_towers(tiny.config, spec, decoder).notes == (NO_TOWER.format("pictures"), NO_TOWER.format("sound"))
    odd = {name: tensor for name, tensor in headers.items() if "vision_tower.encoder.layers.0.mlp" not in name}
    scheme = read_scheme({**tiny.config, "quantization_config": INT8_TOWERS}, tiny.folder)
    assert find_towers(tiny.config, spec, odd, scheme).notes == (QUANTIZED_TOWER.format("pictures"),)
    text = {"architectures": ["Gemma4ForCausalLM"], **tiny.config["text_config"]}
    assert not find_towers(text, spec, headers).towers


@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma3_mm"])
def test_quantized_towers_compute_with_what_their_codes_stand_for(
    name: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    """Matrices of towers in eight bits, but for those that the config leaves alone; the decoder is not quantized."""
    tiny = tiny_model(name)
    quantized, rounded = {}, {}
    for key, tensor in load_file(tiny.folder / "model.safetensors").items():
        rounded[key] = quantized[key] = tensor
        is_left_alone = "layers.0." in key or "embed" in key or "multi_modal" in key
        if "_tower." in key and tensor.ndim == 2 and key.endswith(".weight") and not is_left_alone:
            scales = tensor.abs().amax(dim=1, keepdim=True) / 127
            codes = (tensor / scales).round()
            rounded[key] = codes * scales
            quantized |= {key: codes.to(torch.int8), f"{key}_scale": scales}
    assert len(quantized) > len(rounded)
    for folder, tensors, more in (
        ("rounded", rounded, {}),
        ("quantized", quantized, {"quantization_config": INT8_TOWERS}),
    ):
        (tmp_path / folder).mkdir()
        save_file(tensors, tmp_path / folder / "model.safetensors")
        config = json.loads((tiny.folder / "config.json").read_text()) | more
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    ours, expected = (
        load_model(ModelConfig(model=str(tmp_path / folder), device="cpu", max_model_len=64))
        for folder in ("quantized", "rounded")
    )
    assert set(ours.towers) == set(expected.towers)
    pictures = random_pictures(ours.towers["image"].spec)
    for row, other in zip(*(rows_of(each.towers["image"], pictures) for each in (ours, expected)), strict=True):
        assert relative_difference(row, other) <= 1e-5


@pytest.mark.parametrize(("language_model_only", "kinds"), [(False, {"image", "video", "audio"}), (True, set())])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_towers_come_with_a_model_unless_text_is_enough(
    language_model_only: bool, kinds: set[str], load_format: str, tiny_model: TinyModels
) -> None:
    config = ModelConfig(
        model=str(tiny_model("gemma4_e2b_mm").folder),
        device="cpu",
        load_format=load_format,
        language_model_only=language_model_only,
        max_model_len=64,
    )
    towers = load_model(config).towers
    assert set(towers) == kinds
    if towers:
        assert all(row.isfinite().all() for row in rows_of(towers["image"], random_pictures(towers["image"].spec)))


@pytest.mark.parametrize(
    ("name", "section", "changes", "message"),
    [
        ("Gemma 4 31B", "vision_config", {"num_key_value_heads": 4}, "num_key_value_heads is 4, but must be"),
        ("Gemma 4 31B", "vision_config", {"head_dim": 70}, "head_dim is 70, but must be a multiple of 4"),
        ("Gemma 4 E2B", "vision_config", {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        ("Gemma 4 12B", "vision_config", {"mm_posemb_size": 0}, "mm_posemb_size is 0"),
        ("Gemma 4 12B", "vision_config", {"output_proj_dims": 8}, "output_proj_dims is 8, but must be mm_embed_dim"),
        ("Gemma 3 4B", "vision_config", {"image_size": 900}, "image_size is 900, but must be a multiple"),
        ("Gemma 3 4B", "vision_config", {"hidden_size": 1000}, "hidden_size is 1000, but must be a multiple"),
        ("Gemma 3 4B", None, {"mm_tokens_per_image": 255}, "mm_tokens_per_image is 255, but must be the square"),
    ],
)
def test_configs_that_make_no_tower_are_refused(
    name: str, section: str | None, changes: dict[str, Any], message: str
) -> None:
    config = PUBLISHED[name]
    config = {**config, **changes} if section is None else {**config, section: {**config[section], **changes}}
    with pytest.raises(ConfigError, match=message):
        spec_of(config)
