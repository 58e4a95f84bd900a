"""What is exported is a checkpoint that Facet reads, and computes to the same logits as the trainable model."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch import Tensor

from facet.errors import CheckpointError
from facet.model.generation_config import read_generation_config
from facet.tokens import Tokenizer
from tests.bundled_model.toy_examples import TINY_CONFIG
from tests.model.paged_model import PagedSequence, load
from tools.bundled_model.attention import dense_attend
from tools.bundled_model.checkpoint import checkpoint_tensors
from tools.bundled_model.export import check_size, export
from tools.bundled_model.model import Decoder
from tools.bundled_model.model_card import model_card
from tools.bundled_model.shape import BUNDLED_CONFIG, make_spec
from tools.bundled_model.tokenizer import ENDS_OF_REPLY, build_tokenizer

# Two float32 programs that sum in different orders; logits have a size of a few units.
LOGIT_TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    return build_tokenizer(1, 400, num_dialogues=20)


def random_decoder(config: Mapping[str, Any]) -> Decoder:
    """Every parameter moved away from where it starts, so that none can be left out unnoticed.

    Its values are such as a checkpoint in bfloat16 can hold.
    """
    model = Decoder(make_spec(config), seed=5)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            moved = parameter * (1 + 0.2 * torch.randn(parameter.shape, generator=generator))
            parameter.copy_(moved.bfloat16())
    return model


def logits_of(model: Decoder, token_ids: list[int]) -> Tensor:
    ids = torch.tensor([token_ids])
    with torch.no_grad():
        logits: Tensor = model(ids, torch.arange(len(token_ids))[None], dense_attend(torch.zeros_like(ids)))[0]
    return logits


def prompt(length: int, vocabulary: int) -> list[int]:
    return torch.randint(0, vocabulary, (length,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.mark.parametrize("name", ["tiny", "bundled"])
def test_facet_computes_the_same_logits(name: str, tmp_path: Path, tokenizer: tokenizers.Tokenizer) -> None:
    config = TINY_CONFIG if name == "tiny" else BUNDLED_CONFIG
    model = random_decoder(config)
    export(checkpoint_tensors(model), config, tokenizer, tmp_path)
    token_ids = prompt(2 * config["sliding_window"] + 13, config["vocab_size"])

    facet = load(tmp_path, dtype="float32").model
    difference = (PagedSequence(facet, len(token_ids)).run(token_ids) - logits_of(model, token_ids)).abs().max()

    assert float(difference) <= LOGIT_TOLERANCE


def test_the_bundled_model_fits_its_size(tmp_path: Path, tokenizer: tokenizers.Tokenizer) -> None:
    export(checkpoint_tensors(Decoder(make_spec(BUNDLED_CONFIG), seed=1)), BUNDLED_CONFIG, tokenizer, tmp_path)
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert sizes["model.safetensors"] < 15_600_000  # leaves 400 kB for a tokenizer of the full vocabulary
    with pytest.raises(CheckpointError, match="bytes, and 1,000 are the most"):
        check_size(tmp_path, most_bytes=1_000)


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path, tokenizer: tokenizers.Tokenizer) -> None:
    for name in ("one", "two"):
        export(checkpoint_tensors(random_decoder(TINY_CONFIG)), TINY_CONFIG, tokenizer, tmp_path / name)
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert files == [
        "README.md",
        "bundled.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_answers_end_where_the_tokenizer_says(tmp_path: Path, tokenizer: tokenizers.Tokenizer) -> None:
    export(checkpoint_tensors(random_decoder(TINY_CONFIG)), TINY_CONFIG, tokenizer, tmp_path)
    ends = read_generation_config(tmp_path).eos_token_ids
    assert tuple(map(tokenizer.id_to_token, ends)) == ENDS_OF_REPLY
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == list(ends)
    assert Tokenizer.from_folder(tmp_path).eos_id in ends


def test_weights_of_another_shape_are_refused(tmp_path: Path, tokenizer: tokenizers.Tokenizer) -> None:
    tensors = checkpoint_tensors(random_decoder(TINY_CONFIG))
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight: \(64, 64\) where \(4096, 256\) is wanted"):
        export(tensors, BUNDLED_CONFIG, tokenizer, tmp_path)
    del tensors["model.layers.1.layer_scalar"]
    with pytest.raises(CheckpointError, match=r"1 tensors .* model.layers.1.layer_scalar: None"):
        export(tensors, TINY_CONFIG, tokenizer, tmp_path)


def test_the_card_says_what_was_measured() -> None:
    training = dict(num_steps=4000, num_tokens=524_000_000, minutes=8.0, device="TPU", held_out_tokens_right=0.98765)
    evaluation = [
        dict(name="right call", right=456, num=500, wanted=0.9),
        dict(name="R1", right=70, num=70, wanted=None),
    ]
    make_card = partial(
        model_card,
        num_parameters=7_500_000,
        config=BUNDLED_CONFIG,
        sees=False,
        ends=ENDS_OF_REPLY,
        evaluation=evaluation,
    )
    card = make_card(training=[training])
    assert "| right call | 91.2% | 456 of 500 | 90% |" in card
    assert "| R1 | 100.0% | 70 of 70 |  |" in card
    assert "4,000 steps, 524 million tokens, 8.0 minutes on one TPU" in card
    assert "98.77% of its own tokens right" in card
    assert "`ssgsgsgssg`" in card
    assert "Not measured yet" not in card
    further = make_card(training=[training, {**training, "minutes": 2.3, "held_out_tokens_right": 0.99}])
    assert "8,000 steps, 1,048 million tokens, 10.3 minutes on one TPU, in 2 runs" in further
    assert "99.00% of its own tokens right" in further
