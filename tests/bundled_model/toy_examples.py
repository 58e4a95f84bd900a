"""A stand-in for dialogues: a few random tokens, and the same tokens again, which is the part to produce."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.bundled_model.shape import make_config
from tools.bundled_model.stream import Batch, PlacedPicture

VOCABULARY = 64
_END, _BOS, _AGAIN = 1, 2, 3
_LETTERS = range(8, VOCABULARY)

TINY_CONFIG: dict[str, Any] = make_config(
    vocab_size=VOCABULARY,
    vocab_size_per_layer_input=VOCABULARY,
    hidden_size=64,
    hidden_size_per_layer_input=16,
    intermediate_size=96,
    num_hidden_layers=6,
    layer_types=["sliding_attention", "full_attention"] * 3,
    num_kv_shared_layers=2,
    head_dim=16,
    global_head_dim=32,
    sliding_window=8,
    max_position_embeddings=512,
)


@dataclass(frozen=True, slots=True)
class ToyExample:
    token_ids: tuple[int, ...]
    is_target: tuple[bool, ...]
    pictures: tuple[PlacedPicture, ...] = ()


@dataclass(frozen=True, slots=True)
class ToySource:
    """Endless strings of `least` to `most` random tokens, each followed by itself."""

    least: int = 4
    most: int = 16

    def __call__(self, seed: int) -> Iterator[ToyExample]:
        numbers = random.Random(seed)
        while True:
            letters = numbers.choices(_LETTERS, k=numbers.randint(self.least, self.most))
            ids = (_BOS, *letters, _AGAIN, *letters, _END)
            yield ToyExample(ids, (False,) * (len(letters) + 2) + (True,) * (len(letters) + 1))


def equal_batches(one: Batch, other: Batch) -> bool:
    names = ("token_ids", "document_ids", "positions", "label_kinds")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
