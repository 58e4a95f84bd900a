"""A tokenizer made of metadata gives the ids of the one that the metadata was made of."""

import itertools
import json
import random
from pathlib import Path

import pytest
import tokenizers

from facet.bundled_model import FOLDER
from facet.model.gguf.tokenizer import make_tokenizer, special_tokens
from facet.tokens import Tokenizer
from tests.model.gguf.writing import tokenizer_metadata
from tests.tokens.gemma_like import CORPUS, GEMMA3_TOKENS, TEXT_TOKENS, build_gemma_like


def texts(controls: tuple[str, ...]) -> list[str]:
    """Some hundred: whole, cut, joined, with control tokens and unknown characters inside."""
    chance = random.Random(5)
    whole = [
        *CORPUS,
        "",
        " ",
        "\n",
        "\n\n\n\n",
        "   a  b",
        "\t\tx",
        "<unused7>",
        "日本",
        "\u00a0é",
        "🤖 <table>x</table>",
        "1234567",
    ]
    found = list(whole)
    while len(found) < 300:
        parts = [chance.choice(whole) for _ in range(chance.randint(1, 3))]
        text = chance.choice(["", " ", "\n", chance.choice(controls)]).join(parts)
        start = chance.randrange(len(text) + 1)
        found.append(text[start : start + chance.randint(1, 80)])
    return found


def backend_of(folder: Path, **options: bool) -> tokenizers.Tokenizer:
    made = make_tokenizer(tokenizer_metadata(folder, **options), "a file")
    assert isinstance(made, dict)
    return tokenizers.Tokenizer.from_str(json.dumps(made))


@pytest.mark.parametrize("knows_markers", [True, False])
def test_the_bundled_tokenizer(knows_markers: bool) -> None:
    expected = Tokenizer.from_folder(FOLDER)
    got = Tokenizer(backend_of(FOLDER, knows_markers=knows_markers), special_tokens(tokenizer_metadata(FOLDER)))
    for text in texts(("<|turn>", "<turn|>", "<|tool_call>", "<bos>")):
        token_ids = expected.encode(text)
        assert got.encode(text) == token_ids
        assert got.decode(token_ids) == expected.decode(token_ids)
    assert got.special_ids == expected.special_ids
    assert got.eos_id == expected.eos_id


@pytest.mark.parametrize(("type", "is_added"), [(1, False), (4, True)])
def test_what_only_looks_like_a_marker_is_text(type: int, is_added: bool) -> None:
    """Merges end in it, and the file does not say that it was added."""
    tokens = ["<unk>", "<", "|", "a", ">", "<|", "<|a", "<|a>", "<|b>", "<escape>"]
    types = [2, 1, 1, 1, 1, 1, 1, type, 1, 1]
    fields = {"model": "gemma4", "tokens": tokens, "merges": ["< |", "<| a", "<|a >"], "token_type": types}
    made = make_tokenizer({f"tokenizer.ggml.{name}": value for name, value in fields.items()}, "a file")
    assert isinstance(made, dict)
    special = [token["content"] for token in made["added_tokens"] if token["special"]]
    assert special == ["<unk>", *["<|a>"] * is_added, "<|b>", "<escape>"]


@pytest.mark.parametrize("adds_bos", [False, True])
def test_merges_in_the_file(adds_bos: bool, tmp_path: Path) -> None:
    expected = build_gemma_like(adds_bos=adds_bos, control_tokens=GEMMA3_TOKENS, text_tokens=TEXT_TOKENS)
    expected.save(str(tmp_path / "tokenizer.json"))
    got = backend_of(tmp_path, adds_bos=adds_bos)
    for text in texts(("<start_of_turn>", "<end_of_turn>")):
        token_ids = expected.encode(text).ids
        assert got.encode(text).ids == token_ids
        assert got.decode(token_ids) == expected.decode(token_ids)


def test_merges_follow_from_scores(tmp_path: Path) -> None:
    """As sentencepiece merges: of all neighbours that together are a token, the one of the highest score, the leftmost
    first."""
    build_gemma_like(control_tokens=GEMMA3_TOKENS, text_tokens=TEXT_TOKENS).save(str(tmp_path / "tokenizer.json"))
    metadata = tokenizer_metadata(tmp_path, with_merges=False)
    got = backend_of(tmp_path, with_merges=False)
    types = metadata["tokenizer.ggml.token_type"]
    score = {
        token: score
        for token, score, type in zip(
            metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"], types, strict=True
        )
        if type == 1
    }
    for text in CORPUS:
        parts = list(text.replace(" ", "▁"))
        while True:
            joined = [(-score[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in score]
            if not joined:
                break
            at = min(joined)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        assert [token for token in got.encode(text).tokens if not token.startswith("<0x")] == [
            part for part in parts if part in score
        ]


def test_a_whole_tokenizer_in_the_file_is_taken_as_it_is() -> None:
    assert make_tokenizer({"tokenizer.huggingface.json": "{}"}, "a file") == "{}"
