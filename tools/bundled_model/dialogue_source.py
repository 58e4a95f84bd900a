"""Provides the dialogues of `generate.py` as examples, in a form that can be sent to worker processes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from tools.bundled_model.generate import TrainingExample, training_examples
from tools.bundled_model.shape import BUNDLED_FOLDER
from tools.bundled_model.tokenizer import DEFAULT_SEED, build_tokenizer


@dataclass(frozen=True, slots=True)
class DialogueSource:
    """Examples from a seed. Holds the name of a tokenizer's file, since every process must load its own."""

    tokenizer_file: str

    def __call__(self, seed: int) -> Iterator[TrainingExample]:
        return training_examples(tokenizers.Tokenizer.from_file(self.tokenizer_file), seed)


def find_tokenizer(wanted: Path | None, folder: Path) -> Path:
    """The file given; else the bundled model's; else one that is built now, which takes minutes, into `folder`."""
    for file in (wanted, BUNDLED_FOLDER / "tokenizer.json"):
        if file is not None and (file.is_file() or file is wanted):
            return file
    built = folder / "tokenizer.json"
    build_tokenizer(DEFAULT_SEED).save(str(built))
    return built
