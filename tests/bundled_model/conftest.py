"""What the tests of the data share: a tokenizer trained on few dialogues, as a checkpoint's files and as Facet's."""

from pathlib import Path

import pytest
import tokenizers

from facet.chat.template import ChatTemplate
from facet.tokens import Tokenizer
from tools.bundled_model.tokenizer import build_tokenizer, write_tokenizer


@pytest.fixture(scope="session")
def small_tokenizer() -> tokenizers.Tokenizer:
    """The vocabulary has its full size, but the merges come from a few hundred dialogues: that takes a second."""
    return build_tokenizer(seed=3, num_dialogues=600)


@pytest.fixture(scope="session")
def tokenizer_folder(small_tokenizer: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(small_tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def facet_tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(tokenizer_folder)


@pytest.fixture(scope="session")
def template(tokenizer_folder: Path, facet_tokenizer: Tokenizer) -> ChatTemplate:
    template = ChatTemplate.from_folder(tokenizer_folder, facet_tokenizer)
    assert template is not None
    return template
