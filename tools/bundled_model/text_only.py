"""Writes the text model of a checkpoint that sees: without its tower, every matrix in sixteen bits again.

python -m tools.bundled_model.text_only src/facet/bundled --output FOLDER

For what takes unquantized text models: quantization at loading, GGUF files, a training run that begins with it.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from tools.bundled_model.checkpoint import CHECKPOINT_PREFIX, DECODER_OF_SEVERAL

_SCALE = "_scale"


def text_config(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text = {**config["text_config"], "architectures": ["Gemma4ForCausalLM"], "eos_token_id": config["eos_token_id"]}
    return {name: value for name, value in text.items() if name != "quantization_config"}


def text_tensors(folder: Path) -> dict[str, Tensor]:
    """Codes times scales, rounded as the other weights are."""
    stored, prefix = load_file(folder / "model.safetensors"), CHECKPOINT_PREFIX + DECODER_OF_SEVERAL
    return {
        CHECKPOINT_PREFIX + name.removeprefix(prefix): (
            (tensor.float() * stored[name + _SCALE].float()).bfloat16() if name + _SCALE in stored else tensor
        )
        for name, tensor in stored.items()
        if name.startswith(prefix) and not name.endswith(_SCALE)
    }


def write_text_model(folder: Path, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name.startswith(("tokenizer", "chat_template", "generation_config")):
            shutil.copy(path, output)
    (output / "config.json").write_text(json.dumps(text_config(folder), indent=2) + "\n", encoding="utf-8")
    save_file(text_tensors(folder), output / "model.safetensors", {"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the text model of a checkpoint that sees.")
    parser.add_argument("folder", type=Path, help="the checkpoint")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    write_text_model(arguments.folder, arguments.output)


if __name__ == "__main__":
    main()
