"""A tiny checkpoint with everything that a bundled model has, and the command with that in the package's place."""

import json
import os
import sys
from pathlib import Path

from facet.bundled_model import record_bundled_model
from tests.server.conftest import END, TEMPLATE
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint
from tests.tokens.gemma_like import write_tokenizer_folder

SOURCE = Path(__file__).parents[2] / "src"
_VOCAB_SIZE = 512
_CONFIG = {
    **SHRUNK["Gemma 4 E2B"],
    "vocab_size": _VOCAB_SIZE,
    "vocab_size_per_layer_input": _VOCAB_SIZE,
    "max_position_embeddings": 4096,
}
# In front of a program: takes the folder of another bundled model off the command line.
PATCH = "import sys; from pathlib import Path; from facet import bundled_model\n"
PATCH += "bundled_model.FOLDER = Path(sys.argv.pop(1))\n"
_COMMAND = PATCH + "from facet.cli import main\nsys.exit(main())"


def write_bundle(folder: Path) -> Path:
    write_checkpoint(folder, _CONFIG, random_tensors(_CONFIG))
    write_tokenizer_folder(folder, adds_bos=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, END]}))
    record_bundled_model(folder)
    return folder


def command_with(bundle: Path, *arguments: str) -> list[str]:
    """For a process of its own, with `environment`."""
    return [sys.executable, "-c", _COMMAND, str(bundle), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE)}
