"""Makes the conversations of a run, by the name of the dataset."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from facet.bench import file_datasets, made_up_datasets, picture_datasets
from facet.bench.config import BenchConfig
from facet.bench.dialogue import Dataset

if TYPE_CHECKING:  # token ids need no tokenizer, nor the library beneath it
    from facet.tokens import Tokenizer

_MAKERS: Mapping[str, Callable[[BenchConfig, "Tokenizer | None"], Dataset]] = {
    "random": made_up_datasets.random_prompts,
    "sessions": made_up_datasets.sessions,
    "tools": made_up_datasets.tool_chats,
    "images": picture_datasets.pictures,
    "sharegpt": file_datasets.sharegpt,
    "custom": file_datasets.custom,
}


def make_dataset(config: BenchConfig, tokenizer: "Tokenizer | None") -> Dataset:
    """The conversations of a dataset, always the same for the same config."""
    return _MAKERS[config.dataset_name](config, tokenizer)
