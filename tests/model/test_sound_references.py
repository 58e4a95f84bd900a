"""Sound and video of `tests/spec/make_tiny_media_models.py`: from bytes to the rows that transformers makes of them.

Building these checkpoints takes minutes and needs more packages than the other tests, so these run only where they have
been built:

    pip install torchvision timm
    python tests/spec/make_tiny_media_models.py --out DIR
    FACET_MEDIA_MODELS=DIR pytest tests/model/test_sound_references.py
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from facet.errors import RequestError
from facet.layers.placement import Placement
from facet.media.jobs import prepare_sound_file, prepare_video_file
from facet.media.limits import MediaLimits
from facet.media.options import MediaOptions
from facet.media.spec_file import read_media_spec
from facet.model.checkpoint import load_weights, match_tower
from facet.model.config_fields import read_config_file
from facet.model.families import read_model_spec
from facet.model.sound_config import read_sound_spec
from facet.model.sound_weights import sound_targets
from facet.model.towers import build_sound_tower
from facet.model.weight_files import find_weight_files, read_headers
from facet.progress import Silent

ROOT = Path(os.environ.get("FACET_MEDIA_MODELS", "/nowhere"))
MODELS = [name for name in ("gemma4_e", "gemma4_12b", "gemma3n") if (ROOT / name / "reference.json").exists()]

if not MODELS:
    pytest.skip("FACET_MEDIA_MODELS names no folder of checkpoints", allow_module_level=True)

FLOAT32 = Placement(dtype=torch.float32, device=torch.device("cpu"))


def cases(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / name / "reference.json").read_text())["cases"]
    return found


def contents(case: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [part for part in case["content"] if isinstance(part.get(kind), str)]


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_sound(name: str) -> None:
    config = read_config_file(ROOT / name / "config.json")
    sounds, spec = read_media_spec(ROOT / name).sounds, read_sound_spec(config, read_model_spec(config))
    assert sounds is not None
    assert spec is not None
    tower = build_sound_tower(spec, FLOAT32).eval()
    load_weights(tower, match_tower(sound_targets(spec), read_headers(find_weight_files(ROOT / name))), Silent())
    for case in cases(name):
        stored = load_file(ROOT / name / "cases" / f"{case['name']}.safetensors")
        parts = contents(case, "audio")
        for index, (part, expected) in enumerate(zip(parts, case.get("audio", []), strict=True)):
            data = (ROOT / "media" / part["audio"]).read_bytes()
            if sounds.max_samples is not None and expected["samples"] > sounds.max_samples:
                with pytest.raises(RequestError, match="is longer than the 30 seconds allowed"):
                    prepare_sound_file(data, sounds, MediaLimits(), "it")
                continue
            (prepared,) = prepare_sound_file(data, sounds, MediaLimits(), "it")
            features = prepared.arrays["features"].numpy()
            if name == "gemma3n" and len(parts) > 1:
                continue  # the processor pads clips to the longest; here each is what it is alone
            assert len(features) == expected["valid_frames"]
            assert prepared.num_tokens == (188 if name == "gemma3n" else expected["soft_tokens"])
            frames = stored.get(f"audio_{index}.features.rows", np.arange(len(features)))
            # Last bits of resampled sound show in the logarithms of quiet bins.
            tolerance = 5e-4 if name == "gemma3n" or "16k" not in part["audio"] else 1e-4
            assert np.abs(features[frames] - stored[f"audio_{index}.features"][: len(frames)]).max() <= tolerance
            rows = tower([{"features": torch.tensor(features)}])[0].numpy()
            kept = stored.get(f"audio_{index}.soft.rows", np.arange(expected["soft_tokens"]))
            theirs = stored[f"audio_{index}.soft"]
            assert np.abs(rows[kept] - theirs).max() <= 2e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("name", [name for name in MODELS if name != "gemma3n"])
def test_video(name: str) -> None:
    videos = read_media_spec(ROOT / name).videos
    assert videos is not None
    seen = 0
    for case in cases(name):
        for part, expected in zip(contents(case, "video"), case.get("videos", []), strict=False):
            data, options = (ROOT / "media" / part["video"]).read_bytes(), MediaOptions(num_frames=part["num_frames"])
            found = list(prepare_video_file(data, videos, options, MediaLimits(), "it"))
            assert [frame.timestamp for frame in found] == expected["timestamps"]
            assert {frame.num_tokens for frame in found} == {expected["soft_tokens_per_frame"]}
            hashes = [hashlib.sha256(frame.arrays["patches"].data).hexdigest() for frame in found]
            assert hashes == expected["frames_sha256"]
            seen += 1
    assert seen
