"""Learning to see: pictures in examples and batches, a tower that learns, and a checkpoint that Facet reads."""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from facet import LLM, SamplingParams
from facet.media.pictures import prepare_patches
from facet.media.spec_file import read_media_spec
from tests.bundled_model.toy_examples import TINY_CONFIG, VOCABULARY, ToyExample
from tools.bundled_model.attention import dense_attend
from tools.bundled_model.checkpoint import checkpoint_tensors, resume_training
from tools.bundled_model.dialogues.words import Lexicon, Source
from tools.bundled_model.export import export
from tools.bundled_model.model import Decoder
from tools.bundled_model.optimizer import Optimizer
from tools.bundled_model.seeing.questions import ask_about
from tools.bundled_model.seeing.scenes import draw_scene
from tools.bundled_model.seeing.shape import make_seeing_config, make_vision_spec, picture_spec
from tools.bundled_model.seeing.source import SeeingSource, picture_room
from tools.bundled_model.seeing.vocabulary import PICTURE_TOKENS, SOFT, with_picture_tokens
from tools.bundled_model.settings import TrainSettings
from tools.bundled_model.shape import make_spec
from tools.bundled_model.stream import IGNORED, BatchMaker, OwnBatches, PictureRoom, PlacedPicture, pack
from tools.bundled_model.tower import PictureTensors
from tools.bundled_model.trainer import train

TINY_TOWER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                  num_key_value_heads=2, head_dim=16, position_embedding_size=150)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(small_tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    return with_picture_tokens(small_tokenizer)


@pytest.fixture(scope="module")
def tokenizer_file(tokenizer: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seeing") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def tiny_config(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    size = tokenizer.get_vocab_size()
    text = TINY_CONFIG | dict(vocab_size=size, vocab_size_per_layer_input=size)
    return make_seeing_config(tokenizer, text, **TINY_TOWER)


def settings(folder: Path, config: dict[str, Any], **changes: Any) -> TrainSettings:
    (folder / "config.json").write_text(json.dumps(config))
    usual = dict(output=folder, config=folder / "config.json", device="cpu", pictures=1.0, warmup_steps=2,
                 report_seconds=1000.0, save_seconds=1000.0)  # fmt: skip
    return TrainSettings(**(usual | changes))


def test_tokens_for_pictures_take_the_place_of_the_last_words(
    small_tokenizer: tokenizers.Tokenizer, tokenizer: tokenizers.Tokenizer
) -> None:
    before, after = small_tokenizer.get_vocab(), tokenizer.get_vocab()
    assert len(before) == len(after)
    assert {word: number for word, number in before.items() if word in after} == {
        word: number for word, number in after.items() if word not in PICTURE_TOKENS
    }
    words = [word for word in before if word not in after]
    assert len(words) == len(PICTURE_TOKENS)
    for text in (*words, "What is in the picture?"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text
    assert tokenizer.encode(f"a{SOFT}b", add_special_tokens=False).ids[1] == after[SOFT]
    assert with_picture_tokens(tokenizer) is tokenizer


def test_questions_have_the_answers_that_were_drawn() -> None:
    source = Source(random.Random(1), Lexicon.of(held_out=False), is_inventive=True)
    kinds = set()
    for _ in range(60):
        scene = draw_scene(source)
        exchange = ask_about(scene, source)
        kinds.add(scene.kind)
        assert scene.text in exchange.answer
        if "colour" in exchange.question:
            assert exchange.answer.split()[-1].rstrip(".") in {thing.colour for thing in scene.things}
        assert len(scene.image.getcolors(1 << 16) or []) > 1, "something is to be seen"
    assert kinds == {"one", "several", "two", "number", "word"}


def test_a_batch_says_where_pictures_stand(tokenizer: tokenizers.Tokenizer, tokenizer_file: Path) -> None:
    spec = picture_spec(tokenizer)
    examples = list(itertools.islice(SeeingSource(str(tokenizer_file), 0.6)(3), 12))
    assert {len(example.pictures) for example in examples} == {0, 1}
    batch = pack(examples, 4, 512, picture_room(4, 512, 0.6))
    assert batch.pictures is not None
    is_soft = batch.token_ids == spec.tokens.soft
    assert np.array_equal(is_soft, batch.pictures.row_of_token > 0)
    assert 0 < is_soft.sum() == batch.pictures.is_patch.sum()
    rows = batch.pictures.row_of_token[is_soft] - 1
    assert len(set(rows)) == len(rows)
    assert batch.pictures.is_patch.ravel()[rows].all()
    assert (batch.label_kinds[:, :-1][is_soft[:, 1:]] == IGNORED).all()
    patches = batch.pictures.patches.reshape(-1, batch.pictures.patches.shape[-1])
    sent = np.concatenate([picture.patches for example in examples for picture in example.pictures])
    assert {bytes(patch) for patch in patches[rows]} <= {bytes(patch) for patch in sent}


COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255))
FIRST_ANSWER = 20


@dataclass(frozen=True, slots=True)
class Walls:
    """Pictures of one colour, and a token that names it: who does not look is right once in four times."""

    soft: int

    def __call__(self, seed: int) -> Iterator[ToyExample]:
        numbers = random.Random(seed)
        while True:
            colour = numbers.randrange(len(COLOURS))
            patches = np.tile(np.array(COLOURS[colour], np.uint8), (2, 16 * 16))
            picture = PlacedPicture(1, patches, np.array([[0, 0], [1, 0]], np.int32))
            yield ToyExample(
                (2, self.soft, self.soft, 7, FIRST_ANSWER + colour, 1), (False,) * 4 + (True,) * 2, (picture,)
            )


def test_a_tower_learns(tokenizer: tokenizers.Tokenizer, tmp_path: Path) -> None:
    room = PictureRoom(num_pictures=64, num_patches=2, patch_width=768)
    maker = BatchMaker(source=Walls(VOCABULARY - 1), seed=1, num_rows=8, row_length=48, picture_room=room)
    config = make_seeing_config(tokenizer, TINY_CONFIG, **TINY_TOWER)
    told = settings(tmp_path, config, steps=20, muon_rate=0.05, adamw_rate=0.01)
    assert (
        train(told, OwnBatches(maker)).held_out.tokens > 0.9
    )  # with the end of the answer; blind, 5 of 8 could be right


def test_a_few_steps_lower_the_loss(tokenizer: tokenizers.Tokenizer, tokenizer_file: Path, tmp_path: Path) -> None:
    source = SeeingSource(str(tokenizer_file), 1.0)
    losses = []
    for steps in (1, 5):
        maker = BatchMaker(source=source, seed=1, num_rows=2, row_length=256, picture_room=picture_room(2, 256, 1.0))
        told = settings(tmp_path, tiny_config(tokenizer), steps=steps, adamw_rate=0.01)
        losses.append(train(told, OwnBatches(maker)).target_loss)
    assert losses[1] < losses[0] - 0.5


def test_facet_reads_what_is_exported(tokenizer: tokenizers.Tokenizer, tmp_path: Path) -> None:
    """It prepares pictures, runs the tower and the decoder to the same distribution; two layers in eight bits."""
    config = tiny_config(tokenizer)
    model = Decoder(make_spec(config), seed=5, vision=make_vision_spec(config))
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_((parameter * (1 + 0.2 * noise) if parameter.any() else 0.3 * noise).bfloat16())
    export(checkpoint_tensors(model), config, tokenizer, tmp_path, layers_in_eight_bits=(2, 5))
    assert picture_spec(tokenizer) == read_media_spec(tmp_path).pictures
    assert "It sees a little" in (tmp_path / "README.md").read_text()
    with torch.no_grad():
        for layer, name in itertools.product((2, 5), ("gate_proj", "up_proj", "down_proj")):
            matrix = getattr(model.layers[layer].mlp, name).weight
            scales = (matrix.abs().amax(dim=1, keepdim=True) / 127).bfloat16().float()
            matrix.copy_((matrix / scales).round().clamp(-127, 127) * scales)

    scene = draw_scene(Source(random.Random(4), Lexicon.of(held_out=False)))
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", show_progress=False, kv_cache_memory_bytes=8 << 20)
    try:
        (output,) = llm.chat(
            [{"role": "user", "content": [{"type": "image", "image": scene.image}, "What is this?"]}],
            SamplingParams(temperature=0, max_tokens=1, logprobs=5),
            use_tqdm=False,
        )
    finally:
        llm.close()
    ids = torch.tensor([output.prompt_token_ids])
    spec = picture_spec(tokenizer)
    is_soft = ids == spec.tokens.soft
    arrays = prepare_patches(scene.image, spec, spec.budget, key="").arrays
    patches, places = (torch.tensor(arrays[name].numpy())[None] for name in ("patches", "positions"))
    rows = torch.where(is_soft, is_soft.cumsum(1), 0)
    pictures = PictureTensors(patches, places, torch.ones(1, patches.shape[1], dtype=torch.bool), rows)
    with torch.no_grad():
        logits = model(ids, torch.arange(ids.shape[1])[None], dense_attend(torch.zeros_like(ids)), pictures)
    expected = logits[0, -1].log_softmax(-1)
    found = (output.outputs[0].logprobs or [{}])[0]
    assert len(found) >= 5
    for token_id, entry in found.items():
        assert entry.logprob == pytest.approx(float(expected[token_id]), abs=1e-3)


def test_weights_that_read_text_only_go_on_with_a_new_tower(tokenizer: tokenizers.Tokenizer, tmp_path: Path) -> None:
    config = tiny_config(tokenizer)
    reader = Decoder(make_spec(config), seed=1)
    export(
        checkpoint_tensors(reader),
        dict(config["text_config"], architectures=["Gemma4ForCausalLM"]),
        tokenizer,
        tmp_path,
    )
    seer = Decoder(make_spec(config), seed=2, vision=make_vision_spec(config))
    before = seer.embed_vision.embedding_projection.weight.clone()
    optimizer = Optimizer(seer, muon_rate=0.1, adamw_rate=0.1, muon_decay=0.0)
    assert resume_training(tmp_path / "model.safetensors", seer, optimizer) == 0
    assert torch.equal(seer.embed_tokens.weight, reader.embed_tokens.weight.bfloat16().float())
    assert torch.equal(seer.embed_vision.embedding_projection.weight, before)
