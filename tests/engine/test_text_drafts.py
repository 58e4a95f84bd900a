"""Drafts from requests' own tokens on the real engine: answers are bit for bit those without drafts.

FACET_NUM_DRAFTED=5000 tries as many requests.
"""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from facet.chat.answer_grammar import choice_grammar, json_schema_grammar
from facet.config import ModelConfig
from facet.drafts.config import NgramDrafts, SuffixDrafts
from facet.drafts.step_times import StepTimes
from facet.drafts.text_drafter import TextDrafter
from facet.engine.engine import Engine
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.kv_cache.accountant import need_of
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.repetition import RepetitionDetectionParams
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.step import StepPlan
from facet.thoughts import ThoughtTokens
from tests.engine.harness import MAX_MODEL_LEN, Answer, kv_layout, make_engine, run
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import write_tokenizer_folder

NUM_REQUESTS = int(os.environ.get("FACET_NUM_DRAFTED", "60"))
VOCAB_SIZE = 480
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
GRAMMARS = (choice_grammar(["yes", "no, never"]), json_schema_grammar(SCHEMA))
THOUGHT = ThoughtTokens(open_id=100, close_id=101)
LOOPS = RepetitionDetectionParams(max_pattern_size=4, min_pattern_size=1, min_count=5)

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=0.7, seed=7, top_k=20)
SAMPLING = (
    GREEDY,
    SEEDED,
    replace(SEEDED, top_p=0.9, top_k=0, logprobs=2),
    replace(GREEDY, repetition_penalty=1.2, frequency_penalty=0.2, logprobs=1),
    replace(SEEDED, ignore_eos=False, stop_token_ids=tuple(range(0, 480, 9)), min_tokens=4),
    replace(SEEDED, bad_words_token_ids=tuple((a, b) for a in range(0, 300, 3) for b in range(40))),
    replace(GREEDY, logit_bias=dict.fromkeys(range(20), 2.0), prompt_logprobs=1),
    replace(SEEDED, allowed_token_ids=tuple(range(40, 50))),
    replace(GREEDY, allowed_token_ids=(7,), repetition_detection=LOOPS),
    replace(GREEDY, thinking_token_budget=3, logit_bias={100: 30.0}),
)


def make_requests(count: int) -> list[Request]:
    """Prompts that repeat themselves, and beginnings that are shared."""
    choose = random.Random(count)
    requests = []
    for index in range(count):
        phrase = [choose.randrange(3, VOCAB_SIZE) for _ in range(choose.randrange(1, 9))]
        prompt = ([2, 5, 6, 7] + phrase * choose.randrange(1, 5))[: choose.randrange(3, 34)]
        sampling = choose.choice(SAMPLING)
        if not sampling.is_greedy:
            sampling = replace(sampling, n=2).for_output(index % 2)
        grammar = choose.choice(GRAMMARS) if index % 8 == 0 else None
        if grammar is not None:
            sampling = replace(SEEDED, ignore_eos=False, max_tokens=20)
        requests.append(
            Request(
                request_id=str(index),
                prompt_token_ids=tuple(prompt),
                sampling=sampling,
                eos_token_ids=(1,),
                arrival_time=float(index),
                grammar=grammar,
                thought=THOUGHT,
            )
        )
    return requests


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafted")
    for path in tiny_model("gemma4_e2b_small").folder.iterdir():
        (folder / path.name).symlink_to(path)
    write_tokenizer_folder(folder)
    return folder


Plain = tuple[Gemma, list[Request], dict[str, Answer]]


@pytest.fixture(scope="module")
def plain(folder: Path) -> Plain:
    config = ModelConfig(model=str(folder), device="cpu", max_model_len=MAX_MODEL_LEN)
    model = load_model(config, arithmetic=BATCH_INVARIANT).model
    requests = make_requests(NUM_REQUESTS)
    engine = make_engine(model, overlapped=False)
    return model, requests, run(Engine(engine.runner, engine.settings, folder), requests)


SUFFIX = SuffixDrafts(num_drafts=6, max_match=24, max_factor=2.0, min_share=0.1)
NGRAM = NgramDrafts(num_drafts=3, min_match=1, max_match=3)


class FreeRows(StepTimes):
    """Rows take no time, whatever they take on this machine."""

    def __init__(self) -> None:
        super().__init__({1: 1.0, 1000: 1.0})

    def learn_step(self, plan: StepPlan, seconds: float) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("config", "how"),
    [
        (SUFFIX, {"overlapped": True, "graph_sizes": (4, 32, 64, 160)}),
        (NGRAM, {"overlapped": False, "is_tight": True, "max_num_batched_tokens": 40}),
    ],
)
def test_drafts_from_the_text_change_no_bit(
    config: SuffixDrafts | NgramDrafts, how: dict[str, object], plain: Plain, folder: Path
) -> None:
    model, requests, expected = plain
    settings = dict(how)
    if settings.pop("is_tight", False):
        requests = requests[: len(requests) // 3]
        settings["num_blocks"] = 6 * need_of(kv_layout(model), 2, num_tokens=60).num_blocks
    made = make_engine(model, **settings)  # type: ignore[arg-type]
    engine = Engine(made.runner, made.settings, folder, TextDrafter(config, FreeRows()))
    answers = run(engine, requests)
    for request in requests:
        ours = replace(answers[request.request_id], num_cached_tokens=0)
        assert ours == replace(expected[request.request_id], num_cached_tokens=0), request.sampling
    drafts = engine.stats().scheduler.drafts
    assert drafts.num_drafts > drafts.num_accepted > len(requests) // 2, "many were right and some were not"


def test_steps_are_timed_by_their_rows(plain: Plain) -> None:
    captured = make_engine(plain[0], graph_sizes=(4, 16)).runner.time_steps()
    assert sorted(captured) == [1, 4, 5, 16]
    assert captured[1] == captured[4] > 0, "a step is filled up to the next size"
    eager = make_engine(plain[0]).runner.time_steps()
    assert sorted(eager)[:2] == [1, 2]
    assert min(eager.values()) > 0
