"""A tiny Gemma 3n that sees and hears, and the decoder of transformers that it has."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from facet.model.vision_config import read_vision_spec
from tests.mobile_net_sample import CONFIG, random_weights
from tests.sound import TinySound, make_tiny_sound
from tests.tiny_models import spec_script

# Begin, soft and end. The tables of the towers hold what is behind and within spans, as in published checkpoints.
PICTURE_IDS = (470, 485, 484)
SOUND_IDS = (471, 501, 500)
PICTURE_TABLE, SOUND_TABLE = range(484, 500), range(500, 512)
ROWS_PER_CLIP = 40


@dataclass(frozen=True)
class Tiny3n:
    folder: Path
    oracle: nn.Module
    sound: TinySound


def make_tiny_3n(folder: Path) -> Tiny3n:
    import transformers

    script = spec_script()
    sound = make_tiny_sound("usm", folder, seed=3)
    # As published: no per-layer inputs for ids of the tables.
    text = {**sound.config["text_config"], "vocab_size_per_layer_input": PICTURE_TABLE.start}
    oracle = transformers.Gemma3nForCausalLM(transformers.Gemma3nTextConfig(**text)).float()
    script.fill_weights(oracle, 72, False)
    script.eager(oracle)
    vision: Any = CONFIG["vision_config"]
    names = ("boi_token_id", "image_token_id", "eoi_token_id", "boa_token_id", "audio_token_id", "eoa_token_id")
    config = {
        **sound.config,
        "architectures": ["Gemma3nForConditionalGeneration"],
        "dtype": "float32",
        "text_config": text,
        "vision_config": {**vision, "vocab_offset": PICTURE_TABLE.start, "vocab_size": len(PICTURE_TABLE)},
        **dict(zip(names, (*PICTURE_IDS, *SOUND_IDS), strict=True)),
    }
    (folder / "config.json").write_text(json.dumps(config))
    spec = read_vision_spec(config, text["hidden_size"])
    assert spec is not None
    tensors = load_file(folder / "model.safetensors")
    tensors |= {f"model.{name}": tensor for name, tensor in random_weights(spec).items()}
    tensors |= {f"model.language_model.{name}": tensor for name, tensor in oracle.model.state_dict().items()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return Tiny3n(folder, oracle, sound)
