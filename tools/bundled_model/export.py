"""Turns trained weights into the checkpoint that ships with Facet.

    python -m tools.bundled_model.export build/bundled/weights.safetensors --evaluation evaluation.json

Writes config.json, model.safetensors, generation_config.json, the tokenizer's files and README.md, the model card.
The same inputs give the same bytes.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from safetensors.torch import load_file, save_file
from torch import Tensor

from facet.bundled_model import record_bundled_model
from facet.errors import CheckpointError
from facet.model.weight_map import tensor_targets
from tools.bundled_model.checkpoint import CHECKPOINT_PREFIX
from tools.bundled_model.dialogue_source import find_tokenizer
from tools.bundled_model.model_card import model_card
from tools.bundled_model.shape import BUNDLED_CONFIG, BUNDLED_FOLDER, make_spec
from tools.bundled_model.tokenizer import ENDS_OF_REPLY, write_tokenizer

MOST_BYTES = 16_000_000  # of the whole folder: it is part of every installation of Facet


def export(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    tokenizer: tokenizers.Tokenizer,
    folder: Path,
    *,
    training: Sequence[Mapping[str, Any]] = (),
    evaluation: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Writes a checkpoint folder. `tensors` carry checkpoint names."""
    check_tensors(tensors, config)
    folder.mkdir(parents=True, exist_ok=True)
    ends = [token_id for token in ENDS_OF_REPLY if (token_id := tokenizer.token_to_id(token)) is not None]
    assert len(ends) == len(ENDS_OF_REPLY), "the tokenizer is not the bundled model's"
    ordered = {name: tensors[name].contiguous() for name in sorted(tensors)}
    save_file(ordered, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner alone, and ships with the package
    _write_json(folder / "config.json", {**config, "eos_token_id": ends})
    _write_json(folder / "generation_config.json", _generation_config(config, ends))
    write_tokenizer(tokenizer, folder)
    card = model_card(
        num_parameters=sum(tensor.numel() for tensor in tensors.values()),
        config=config,
        ends=ENDS_OF_REPLY,
        training=training,
        evaluation=evaluation,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    record_bundled_model(folder)
    check_size(folder)


def check_tensors(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Exactly the tensors that Facet will look for, each of the right shape."""
    wanted = {CHECKPOINT_PREFIX + target.name: target.shape for target in tensor_targets(make_spec(config))}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} tensors are not what the config asks for, first {wrong[0]}: {found.get(wrong[0])} where "
            f"{wanted.get(wrong[0])} is wanted. Export with the config that the weights were trained with."
        )


def check_size(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    num_bytes = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    if num_bytes > most_bytes:
        raise CheckpointError(
            f"{folder} holds {num_bytes:,} bytes, and {most_bytes:,} are the most a bundled model may have. Lower "
            "intermediate_size in tools/bundled_model/shape.py and train again."
        )


def _generation_config(config: Mapping[str, Any], ends: list[int]) -> dict[str, Any]:
    """Cool sampling: the model copies more than it invents, and a wrong token in a copy is a wrong call."""
    return {
        "bos_token_id": config["bos_token_id"],
        "pad_token_id": config["pad_token_id"],
        "eos_token_id": ends,
        "do_sample": True,
        "temperature": 0.3,
        "top_k": 64,
        "top_p": 0.95,
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _read_json(path: Path | None) -> Any:
    """None where no file is named."""
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the checkpoint that ships with Facet.")
    parser.add_argument("weights", type=Path, help="weights.safetensors of a training run")
    parser.add_argument("--output", type=Path, default=BUNDLED_FOLDER)
    parser.add_argument("--config", type=Path, help="the config.json trained with, if not the bundled model's")
    parser.add_argument("--tokenizer", type=Path, help="the tokenizer.json trained with, if not the bundled model's")
    parser.add_argument("--training", type=Path, nargs="+", default=[], help="training.json of each run, for the card")
    parser.add_argument("--evaluation", type=Path, help="what evaluate.py wrote with --json")
    arguments = parser.parse_args()
    export(
        load_file(arguments.weights),
        _read_json(arguments.config) or BUNDLED_CONFIG,
        tokenizers.Tokenizer.from_file(str(find_tokenizer(arguments.tokenizer, arguments.weights.parent))),
        arguments.output,
        training=[_read_json(path) for path in arguments.training],
        evaluation=_read_json(arguments.evaluation),
    )
    num_bytes = sum(file.stat().st_size for file in arguments.output.iterdir())
    print(f"{arguments.output}: {num_bytes:,} bytes of at most {MOST_BYTES:,}")


if __name__ == "__main__":
    main()
