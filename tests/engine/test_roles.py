"""Where tokens of prompts and of answers have kernels that round differently, each token keeps its own.

As --batch-invariant has them on a GPU. Here the two differ by much more than rounding: tokens of answers, and in the
upper layers the last of a prompt, find a little more than is there. Whoever is computed as the other once, or finds the
other's keys in the prefix cache, gets another answer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from facet.config import ModelConfig
from facet.forward_batch import AttentionRows
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.kernels.paged_attention import AttentionPlan, HeadShape, KeyRecipe, LayerCache, plan_invariant_attention
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.request import Request
from facet.runner import warm_up
from facet.sampling_params import SamplingParams
from tests.engine.harness import Answer, make_engine, run
from tests.engine.random_company import Company, answers_alone, check_batches, draw_requests
from tests.tiny_models import TinyModel

E4B, LARGE = "gemma4_e4b_small", "gemma4_31b_small"
COMPANIES = {
    "single tokens": (LARGE, Company(1, num_batches=1)),
    "small chunks": (E4B, Company(7, num_batches=2)),
    "large chunks": (E4B, Company(512, num_batches=6, has_long_prompt=True)),
    "short of memory": (LARGE, Company(16, num_batches=2, is_short_of_memory=True)),
}


@dataclass(frozen=True)
class ByRole:
    """Attention that tells decoded rows from others."""

    plan: AttentionPlan
    factors: Tensor  # [rows, 1, 1]

    def run(
        self,
        queries: Tensor,
        cache: LayerCache,
        *,
        scale: float,
        key_recipe: KeyRecipe | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        attended = self.plan.run(queries, cache, scale=scale, key_recipe=key_recipe, out=out)
        attended *= self.factors
        return attended


def plan_by_role(
    rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
) -> ByRole:
    plan = plan_invariant_attention(rows, block_table, heads, window=window, tokens_per_block=tokens_per_block)
    factors = np.concatenate(
        [
            np.where(np.arange(num_rows) < num_prefilled, 1.0, 1.01)
            for num_rows, num_prefilled in zip(rows.host_query_lens, rows.host_prompt_lens, strict=True)
        ]
    )
    return ByRole(plan, torch.tensor(factors, dtype=torch.float32)[:, None, None])


BY_ROLE = replace(BATCH_INVARIANT, plan_attention=plan_by_role, attends_by_role_on=("cpu",))

Solo = Callable[[str], tuple[Gemma, list[Request], dict[str, Answer]]]


@pytest.fixture(scope="module")
def solo(tiny_model: Callable[[str], TinyModel]) -> Solo:
    @cache
    def get(name: str) -> tuple[Gemma, list[Request], dict[str, Answer]]:
        tiny = tiny_model(name)
        config = ModelConfig(model=str(tiny.folder), device="cpu", max_model_len=512)
        model = load_model(config, arithmetic=BY_ROLE).model
        requests = draw_requests(tiny.window, model.spec.vocab_size, seed=len(name))
        engine = make_engine(model, enable_prefix_caching=False, overlapped=False)
        return model, requests, answers_alone(engine, requests)

    return get


@pytest.mark.parametrize("how", COMPANIES)
def test_company_changes_no_bit(how: str, solo: Solo) -> None:
    name, company = COMPANIES[how]
    model, requests, expected = solo(name)
    engine = make_engine(
        model,
        max_num_batched_tokens=company.chunk,
        num_blocks=company.num_blocks(model, requests),
        graph_sizes=(1, 2, 4, 8),
        piece_sizes=(16, 48),
    )
    check_batches(engine, company, requests, expected, seed=f"{name} {how}")


def test_made_up_steps_decode_single_rows(tiny_model: Callable[[str], TinyModel]) -> None:
    """Beside prompts, too: what answers need there would otherwise be compiled while they wait for it, and what memory
    it takes would not be known."""
    planned: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def plan(rows: AttentionRows, *args: object, **kwargs: object) -> ByRole:
        planned.append((rows.host_query_lens, rows.host_prompt_lens))
        return plan_by_role(rows, *args, **kwargs)  # type: ignore[arg-type]

    config = ModelConfig(model=str(tiny_model(E4B).folder), device="cpu", max_model_len=512)
    model = load_model(config, arithmetic=replace(BY_ROLE, plan_attention=plan)).model
    make_engine(model, graph_sizes=(1, 2)).runner.run_made_up_steps()
    mixed = [lens for lens in planned if {*lens[0]} > {1}]
    assert len(mixed) > len(warm_up.BESIDE_PROMPTS)
    for query_lens, prompt_lens in mixed:
        assert prompt_lens == tuple(0 if length == 1 else length for length in query_lens)


@pytest.mark.parametrize("name", [E4B, LARGE])
def test_the_next_turn_computes_the_answer_before_it_as_a_prompt(name: str, solo: Solo) -> None:
    """The prompt of the turn before is found, its answer is not: it was computed otherwise."""
    model, _, _ = solo(name)
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=2)
    first = Request(
        request_id="first", prompt_token_ids=tuple(range(3, 43)), eos_token_ids=(1,), sampling=greedy, arrival_time=0.0
    )
    engine = make_engine(model)
    answer = run(engine, [first])["first"]
    history = (*first.prompt_token_ids, *answer.token_ids)
    second = replace(first, request_id="second", prompt_token_ids=(*history, 5, 6, 7))
    continued = run(engine, [second])["second"]
    assert continued.num_cached_tokens == len(first.prompt_token_ids) - 1
    fresh = make_engine(model, enable_prefix_caching=False)
    alone = run(fresh, [second])["second"]
    assert (continued.token_ids, continued.logprobs) == (alone.token_ids, alone.logprobs)
