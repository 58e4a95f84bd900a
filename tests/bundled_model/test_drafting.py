"""The bundled model's drafter: what it learns from, that it learns, and that Facet computes what was trained."""

import json
from itertools import islice
from pathlib import Path

import pytest
import tokenizers
import torch

from facet import LLM
from facet.config import ModelConfig
from facet.model.draft_loader import load_draft_model
from facet.model.loader import load_model
from facet.progress import Silent
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.bundled_model.test_export import random_decoder
from tests.bundled_model.toy_examples import TINY_CONFIG, ToySource
from tests.engine.harness import MAX_MODEL_LEN, make_engine, run
from tests.tiny_drafters import AlwaysDrafts
from tools.bundled_model.attention import dense_attend
from tools.bundled_model.checkpoint import checkpoint_tensors
from tools.bundled_model.drafting.export import export_drafter, round_as_stored
from tools.bundled_model.drafting.lessons import NOT_COUNTED, Lesson, layers_read, make_lesson, make_lessons
from tools.bundled_model.drafting.model import Drafter, attend_from
from tools.bundled_model.drafting.shape import make_drafter_config, make_drafter_spec
from tools.bundled_model.drafting.trainer import Acceptance, acceptance, train
from tools.bundled_model.export import check_size, export
from tools.bundled_model.model import Decoder
from tools.bundled_model.shape import BUNDLED_FOLDER

NUM_DRAFTS = 3
DRAFTER_CONFIG = make_drafter_config(TINY_CONFIG, hidden_size=32, intermediate_size=48)

GREEDY = SamplingParams(temperature=0.0, max_tokens=60)


@pytest.fixture(scope="module")
def target() -> Decoder:
    return random_decoder(TINY_CONFIG).requires_grad_(False)


@pytest.fixture
def drafter(target: Decoder) -> Drafter:
    drafter = Drafter(make_drafter_spec(DRAFTER_CONFIG, TINY_CONFIG), seed=1)
    drafter.begin_with_head(target.embed_tokens.weight)
    return drafter


def toy_lesson(target: Decoder, count: int = 6) -> Lesson:
    return make_lesson(target, list(islice(ToySource()(3), count)), NUM_DRAFTS)


def test_a_lesson_holds_what_the_model_chooses(target: Decoder) -> None:
    """Against one document at a time, place by place."""
    examples = list(islice(ToySource()(3), 6))
    lesson = make_lesson(target, examples, NUM_DRAFTS)
    for row, example in enumerate(examples):
        ids, length = torch.tensor([example.token_ids]), len(example.token_ids)
        state, stored = target.states(ids, torch.arange(length)[None], dense_attend(torch.zeros_like(ids)))
        best = target.logits(state)[0].argmax(-1).tolist()
        wanted = {
            place: [
                best[place + 1 + draft]
                if place + 2 + draft < length and all(example.is_target[place + 2 : place + 3 + draft])
                else NOT_COUNTED
                for draft in range(NUM_DRAFTS)
            ]
            for place in range(length - 2)
            if example.is_target[place + 1] and example.is_target[place + 2]
        }
        found = {
            place: labels
            for place, labels in zip(lesson.places[row].tolist(), lesson.labels[row].tolist(), strict=True)
            if labels[0] != NOT_COUNTED
        }
        assert found == wanted
        for index, place in enumerate(lesson.places[row].tolist()[: len(found)]):
            torch.testing.assert_close(lesson.hidden[row, index].float(), state[0, place], atol=0.05, rtol=0.01)
            own = [
                token for draft, token in enumerate(lesson.token_ids[row, index].tolist()) if found[place][draft] >= 0
            ]
            assert own == list(example.token_ids[place + 1 : place + 1 + len(own)])
        for layer in layers_read(target.spec):
            keys = stored[layer]
            assert keys is not None
            torch.testing.assert_close(
                lesson.stored[layer][0][row, :, :length].float(), keys[0][0], atol=0.05, rtol=0.01
            )


def test_lessons_have_about_the_tokens_asked_for(target: Decoder) -> None:
    examples = list(islice(ToySource(least=4, most=30)(5), 60))
    lessons = list(make_lessons(target, examples, num_drafts=2, tokens_per_lesson=200, longest=50))
    assert sum(lesson.places.shape[0] for lesson in lessons) == sum(len(one.token_ids) <= 50 for one in examples)
    assert all(lesson.length * lesson.places.shape[0] <= 200 for lesson in lessons)


def test_a_drafter_learns(target: Decoder, drafter: Drafter) -> None:
    lesson = toy_lesson(target)
    before = acceptance(drafter, target, [lesson])
    train(drafter, target, [lesson], num_epochs=80, seed=1, report=lambda line: None)
    after = acceptance(drafter, target, [lesson])
    assert before.shares[0] < 0.3
    assert after.shares[0] > 0.95
    assert after.num_places == lesson.num_places > 20
    round_as_stored(drafter)
    assert acceptance(drafter, target, [lesson]).shares[0] > 0.9


def test_facet_drafts_what_was_trained(
    target: Decoder, drafter: Drafter, tmp_path: Path, small_tokenizer: tokenizers.Tokenizer
) -> None:
    export(checkpoint_tensors(target), TINY_CONFIG, small_tokenizer, tmp_path)
    for _ in range(2):  # the second replaces the first
        export_drafter(drafter, DRAFTER_CONFIG, tmp_path, Acceptance(shares=(0.9, 0.8), num_places=10))
    round_as_stored(drafter)
    assert (tmp_path / "README.md").read_text().count("the first 2 at 80.0%: 2.70 tokens a step") == 1
    record = json.loads((tmp_path / "bundled.json").read_text())
    assert {"assistant/config.json", "assistant/model.safetensors"} < set(record)

    config = ModelConfig(model=str(tmp_path), device="cpu", dtype="float32", max_model_len=MAX_MODEL_LEN)
    model = load_model(config).model
    draft_model = load_draft_model(str(tmp_path / "assistant"), model, config, Silent())
    always = AlwaysDrafts(NUM_DRAFTS)
    engine = make_engine(model, drafter=always, draft_model=draft_model, overlapped=False)
    prompt = [2 + 5 * place % 60 for place in range(2 * TINY_CONFIG["sliding_window"] + 3)]
    sampling = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    (answer,) = run(engine, [Request(request_id="a", prompt_token_ids=tuple(prompt), sampling=sampling)]).values()

    tokens = prompt + answer.token_ids[:1]
    for drafts, (emitted,) in always.rounds:
        assert drafts == drafted(target, drafter, tokens)[: len(drafts)]
        tokens += emitted
    assert tokens == (prompt + answer.token_ids)[: len(tokens)]
    assert len(always.rounds) > 5


def drafted(target: Decoder, drafter: Drafter, tokens: list[int]) -> list[int]:
    """Behind tokens whose last has not been computed, without a cache."""
    ids = torch.tensor([tokens[:-1]])
    state, stored = target.states(ids, torch.arange(ids.shape[1])[None], dense_attend(torch.zeros_like(ids)))
    places = torch.tensor([[ids.shape[1] - 1]])
    angles = {layer.attention: target.angles(layer.attention)[places] for layer in target.spec.layers}
    own = {layer: keys for layer, keys in enumerate(stored) if keys is not None}
    found, token, hidden = [], tokens[-1], state[:, -1:]
    with torch.no_grad():
        for _ in range(NUM_DRAFTS):
            embedded = target.embed(torch.tensor([[token]]))
            state, hidden = drafter(embedded, hidden, angles, own, attend_from(places, ids.shape[1]))
            token = int(drafter.embed_tokens(state).argmax())
            found.append(token)
    return found


class TestTheOneThatShips:
    def test_everything_together_fits(self) -> None:
        check_size(BUNDLED_FOLDER)
        assert (BUNDLED_FOLDER / "assistant" / "model.safetensors").is_file()

    def test_answers_are_the_same_and_drafts_mostly_right(self) -> None:
        prompts = ["Tell me a short story.", "What is Facet?", "What is twelve plus thirty?", "Sort: pear, apple, fig."]
        conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
        answers = []
        for config in ({"method": "none"}, None):
            llm = LLM(
                device="cpu",
                dtype="float32",
                max_model_len=1024,
                kv_cache_memory_bytes=32 << 20,
                show_progress=False,
                speculative_config=config,
            )
            answers.append([llm.chat(one, GREEDY, use_tqdm=False)[0].outputs[0].token_ids for one in conversations])
            drafts = llm.stats().drafts
            llm.close()
        assert answers[0] == answers[1]
        assert drafts.num_accepted > 0.5 * drafts.num_drafts > 0
