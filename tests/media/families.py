"""The media specs of the tiny models that the references in `pictures/` were made with."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from facet.media.spec import MediaSpec
from facet.media.spec_file import read_media_spec
from tests.published_configs import published

_AUDIO = {"audio_config": {"model_type": "audio"}}
_FILES: dict[str, dict[str, dict[str, Any]]] = {
    "gemma4_e": {"config": published("Gemma 4 E4B") | _AUDIO},
    "gemma4_31b": {"config": published("Gemma 4 31B")},
    "gemma4_12b": {"config": published("Gemma 4 12B") | _AUDIO},
    "gemma3": {
        "config": published("Gemma 3 4B") | {"mm_tokens_per_image": 16},
        "preprocessor_config": {"size": {"height": 112, "width": 112}, "resample": 2},
    },
    "gemma3n": {
        "config": published("Gemma 3n E4B"),
        "preprocessor_config": {"size": {"height": 512, "width": 512}, "do_normalize": False, "image_mean": [0.5] * 3},
    },
    "text only": {"config": published("Gemma 3 1B")},
}


@functools.cache
def media_spec(family: str) -> MediaSpec:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in _FILES[family].items():
            (Path(folder) / f"{name}.json").write_text(json.dumps(content))
        return read_media_spec(Path(folder))
