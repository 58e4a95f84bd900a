"""The tokenizer's promises: any text comes back, control tokens are single ids, words look alike everywhere."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from facet.chat.formats import ReplyMarkers
from facet.sampling.token_bytes import read_token_bytes
from facet.tokens import Tokenizer
from tools.bundled_model.tokenizer import CONTROL_TOKENS, ENDS_OF_REPLY, build_tokenizer


def test_the_vocabulary_is_full(small_tokenizer: tokenizers.Tokenizer) -> None:
    assert small_tokenizer.get_vocab_size() == 4096
    assert [small_tokenizer.token_to_id(token) for token in CONTROL_TOKENS] == list(range(len(CONTROL_TOKENS)))
    assert set(ENDS_OF_REPLY) <= set(CONTROL_TOKENS)


def test_the_usual_ids(facet_tokenizer: Tokenizer) -> None:
    assert [facet_tokenizer.token_to_id(token) for token in ("<pad>", "<eos>", "<bos>", "<unk>")] == [0, 1, 2, 3]
    assert facet_tokenizer.eos_id == 1
    markers = ReplyMarkers.find(facet_tokenizer)
    assert markers is not None
    assert None not in (markers.opens_response, markers.closes_response)
    assert facet_tokenizer.special_ids == set(range(len(CONTROL_TOKENS)))


@given(text=st.text(max_size=60))
@pytest.mark.parametrize("prefix", ["", "<bos><|turn>user\n"])
def test_any_text_comes_back(facet_tokenizer: Tokenizer, prefix: str, text: str) -> None:
    token_ids = facet_tokenizer.encode(prefix + text, add_special_tokens=False)
    assert facet_tokenizer.decode(token_ids, skip_special_tokens=False) == prefix + text
    assert 3 not in token_ids  # <unk>


def test_nothing_is_added_around_a_text(facet_tokenizer: Tokenizer) -> None:
    """The template writes <bos>; a tokenizer that did too would give it twice."""
    assert facet_tokenizer.encode("Hello") == facet_tokenizer.encode("Hello", add_special_tokens=False)


@pytest.mark.parametrize("value", ["Paris", "zorvik", "AX-4821", r"\d+ (a|b)", "2024-05-01", "a.b@c.org", "New York"])
def test_a_value_has_the_same_tokens_in_request_and_call(facet_tokenizer: Tokenizer, value: str) -> None:
    alone = facet_tokenizer.encode(value)
    for before, after in (('"', '"'), (" ", " "), ('<|"|>', '<|"|>'), ("`", "`."), (": ", "\n"), (" ", "<turn|>")):
        left, right = facet_tokenizer.encode(f"x{before}"), facet_tokenizer.encode(f"{after}x")
        assert facet_tokenizer.encode(f"x{before}{value}{after}x") == left + alone + right


def test_training_is_deterministic() -> None:
    one, other = (build_tokenizer(seed=4, vocabulary_size=900, num_dialogues=60).to_str() for _ in range(2))
    assert one == other


def test_grammars_can_read_the_vocabulary(tokenizer_folder: Path, facet_tokenizer: Tokenizer) -> None:
    spelled = read_token_bytes(tokenizer_folder, facet_tokenizer.vocab_size)
    text = 'Ein "Wort" für 3 Gäste\n'
    assert b"".join(spelled[token_id] for token_id in facet_tokenizer.encode(text)) == text.encode()


def test_written_files(tokenizer_folder: Path) -> None:
    assert {path.name for path in tokenizer_folder.iterdir()} == {
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    config = json.loads((tokenizer_folder / "tokenizer_config.json").read_text())
    assert config["bos_token"] == "<bos>"
