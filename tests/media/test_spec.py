"""What is read from published configs and processor files, with and without the latter."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from facet.errors import ConfigError
from facet.media.spec import MediaSpec, MediaTokens, PatchPictures, SquarePictures
from facet.media.spec_file import read_media_spec
from facet.media_span import MediaSpan
from facet.prepared_media import MediaArray, PreparedMedia, content_key
from tests.published_configs import published, text_only


def spec_of(folder: Path, config: dict[str, Any], **files: dict[str, Any]) -> MediaSpec:
    for name, content in {"config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return read_media_spec(folder)


def test_gemma_4_without_processor_files(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, published("Gemma 4 E4B") | {"audio_config": {"model_type": "gemma4_audio"}})
    assert spec.kinds == ("image", "audio", "video")
    pictures, sounds, videos = spec.pictures, spec.sounds, spec.videos
    assert isinstance(pictures, PatchPictures)
    assert sounds is not None
    assert videos is not None
    assert (pictures.patch_size, pictures.token_size, pictures.budget, pictures.filter) == (16, 48, 280, "bicubic")
    assert not pictures.attends_both_ways
    assert pictures.tokens == MediaTokens(placeholder=258_880, begin=255_999, soft=258_880, end=258_882)
    assert (videos.num_frames, videos.frames.budget, videos.frames.tokens.soft) == (32, 70, 258_884)
    assert videos.frames.tokens.begin == pictures.tokens.begin
    assert sounds.log_mel is not None
    assert (sounds.samples_per_token, sounds.max_samples, sounds.tokens.end) == (640, 480_000, 258_883)


@pytest.mark.parametrize(
    ("name", "patch_size", "both_ways"),
    [
        ("Gemma 4 E2B", 16, False),
        ("Gemma 4 26B-A4B", 16, True),
        ("Gemma 4 31B", 16, True),
        ("Gemma 4 12B", 48, True),
    ],
)
def test_who_has_patches_of_which_size_and_sees_ahead(
    tmp_path: Path, name: str, patch_size: int, both_ways: bool
) -> None:
    spec = spec_of(tmp_path, published(name))
    assert isinstance(spec.pictures, PatchPictures)
    assert spec.sounds is None
    assert (spec.pictures.patch_size, spec.pictures.attends_both_ways) == (patch_size, both_ways)


def test_the_12b_takes_raw_sound_of_any_length(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, published("Gemma 4 12B") | {"audio_config": {"audio_embed_dim": 640}})
    assert spec.sounds is not None
    assert (spec.sounds.log_mel, spec.sounds.samples_per_token, spec.sounds.max_samples) == (None, 640, None)


def test_blocks_of_a_processor_file_win(tmp_path: Path) -> None:
    blocks = {"image_processor": {"max_soft_tokens": 560}, "video_processor": {"num_frames": 8, "max_soft_tokens": 140}}
    spec = spec_of(tmp_path, published("Gemma 4 31B"), processor_config=blocks)
    assert isinstance(spec.pictures, PatchPictures)
    assert spec.videos is not None
    assert (spec.pictures.budget, spec.videos.num_frames, spec.videos.frames.budget) == (560, 8, 140)
    spec = spec_of(tmp_path, published("Gemma 4 31B"), processor_config={**blocks, "video_processor": None})
    assert spec.kinds == ("image",)


def test_gemma_3(tmp_path: Path) -> None:
    flat = {"size": {"height": 112, "width": 112}, "resample": 2, "do_pan_and_scan": None, "image_mean": [0.5] * 3}
    spec = spec_of(tmp_path, published("Gemma 3 4B"), preprocessor_config=flat)
    pictures = spec.pictures
    assert isinstance(pictures, SquarePictures)
    assert spec.kinds == ("image",)
    assert (pictures.side, pictures.num_tokens, pictures.filter) == (112, 256, "bilinear")
    assert pictures.attends_both_ways
    assert pictures.pan_and_scan is not None
    assert not pictures.pan_and_scan.enabled
    assert pictures.pan_and_scan.min_ratio == 1.2
    assert pictures.tokens == MediaTokens(
        placeholder=255_999, begin=255_999, soft=262_144, end=256_000, text_around="\n\n"
    )


def test_gemma_3n(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, published("Gemma 3n E4B"))
    assert spec.kinds == ("image", "audio")
    assert isinstance(spec.pictures, SquarePictures)
    assert (spec.pictures.side, spec.pictures.filter, spec.pictures.pan_and_scan) == (768, "bicubic", None)
    assert spec.sounds is not None
    assert (spec.sounds.num_tokens, spec.sounds.tokens.placeholder) == (188, 262_273)


@pytest.mark.parametrize("name", ["Gemma 3 1B", "Gemma 4 31B"])
def test_an_export_without_towers_reads_text_only(tmp_path: Path, name: str) -> None:
    assert spec_of(tmp_path, text_only(name)) == MediaSpec()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_soft_tokens": 300}, "max_soft_tokens"),
        ({"rescale_factor": 1.0}, "rescale_factor"),
        ({"do_normalize": True, "image_mean": [0.5, 0.5, 0.5]}, "image_mean"),
        ({"do_resize": False}, "do_resize"),
        ({"resample": 0}, "resample"),
    ],
)
def test_what_towers_do_not_expect_is_refused(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        spec_of(tmp_path, published("Gemma 4 31B"), processor_config={"image_processor": fields})


def test_arrays_come_back_as_they_were() -> None:
    for array in (np.arange(12, dtype=np.uint8).reshape(3, 4), np.eye(3, dtype=np.float32), np.ones(2, bool)):
        stored = MediaArray.from_numpy(array)
        assert np.array_equal(stored.numpy(), array)
        assert stored.numpy().dtype == array.dtype


def test_prepared_media_name_their_span() -> None:
    media = PreparedMedia(kind="image", content_key="a", num_tokens=4, arrays={}, attends_both_ways=True)
    assert media.span(7) == MediaSpan(first=7, length=4, kind="image", content_key="a", attends_both_ways=True)


def test_keys_tell_content_and_preparation_apart() -> None:
    keys = {content_key(b"a", 70), content_key(b"a", 140), content_key(b"b", 70), content_key(b"a", 7, 0)}
    assert len(keys) == 4
    assert content_key(b"a", 70) in keys
