"""Every KV dtype in a running engine: alone equals together, prefixes are reused, and no byte of another dtype is read.

Dead memory is NaN, scales included. Blocks are computed from the same numbers alone and together, but their sums are
rounded in another order, and a number that lies between two quantized ones may fall to the other side. That happens
seldom, but stays in the cache: half of the log-probabilities must agree closely, and all within a few tenths.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch

from facet.engine.engine import Engine
from facet.kv_cache.accountant import need_of
from facet.model.gemma import Gemma
from facet.request import Request
from facet.sampling_params import SamplingParams
from tests.engine.harness import Answer, alone, kv_layout, make_engine, mixed_requests, run
from tests.model.paged_model import load
from tests.tiny_models import TinyModel

TinyModels = Callable[[str], TinyModel]

QUANTIZED = ("fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head")
DTYPES = ("bfloat16", "float16", *QUANTIZED, "global=int8_per_token_head,sliding=bfloat16")
FAMILIES = ("gemma4_e2b_small", "gemma4_31b_small")  # layers that read others' keys; shared vectors
# What is rounded the same way, with scales or without, is so in either family. The last pair
# has shared vectors of eight bits beside separate ones in bfloat16.
PAIRS = [
    *((FAMILIES[0], dtype) for dtype in ("float16", "fp8_e4m3", "int8_per_token_head")),
    *((FAMILIES[1], dtype) for dtype in ("bfloat16", "fp8_e5m2", "fp8_per_token_head")),
    (FAMILIES[1], "global=int8_per_token_head,sliding=bfloat16"),
]
NUM_TOKENS = 7
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
USUAL_TOLERANCE, LARGEST_TOLERANCE = 1e-3, 0.3


@pytest.fixture(scope="module")
def models(tiny_model: TinyModels) -> Mapping[str, Gemma]:
    return {name: load(tiny_model(name).folder, max_model_len=512).model for name in FAMILIES}


def greedy_requests(model: Gemma, count: int) -> list[Request]:
    requests = mixed_requests(6, model.spec.vocab_size, count=count, seed=5)
    return [replace(request, sampling=GREEDY) for request in requests]


def differences(got: Answer, expected: Answer) -> list[float]:
    """Of log-probabilities, up to where the two likeliest tokens are as good as equal."""
    assert got.error is None
    assert len(got.token_ids) == len(expected.token_ids)
    found = []
    for index, (token, logprobs) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
        reference = expected.logprobs[index]
        if token != expected.token_ids[index]:
            best, second = reference.logprobs[1:3]
            assert best - second < 2 * LARGEST_TOLERANCE
            break
        found.append(abs(logprobs.logprobs[0] - reference.logprobs[0]))
    return found


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_alone_equals_together(name: str, dtype: str, models: Mapping[str, Gemma]) -> None:
    """Once with too little memory for all, so that requests are put back, and twice with prefixes to be found."""
    model = models[name]
    requests = greedy_requests(model, 8)
    solo = make_engine(model, kv_dtype=dtype, enable_prefix_caching=False, overlapped=False, fast_prefill=False)
    expected: dict[str, Answer] = {}
    for request in requests:
        expected |= run(solo, [alone(request)], check_every=1000)
    longest = max(len(request.prompt_token_ids) + NUM_TOKENS for request in requests)
    needed = need_of(kv_layout(model, dtype), 0, num_tokens=longest).num_blocks
    arrivals = {request.request_id: index for index, request in enumerate(requests)}
    short, roomy = (
        make_engine(model, kv_dtype=dtype, max_num_batched_tokens=24, num_blocks=num_blocks)
        for num_blocks in (3 * needed // 2, 2000)
    )
    for engine in (short, roomy, roomy):
        got = run(engine, requests, arrivals=arrivals)
        found = [difference for name in got for difference in differences(got[name], expected[name])]
        assert max(found) <= LARGEST_TOLERANCE
        assert sorted(found)[len(found) // 2] <= USUAL_TOLERANCE
        assert engine.stats().num_corrupted_requests == 0
    assert short.stats().scheduler.num_preemptions > 0
    assert roomy.stats().scheduler.cache.num_prompt_tokens_hit > 100


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_a_quantized_cache_changes_little_but_something(dtype: str, models: Mapping[str, Gemma]) -> None:
    model = models["gemma4_31b_small"]
    (request,) = greedy_requests(model, 30)[-1:]
    plain, quantized = (
        run(make_engine(model, kv_dtype=name), [request])[request.request_id] for name in ("auto", dtype)
    )
    difference = abs(plain.logprobs[0].logprobs[1] - quantized.logprobs[0].logprobs[1])
    assert 0 < difference < 0.5


def with_bytes_of(engine: Engine, other: Engine) -> Engine:
    """The same memory, as the other left it, in the hands of this one."""
    for ours, theirs in (
        (engine.runner.arena.bytes, other.runner.arena.bytes),
        (engine.runner.arena.scales, other.runner.arena.scales),
    ):
        count = min(ours.numel(), theirs.numel())
        ours.view(-1)[:count] = theirs.view(-1)[:count]
    return engine


@pytest.mark.parametrize(
    ("first", "second"), [("int8_per_token_head", "fp8_e4m3"), ("fp8_e5m2", "auto"), ("auto", "fp8_per_token_head")]
)
def test_what_another_dtype_left_behind_is_never_read(first: str, second: str, models: Mapping[str, Gemma]) -> None:
    model = models["gemma4_31b_small"]
    requests = greedy_requests(model, 6)
    expected = run(make_engine(model, kv_dtype=second, num_blocks=300), requests)
    before = make_engine(model, kv_dtype=first, num_blocks=300)
    run(before, requests)
    after = with_bytes_of(make_engine(model, kv_dtype=second, num_blocks=300), before)
    assert run(after, requests) == expected


def test_poison_is_loud_in_every_dtype(models: Mapping[str, Gemma]) -> None:
    model = models["gemma4_e2b_small"]
    for dtype in DTYPES:
        engine = make_engine(model, kv_dtype=dtype, overlapped=False)
        request = greedy_requests(model, 30)[-1]
        engine.submit(request)
        engine.step()
        engine.runner.arena.poison(torch.arange(2000))
        assert [event.finish_reason for event in engine.step()] == ["error"], dtype
