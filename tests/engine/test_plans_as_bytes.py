"""Plans and masks sent as bytes to several runners: each computes the same, and the same as a runner that is called."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from facet.chat.answer_grammar import choice_grammar, json_schema_grammar
from facet.engine.engine import Engine
from facet.engine.step_codec import decode_masks, decode_plan, encode_masks, encode_plan
from facet.kv_cache.accountant import need_of
from facet.layers.kv_arena import KVArena
from facet.model.gemma import Gemma
from facet.request import Request
from facet.runner.draft_ahead import DraftsInFlight
from facet.runner.runner import LaunchedStep, Runner
from facet.runner.step_sampling import SampledStep
from facet.step import StepMasks, StepPlan, StepResult
from tests.engine.harness import MAX_MODEL_LEN, Answer, Rememberer, kv_layout, make_engine, mixed_requests, run
from tests.model.paged_model import load
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import write_tokenizer_folder

LONG_ANSWER = 36
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}


class Results(NamedTuple):
    sampled: tuple[SampledStep, ...]

    @property
    def drafts(self) -> DraftsInFlight | None:
        return self.sampled[0].drafts

    def wait(self) -> StepResult:
        first, *others = (step.wait() for step in self.sampled)
        assert all(result == first for result in others), "the ranks have different tokens"
        return first


class Ranks:
    """Stands where a runner stands, and sends all it is told to several."""

    def __init__(self, runners: list[Runner]) -> None:
        self._runners = runners
        self.model, self.counters, self.media = runners[0].model, runners[0].counters, runners[0].media
        self.num_masks = 0

    def launch(self, plan: StepPlan) -> tuple[LaunchedStep, ...]:
        message = encode_plan(plan)
        return tuple(runner.launch(decode_plan(message)) for runner in self._runners)

    def sample(self, launched: tuple[LaunchedStep, ...], masks: StepMasks | None = None) -> Results:
        message = encode_masks(masks)
        self.num_masks += masks is not None
        pairs = zip(self._runners, launched, strict=True)
        return Results(tuple(runner.sample(step, decode_masks(message)) for runner, step in pairs))


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for path in tiny_model("gemma4_e2b_small").folder.iterdir():
        (folder / path.name).symlink_to(path)
    write_tokenizer_folder(folder)
    return folder


def busy_requests() -> list[Request]:
    """Lengths and settings of all sorts, some bound by a grammar, and enough long answers to run out of memory."""
    requests = mixed_requests(8, 480, count=14, seed=5)
    for index, request in enumerate(requests[:6]):
        requests[index] = replace(
            request, sampling=replace(request.sampling, max_tokens=LONG_ANSWER, stop_token_ids=())
        )
    choose = random.Random(6)
    for index, grammar in enumerate([choice_grammar(["yes", "no, never"]), json_schema_grammar(SCHEMA)] * 4):
        given = requests[choose.randrange(len(requests))]
        sampling = replace(given.sampling, max_tokens=40, ignore_eos=False, prompt_logprobs=None)
        requests.append(replace(given, request_id=f"bound {index}", sampling=sampling, grammar=grammar))
    return requests


def engine_of(runner: Any, engine: Engine, folder: Path, drafter: Rememberer | None = None) -> Engine:
    return Engine(runner, engine.settings, folder, drafter)


def another_runner(model: Gemma, engine: Engine) -> Runner:
    settings = engine.settings
    arena = KVArena(settings.layout, settings.num_blocks, model.placement.device)
    arena.poison(torch.arange(settings.num_blocks))
    return Runner(
        model,
        arena,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=MAX_MODEL_LEN,
        fast_prefill=settings.fast_prefill,
        poison_freed_blocks=True,
    )


@pytest.fixture(scope="module")
def plain(folder: Path) -> tuple[Gemma, dict[str, Answer]]:
    """A runner that is called, with memory for everybody."""
    model = load(folder, max_model_len=MAX_MODEL_LEN).model
    engine = make_engine(model)
    return model, run(engine_of(engine.runner, engine, folder), busy_requests())


@pytest.mark.parametrize(("overlapped", "with_drafts"), [(False, False), (True, False), (True, True)])
def test_a_busy_run_through_bytes(
    overlapped: bool, with_drafts: bool, plain: tuple[Gemma, dict[str, Answer]], folder: Path
) -> None:
    model, expected = plain
    requests = busy_requests()
    longest = max(len(request.prompt_token_ids) for request in requests) + LONG_ANSWER
    engine = make_engine(
        model,
        num_blocks=2 * need_of(kv_layout(model), 2, num_tokens=longest).num_blocks,
        max_num_seqs=12,
        max_num_batched_tokens=24,
        overlapped=overlapped,
    )
    ranks = Ranks([engine.runner, another_runner(model, engine)])
    drafter = Rememberer(requests, expected, model.spec.vocab_size, seed=1) if with_drafts else None
    sent = engine_of(ranks, engine, folder, drafter)
    answers = run(sent, requests)
    assert {name: answer.token_ids for name, answer in answers.items()} == {
        name: answer.token_ids for name, answer in expected.items()
    }
    assert ranks.num_masks > 0
    assert sent.stats().scheduler.num_preemptions > 0
    assert sent.stats().scheduler.cache.num_prompt_tokens_hit > 0
