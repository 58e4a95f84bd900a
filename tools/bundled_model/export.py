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
from facet.model.vision_weights import vision_targets
from facet.model.weight_map import tensor_targets
from tools.bundled_model.checkpoint import checkpoint_name
from tools.bundled_model.dialogue_source import find_tokenizer
from tools.bundled_model.eight_bits import feed_forward_modules, in_eight_bits
from tools.bundled_model.model_card import model_card
from tools.bundled_model.seeing.shape import make_seeing_config, make_vision_spec, processor_config
from tools.bundled_model.shape import BUNDLED_CONFIG, BUNDLED_FOLDER, make_spec
from tools.bundled_model.tokenizer import ENDS_OF_REPLY, write_tokenizer

_EIGHT_BITS = "layers whose feed-forward matrices are stored in eight bits; four of them make room for the tower"
MOST_BYTES = 16_000_000  # of the whole folder: it is part of every installation of Facet


def export(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    tokenizer: tokenizers.Tokenizer,
    folder: Path,
    *,
    training: Sequence[Mapping[str, Any]] = (),
    evaluation: Sequence[Mapping[str, Any]] | None = None,
    layers_in_eight_bits: Sequence[int] = (),
) -> None:
    """Writes a checkpoint folder. `tensors` carry checkpoint names.

    The feed-forward matrices of `layers_in_eight_bits` are stored in half the bytes; only a model that sees needs that.
    """
    check_tensors(tensors, config)
    folder.mkdir(parents=True, exist_ok=True)
    text = config.get("text_config", config)
    num_parameters = sum(tensor.numel() for tensor in tensors.values())
    if layers_in_eight_bits:
        tensors, quantization = in_eight_bits(tensors, feed_forward_modules(layers_in_eight_bits))
        config = {**config, "quantization_config": quantization}
    ends = [token_id for token in ENDS_OF_REPLY if (token_id := tokenizer.token_to_id(token)) is not None]
    assert len(ends) == len(ENDS_OF_REPLY), "the tokenizer is not the bundled model's"
    ordered = {name: tensors[name].contiguous() for name in sorted(tensors)}
    save_file(ordered, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner alone, and ships with the package
    _write_json(folder / "config.json", {**config, "eos_token_id": ends})
    _write_json(folder / "generation_config.json", _generation_config(config, ends))
    if "vision_config" in config:
        _write_json(folder / "processor_config.json", processor_config())
    write_tokenizer(tokenizer, folder)
    card = model_card(
        num_parameters=num_parameters,
        config=text,
        sees="vision_config" in config,
        ends=ENDS_OF_REPLY,
        training=training,
        evaluation=evaluation,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    record_bundled_model(folder)
    check_size(folder)


def check_tensors(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Exactly the tensors that Facet will look for, each of the right shape."""
    vision = make_vision_spec(config)
    sees = vision is not None
    wanted = {checkpoint_name(target.name, sees=sees): target.shape for target in tensor_targets(make_spec(config))}
    if vision is not None:
        wanted |= {checkpoint_name(target.name, sees=sees): target.shape for target in vision_targets(vision)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} tensors are not what the config asks for, first {wrong[0]}: {found.get(wrong[0])} where "
            f"{wanted.get(wrong[0])} is wanted. Export with the config that the weights were trained with."
        )


def check_size(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    num_bytes = bytes_in(folder)
    if num_bytes > most_bytes:
        raise CheckpointError(
            f"{folder} holds {num_bytes:,} bytes, and {most_bytes:,} are the most a bundled model may have. Lower "
            "intermediate_size in tools/bundled_model/shape.py and train again."
        )


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


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
    parser.add_argument("--evaluation", type=Path, nargs="+", default=[], help="what evaluate.py wrote with --json")
    parser.add_argument("--sees", action="store_true", help="the weights were trained with --pictures")
    parser.add_argument("--eight-bits", type=int, nargs="*", default=[], metavar="LAYER", help=_EIGHT_BITS)
    arguments = parser.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(str(find_tokenizer(arguments.tokenizer, arguments.weights.parent)))
    config = _read_json(arguments.config) or BUNDLED_CONFIG
    export(
        load_file(arguments.weights),
        make_seeing_config(tokenizer, config) if arguments.sees else config,
        tokenizer,
        arguments.output,
        layers_in_eight_bits=arguments.eight_bits,
        training=[_read_json(path) for path in arguments.training],
        evaluation=[measure for path in arguments.evaluation for measure in _read_json(path)] or None,
    )
    print(f"{arguments.output}: {bytes_in(arguments.output):,} bytes of at most {MOST_BYTES:,}")


if __name__ == "__main__":
    main()
