import pytest

from facet.tokens import Tokenizer
from tests.tokens.gemma_like import build_gemma_like


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_gemma_like())


@pytest.fixture(scope="session")
def tokenizer_adding_bos() -> Tokenizer:
    return Tokenizer(build_gemma_like(adds_bos=True))
