"""The loop: what it computes, what it refuses, and what it does when a model goes wrong."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from facet.errors import CapacityError, RequestError
from facet.model.gemma import Gemma
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.engine.harness import make_engine, run
from tests.model.paged_model import load
from tests.tiny_models import TinyModel

TinyModels = Callable[[str], TinyModel]

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tiny_model: TinyModels) -> Gemma:
    return load(tiny_model("gemma4_e2b_small").folder, max_model_len=512).model


def request(name: str, length: int, sampling: SamplingParams = GREEDY, *, first: int = 3) -> Request:
    prompt = tuple(first + (7 * index) % 480 for index in range(length))
    return Request(request_id=name, prompt_token_ids=prompt, sampling=sampling, eos_token_ids=(1,))


@pytest.mark.parametrize("name", ["gemma4_e2b_small", "gemma4_31b_small", "gemma3_small", "gemma3n_small"])
def test_only_sampled_rows_go_through_upper_layers(name: str, tiny_model: TinyModels) -> None:
    model = load(tiny_model(name).folder, max_model_len=512).model
    engine = make_engine(model, max_num_batched_tokens=16)
    seen = count_rows_through_upper_layers(model)
    requests = [request(str(index), 5 + 13 * index, first=3 + index) for index in range(6)]
    run(engine, requests)
    work = engine.stats().work
    assert work.num_sampled_rows == sum(seen) == work.num_upper_rows == 6 * 8
    assert work.num_rows == sum(5 + 13 * index for index in range(6)) + 6 * 7


def test_a_prompt_cut_by_time_gets_the_answer_it_gets_whole(model: Gemma) -> None:
    requests = [request("short", 3, replace(GREEDY, max_tokens=20)), request("long", 400, first=5)]
    cut = make_engine(model, max_step_seconds=1e-6)
    answers = run(cut, requests, arrivals={"short": 0, "long": 3})
    assert cut.stats().scheduler.num_short_steps > 0
    whole = make_engine(model)
    assert run(whole, requests, arrivals={"short": 0, "long": 3}) == answers
    assert whole.stats().scheduler.num_short_steps == 0


def test_a_request_that_wants_every_logit_gets_them_and_its_neighbours_still_skip(model: Gemma) -> None:
    engine = make_engine(model, max_num_batched_tokens=512)
    wants_all = request("all", 30, replace(GREEDY, prompt_logprobs=0))
    answers = run(engine, [wants_all, request("skips", 40, first=5)])
    assert len(answers["all"].prompt_logprobs) == 29
    assert engine.stats().work.num_upper_rows == 30 + 2 * 8 - 1


def count_rows_through_upper_layers(model: Gemma) -> list[int]:
    seen: list[int] = []
    layer = model.layers[model.spec.last_owning_layer]
    layer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].stream.shape[-2]))
    return seen


@pytest.mark.parametrize("overlapped", [True, False])
def test_logits_that_are_not_finite_fail_their_request_alone(
    overlapped: bool, model: Gemma, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = run(make_engine(model), [request("healthy", 20)])["healthy"]
    engine = make_engine(model, overlapped=overlapped, enable_prefix_caching=False)
    compute = type(model).logits
    calls = 0

    def break_second_row(self: Gemma, hidden: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        logits = compute(self, hidden)
        if calls == 4:
            logits[1] = float("nan")
        return logits

    monkeypatch.setattr(type(model), "logits", break_second_row)
    answers = run(engine, [request("healthy", 20), request("broken", 25)])
    assert answers["healthy"] == healthy
    broken = answers["broken"]
    assert (broken.finish_reason, len(broken.token_ids)) == ("error", 3)
    assert broken.error is not None
    assert "NaN" in broken.error
    assert engine.stats().num_corrupted_requests == 1


def test_a_prefix_that_came_before_is_not_computed_again(model: Gemma) -> None:
    engine = make_engine(model)
    first = run(engine, [request("a", 50)])["a"]
    before = engine.stats().work.num_rows
    again = run(engine, [request("b", 50)])["b"]
    assert again.token_ids == first.token_ids
    assert again.num_cached_tokens >= 32
    assert engine.stats().work.num_rows - before < 50

    engine.reset_prefix_cache()
    forgotten = run(engine, [request("c", 50)])["c"]
    assert (forgotten.token_ids, forgotten.num_cached_tokens) == (first.token_ids, 0)


def test_the_same_seed_gives_the_same_answer_in_any_company(model: Gemma) -> None:
    sampled = replace(GREEDY, temperature=1.0, seed=42, max_tokens=20)
    alone = run(make_engine(model), [request("x", 12, sampled)])["x"]
    others = [request(str(index), 3 + 5 * index, replace(sampled, seed=index), first=9) for index in range(9)]
    together = run(make_engine(model, max_num_batched_tokens=32), [*others, request("x", 12, sampled)])
    assert together["x"].token_ids == alone.token_ids
    assert together["3"].token_ids != alone.token_ids


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request("x", 0), "prompt is empty"),
        (replace(request("x", 3), prompt_token_ids=(2, 512)), "token id 512"),
        (replace(request("x", 3), prompt_token_ids=(2, -1)), "token id -1"),
        (
            request("x", 600),
            "too long: it has 600 tokens and 8 more were asked for, but this model's maximum context length is 512",
        ),
        (request("x", 500, replace(GREEDY, max_tokens=13)), "500 tokens and 13 more"),
        (request("x", 3, replace(GREEDY, allowed_token_ids=(3, 700))), "token 700"),
        (request("x", 3, replace(GREEDY, logit_bias={512: 1.0})), "token 512"),
    ],
)
def test_bad_requests_are_refused_by_field_and_nobody_notices(bad: Request, message: str, model: Gemma) -> None:
    engine = make_engine(model)
    engine.submit(request("good", 10))
    with pytest.raises(RequestError, match=message) as caught:
        engine.submit(bad)
    assert caught.value.field is not None
    tokens = []
    while engine.has_work:
        tokens += [token for event in engine.step() for token in event.token_ids]
    assert len(tokens) == 8


def test_what_could_never_fit_is_refused_at_once(model: Gemma) -> None:
    engine = make_engine(model, num_blocks=10)
    with pytest.raises(CapacityError, match=r"needs \d+ cache blocks, but there are 9"):
        engine.submit(request("x", 300))


def test_stop_tokens_and_end_of_sequence(model: Gemma) -> None:
    plain = run(make_engine(model), [request("x", 12, replace(GREEDY, max_tokens=12))])["x"].token_ids
    stop = next(token for index, token in enumerate(plain) if token not in plain[:index] and index >= 3)
    cut = plain[: plain.index(stop) + 1]
    for sampling, eos in (
        (replace(GREEDY, max_tokens=12, stop_token_ids=(stop,)), (1,)),
        (replace(GREEDY, max_tokens=12, ignore_eos=False), (stop,)),
    ):
        for overlapped in (True, False):
            asked = replace(request("x", 12, sampling), eos_token_ids=eos)
            answer = run(make_engine(model, overlapped=overlapped), [asked])["x"]
            assert (answer.token_ids, answer.finish_reason) == (cut, "stop")
