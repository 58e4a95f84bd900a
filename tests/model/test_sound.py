"""Towers make of sound what transformers makes of it, alone and several clips at once, from the published layouts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from facet.errors import CheckpointError, ConfigError
from facet.layers.placement import Placement
from facet.model.checkpoint import load_weights, match_tower
from facet.model.families import read_model_spec
from facet.model.sound_config import read_sound_spec
from facet.model.sound_weights import sound_targets
from facet.model.towers import build_sound_tower
from facet.model.weight_files import find_weight_files, read_headers
from facet.progress import Silent
from facet.sound_spec import ConformerTowerSpec, SampleEmbedderSpec, SoundSpec
from tests.published_configs import PUBLISHED
from tests.sound import KINDS, Clip, TinySound, make_tiny_sound, random_clips

FLOAT32 = Placement(dtype=torch.float32, device=torch.device("cpu"))
RELATIVE_TOLERANCE = 2e-4

TinySounds = Callable[[str], TinySound]
HEARING = {
    "conformer": {**PUBLISHED["Gemma 4 E4B"], "audio_config": {"model_type": "gemma4_audio"}},
    "samples": {**PUBLISHED["Gemma 4 12B"], "audio_config": {"model_type": "gemma4_unified_audio"}},
    "usm": {**PUBLISHED["Gemma 3n E4B"], "audio_config": {"model_type": "gemma3n_audio"}},
}


@pytest.fixture(scope="module")
def tiny_sound(tmp_path_factory: pytest.TempPathFactory) -> TinySounds:
    made: dict[str, TinySound] = {}

    def get(kind: str) -> TinySound:
        if kind not in made:
            made[kind] = make_tiny_sound(kind, tmp_path_factory.mktemp(kind), seed=len(kind))
        return made[kind]

    return get


def spec_of(config: Mapping[str, Any]) -> SoundSpec:
    spec = read_sound_spec(config, read_model_spec(config))
    assert spec is not None
    return spec


def load(tiny: TinySound, placement: Placement = FLOAT32) -> nn.Module:
    spec = spec_of(tiny.config)
    matched = match_tower(sound_targets(spec), read_headers(find_weight_files(tiny.folder)))
    tower = build_sound_tower(spec, placement)
    load_weights(tower, matched, Silent())
    return tower


def clips_of(spec: SoundSpec) -> list[Clip]:
    return random_clips(spec.frame_size if isinstance(spec, SampleEmbedderSpec) else spec.num_bins)


@torch.no_grad()
def rows_of(tower: nn.Module, clips: list[Clip]) -> list[Tensor]:
    rows: list[Tensor] = tower(clips)
    return rows


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_transformers_alone_and_together(kind: str, tiny_sound: TinySounds) -> None:
    tiny = tiny_sound(kind)
    tower = load(tiny)
    clips = clips_of(spec_of(tiny.config))
    alone = [rows_of(tower, [clip])[0] for clip in clips]
    for ours, clip in zip(alone, clips, strict=True):
        assert relative_difference(ours, tiny.rows(clip)) <= RELATIVE_TOLERANCE
    for ours, one in zip(rows_of(tower, clips), alone, strict=True):
        assert relative_difference(ours, one) <= 1e-5


@pytest.mark.parametrize("kind", ["conformer", "usm"])
def test_later_sound_changes_no_earlier_row(kind: str, tiny_sound: TinySounds) -> None:
    """All but the convolutions at the front look back only, which is what lets clips share a batch."""
    tiny = tiny_sound(kind)
    tower = load(tiny)
    clip = clips_of(spec_of(tiny.config))[2]["features"]
    changed = clip.clone()
    changed[48:] += 1
    before, after = rows_of(tower, [{"features": clip}, {"features": changed}])
    # Convolutions of Gemma 4 reach one frame ahead, then one of twice the length; those of Gemma 3n two, then two.
    num_equal = (48 - 3) // 4 if kind == "conformer" else (48 - 6) // 16
    assert torch.equal(before[:num_equal], after[:num_equal])
    assert not torch.equal(before, after)


@pytest.mark.parametrize("kind", ["conformer", "usm"])
def test_sixteen_bits_stay_near(kind: str, tiny_sound: TinySounds) -> None:
    tiny = tiny_sound(kind)
    clips = clips_of(spec_of(tiny.config))
    exact = rows_of(load(tiny), clips)
    for ours, expected in zip(rows_of(load(tiny, replace(FLOAT32, dtype=torch.bfloat16)), clips), exact, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours.float() - expected).abs().mean() <= 0.05 * expected.abs().mean()


def test_published_towers_have_their_size() -> None:
    """What is said of the published files."""
    targets = sound_targets(spec_of(HEARING["conformer"]))
    tower = [target for target in targets if target.name.startswith("audio_tower.")]
    assert round(sum(target.num_values for target in tower) / 1e6, 1) == 304.8
    (only,) = sound_targets(spec_of(HEARING["samples"]))
    assert only.shape == (3840, 640)


@pytest.mark.parametrize("kind", HEARING)
def test_every_parameter_of_a_tower_has_a_tensor(kind: str) -> None:
    spec = spec_of(HEARING[kind])
    tower = build_sound_tower(spec, replace(FLOAT32, device=torch.device("meta")))
    places = {target.place for target in sound_targets(spec)}
    assert {name.removesuffix(".weight.values") for name, _ in tower.named_parameters()} == places


def test_models_without_hearing() -> None:
    for name in ("Gemma 4 31B", "Gemma 3 4B", "Gemma 3 1B"):
        config = {**PUBLISHED[name], "audio_config": None}
        assert read_sound_spec(config, read_model_spec(config)) is None


def test_tensors_that_do_not_fit_are_named(tiny_sound: TinySounds) -> None:
    tiny = tiny_sound("conformer")
    spec = spec_of(tiny.config)
    assert isinstance(spec, ConformerTowerSpec)
    headers = read_headers(find_weight_files(tiny.folder))
    cases = {
        "missing: audio_tower.layers.2.": replace(spec, conformer=replace(spec.conformer, num_layers=3)),
        "unexpected: .*input_max": replace(spec, conformer=replace(spec.conformer, is_clipped=False)),
        "of another shape: audio_tower.output_proj.weight": replace(spec, projected_size=25),
    }
    for message, wrong in cases.items():
        with pytest.raises(CheckpointError, match=message):
            match_tower(sound_targets(wrong), headers)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("conformer", {"hidden_act": "gelu"}, "hidden_act is 'gelu', but must be silu"),
        ("conformer", {"attention_chunk_size": 8}, "attention_chunk_size is 8, but must be attention_context_left"),
        ("conformer", {"attention_context_right": 2}, "attention_context_right is 2, but must be 0"),
        ("conformer", {"subsampling_conv_channels": [128]}, "subsampling_conv_channels is .* a list of two numbers"),
        ("conformer", {"subsampling_conv_channels": [18, 4]}, "subsampling_conv_channels is .* a multiple of 4"),
        ("conformer", {"hidden_size": 1001}, "hidden_size is 1001, but must be an even multiple"),
        ("conformer", {"gradient_clipping": 10.0}, "gradient_clipping is 10.0, but must be at least"),
        ("usm", {"sscp_conv_stride_size": [[2, 2], [1, 2]]}, "sscp_conv_stride_size is"),
        ("usm", {"input_feat_size": 126}, "input_feat_size is 126, but must be a multiple of 4"),
        ("usm", {"vocab_offset": 262_100}, "vocab_offset is 262100, but must be such that"),
        ("usm", {"conf_num_hidden_layers": 0}, "conf_num_hidden_layers is 0"),
        ("samples", {"audio_embed_dim": 0}, "audio_embed_dim is 0"),
    ],
)
def test_configs_that_make_no_tower_are_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    config = {**HEARING[kind], "audio_config": {**HEARING[kind]["audio_config"], **changes}}
    with pytest.raises(ConfigError, match=message):
        spec_of(config)


def test_a_family_without_towers_for_sound_is_refused() -> None:
    config = {**PUBLISHED["Gemma 3 4B"], "audio_config": {"hidden_size": 8}}
    with pytest.raises(ConfigError, match="model_type 'gemma3' has no tower for it"):
        spec_of(config)
