"""The features together: what a request gets depends on nothing but itself, and nothing broken becomes a token."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from facet.sampling import Fault, GrammarMask, Sampler
from facet.sampling.bitmask import pack_token_ids
from facet.sampling_params import SamplingParams
from tests.sampling.builders import CPU, make_sampler, sample_once

VOCAB_SIZE = 5000

# Requests that together use everything, and every way of choosing.
COMPANY = [
    SamplingParams(temperature=0),
    SamplingParams(top_k=64, top_p=0.95, seed=1),
    SamplingParams(top_k=64, top_p=0.95, seed=2, logprobs=3),
    SamplingParams(seed=3),
    SamplingParams(top_p=0.8, seed=4),
    SamplingParams(min_p=0.1, temperature=0.7, seed=5, logprobs=-1),
    SamplingParams(top_k=2000, seed=6),
    SamplingParams(top_k=7, repetition_penalty=1.3, presence_penalty=0.5, seed=7),
    SamplingParams(temperature=0, frequency_penalty=1.5, logprobs=1),
    SamplingParams(logit_bias={5: 4.0, 6: -100.0}, top_k=1000, seed=8),
    SamplingParams(allowed_token_ids=list(range(0, 5000, 3)), seed=9),
    SamplingParams(bad_words_token_ids=[[3], [1, 2]], top_p=0.99, seed=10),
    SamplingParams(min_tokens=3, max_tokens=None, stop_token_ids=[4], temperature=0),
]


def logits_of(request: int, position: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * request + position)
    return torch.randn(VOCAB_SIZE, generator=generator).mul_(2.5)


def run_alone(request: int, num_steps: int) -> list[int | None]:
    sampler = make_sampler(VOCAB_SIZE, num_seats=1)
    sampler.add_request(0, COMPANY[request], [1, 2, 3], eos_token_ids=[1])
    tokens = []
    for position in range(num_steps):
        sampled = sampler.sample(logits_of(request, position).unsqueeze(0), [0])
        sampler.accept([0], sampled.token_ids)
        tokens.append(sampled.to_host().token_ids[0])
    return tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_features_the_choice_is_argmax(dtype: torch.dtype) -> None:
    logits = torch.randn(6, VOCAB_SIZE).to(dtype)
    before = logits.clone()
    sampler = make_sampler(VOCAB_SIZE)
    for seat in range(6):
        sampler.add_request(seat, SamplingParams(temperature=0), [])
    sampled = sampler.sample(logits, range(6))
    assert torch.equal(sampled.token_ids, before.float().argmax(-1))
    assert sampled.token_ids.dtype == torch.int64
    assert bool(sampled.is_finite.all())
    assert sampled.logprobs is None
    assert torch.equal(logits, before), "nothing asked for a change"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("uses_kernels", [False, True])
def test_what_is_never_sampled(dtype: torch.dtype, uses_kernels: bool) -> None:
    """However likely it is, whatever a request asks for; log-probabilities stay those of the model."""
    never = (5, 77, VOCAB_SIZE - 1)
    seats = range(len(COMPANY))
    logits = torch.stack([logits_of(request, 0) for request in seats]).to(dtype)
    logits[:, list(never)] += 50
    expected = logits.float().log_softmax(-1)
    sampler = Sampler(
        num_seats=len(COMPANY), vocab_size=VOCAB_SIZE, device=CPU, never_sampled=never, uses_kernels=uses_kernels
    )
    for seat in seats:
        params = replace(COMPANY[seat], logprobs=2, logit_bias={5: 100.0})
        sampler.add_request(seat, params, [1, 2, 3], eos_token_ids=[1])
    host = sampler.sample(logits, seats).to_host()
    assert not set(never) & set(host.token_ids)
    for place, logprobs in enumerate(host.logprobs):
        assert logprobs is not None
        assert set(logprobs.token_ids[1:]) <= set(never), "the two best of the model's own logits"
        assert logprobs.logprobs == pytest.approx(expected[place, logprobs.token_ids].tolist(), abs=2e-2)


def test_both_ways_of_choosing_choose_the_same_tokens() -> None:
    """Groups of rows, each its own way, as on a CPU; and all rows at once, by the kernels' definition."""
    seats = range(len(COMPANY))
    chosen = []
    for uses_kernels in (False, True):
        sampler = Sampler(num_seats=len(COMPANY), vocab_size=VOCAB_SIZE, device=CPU, uses_kernels=uses_kernels)
        for seat in seats:
            sampler.add_request(seat, COMPANY[seat], [1, 2, 3], eos_token_ids=[1])
        for position in range(4):
            logits = torch.stack([logits_of(request, position) for request in seats])
            logits[position, 77] = math.nan
            sampled = sampler.sample(logits, seats)
            sampler.accept(seats, sampled.token_ids)
            chosen.append(sampled.to_host())
    assert chosen[:4] == chosen[4:]


@pytest.mark.parametrize("order", ["forwards", "backwards", "shuffled"])
def test_alone_equals_together(order: str) -> None:
    """Every kind of request, in one batch: the tokens of each are those it gets alone, wherever its seat is."""
    num_steps = 5
    alone = [run_alone(request, num_steps) for request in range(len(COMPANY))]
    requests = list(range(len(COMPANY)))
    generator = torch.Generator().manual_seed(2)
    seats = torch.randperm(20, generator=generator)[: len(requests)].tolist()
    sampler = make_sampler(VOCAB_SIZE, num_seats=20)
    for request, seat in zip(requests, seats, strict=True):
        sampler.add_request(seat, COMPANY[request], [1, 2, 3], eos_token_ids=[1])
    together: list[list[int | None]] = [[] for _ in requests]
    for position in range(num_steps):
        if order == "backwards":
            requests.reverse()
        elif order == "shuffled":
            requests = [requests[index] for index in torch.randperm(len(requests), generator=generator).tolist()]
        logits = torch.stack([logits_of(request, position) for request in requests])
        batch = [seats[request] for request in requests]
        sampled = sampler.sample(logits, batch)
        sampler.accept(batch, sampled.token_ids)
        for request, token_id in zip(requests, sampled.to_host().token_ids, strict=True):
            together[request].append(token_id)
    assert together == alone


def test_requests_that_come_and_go_change_nothing() -> None:
    """Request i runs from step 2 * i; each runs six steps, some are preempted and come back in another seat."""
    num_steps = 6
    alone = [run_alone(request, num_steps) for request in range(len(COMPANY))]
    sampler = make_sampler(VOCAB_SIZE, num_seats=6)
    outputs: dict[int, list[int]] = {}
    seats: dict[int, int] = {}
    waiting = list(range(len(COMPANY)))
    step = 0
    while waiting or seats:
        free = sorted(set(range(6)) - set(seats.values()), reverse=step % 2 == 0)
        if waiting and free:
            request = waiting.pop(0)
            seats[request] = free[0]
            resumed = outputs.setdefault(request, [])
            sampler.add_request(free[0], COMPANY[request], [1, 2, 3], resumed, eos_token_ids=[1])
        running = sorted(seats, key=lambda request: (request * 7 + step) % 13)
        logits = torch.stack([logits_of(request, len(outputs[request])) for request in running])
        batch = [seats[request] for request in running]
        sampled = sampler.sample(logits, batch)
        sampler.accept(batch, sampled.token_ids)
        for request, token_id in zip(running, sampled.to_host().token_ids, strict=True):
            assert token_id is not None
            outputs[request].append(token_id)
        for request in running:
            is_finished = len(outputs[request]) == num_steps
            is_preempted = not is_finished and (step + request) % 5 == 0
            if is_finished or is_preempted:
                sampler.remove_request(seats.pop(request))
            if is_preempted:
                waiting.insert(0, request)
        step += 1
    assert [outputs[request] for request in range(len(COMPANY))] == alone


def test_a_seed_gives_the_same_answer_twice_and_another_seed_another() -> None:
    def answer(seed: int) -> list[int]:
        sampler = make_sampler(VOCAB_SIZE, num_seats=1)
        sampler.add_request(0, SamplingParams(seed=seed), [])
        tokens = []
        for _ in range(8):
            sampled = sampler.sample(torch.zeros(1, VOCAB_SIZE), [0])
            sampler.accept([0], sampled.token_ids)
            tokens.append(int(sampled.token_ids[0]))
        return tokens

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)
    assert len(set(answer(1))) == 8, "positions differ"


class TestNonFinite:
    @pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf])
    @pytest.mark.parametrize("request_number", range(len(COMPANY)))
    def test_a_poisoned_row_is_flagged_and_its_neighbours_are_not(self, poison: float, request_number: int) -> None:
        logits = torch.stack([logits_of(request, 0) for request in range(len(COMPANY))])
        clean = sample_once(logits, COMPANY)
        logits[request_number, 4321] = poison
        result = sample_once(logits, COMPANY)
        assert result.faults[request_number] is Fault.NON_FINITE_LOGITS
        assert result.token_ids[request_number] is None
        assert result.logprobs[request_number] is None
        for place in set(range(len(COMPANY))) - {request_number}:
            assert result.faults[place] is None
            assert result.token_ids[place] == clean.token_ids[place]

    def test_a_row_without_any_finite_logit_is_flagged(self) -> None:
        logits = torch.stack([logits_of(request, 0) for request in range(len(COMPANY))])
        logits.fill_(-math.inf)
        assert set(sample_once(logits, COMPANY).faults) == {Fault.NON_FINITE_LOGITS}

    def test_masked_logits_are_fine(self) -> None:
        logits = torch.full((len(COMPANY), VOCAB_SIZE), -math.inf)
        logits[:, 1234] = 0.5
        params = [request for request in COMPANY if request.allowed_token_ids is None]
        result = sample_once(logits[: len(params)], params)
        assert set(result.token_ids) == {1234}
        assert set(result.faults) == {None}

    def test_a_mask_does_not_hide_nan(self) -> None:
        logits = torch.zeros(1, 10)
        logits[0, 7] = math.nan
        assert sample_once(logits, SamplingParams(allowed_token_ids=[1])).faults == (Fault.NON_FINITE_LOGITS,)

    @pytest.mark.parametrize("poison", [math.nan, -math.nan, math.inf])
    def test_flagged_rows_are_safe_to_feed(self, poison: float) -> None:
        sampler = make_sampler(VOCAB_SIZE, num_seats=len(COMPANY))
        for seat, params in enumerate(COMPANY):
            sampler.add_request(seat, params, [])
        logits = torch.randn(len(COMPANY), VOCAB_SIZE)
        logits[:, 4999] = poison
        sampled = sampler.sample(logits, range(len(COMPANY)))
        assert not bool(sampled.is_finite.any())
        assert sampled.token_ids.tolist() == [0] * len(COMPANY)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_nothing_left_to_choose_is_another_fault(self, temperature: float) -> None:
        """Token 5 is all that is allowed, and may not come twice in a row."""
        params = SamplingParams(temperature=temperature, allowed_token_ids=[5], bad_words_token_ids=[[5, 5]], seed=0)
        sampler = make_sampler(10)
        sampler.add_request(0, params, [])
        sampler.add_request(1, SamplingParams(temperature=0), [])
        for token_ids, faults in (((5, 9), (None, None)), ((None, 9), (Fault.NOTHING_ALLOWED, None))):
            sampled = sampler.sample(torch.arange(10.0).repeat(2, 1), [0, 1])
            sampler.accept([0, 1], sampled.token_ids)
            assert sampled.to_host().token_ids == token_ids
            assert sampled.to_host().faults == faults

    def test_our_own_extremes_are_not_infinite(self) -> None:
        logits = torch.linspace(-30, 30, 10).repeat(1, 1)
        for temperature in (0.0, 1e-5, 1.0):
            extreme = SamplingParams(
                temperature=temperature,
                logit_bias={3: 1e308},
                repetition_penalty=1e-300,
                frequency_penalty=-2.0,
                seed=0,
            )
            assert sample_once(logits, extreme).token_ids == (3,)


def test_a_grammar_applies_to_its_requests_only() -> None:
    sampler = make_sampler(40)
    for seat in range(3):
        sampler.add_request(seat, SamplingParams(temperature=0), [])
    mask = GrammarMask(torch.from_numpy(pack_token_ids([7, 30], 40)).unsqueeze(0), [1])
    logits = torch.arange(40.0).repeat(3, 1)
    assert sampler.sample(logits, range(3), grammar=mask).to_host().token_ids == (39, 30, 39)


def test_half_precision_logits_take_every_feature() -> None:
    logits = torch.stack([logits_of(request, 0) for request in range(len(COMPANY))]).bfloat16()
    before = logits.clone()
    low = sample_once(logits, COMPANY)
    assert low == sample_once(logits.float(), COMPANY)
    assert torch.equal(logits, before)


def test_an_empty_step_is_no_step() -> None:
    sampler = make_sampler(10)
    sampled = sampler.sample(torch.zeros(0, 10), [])
    sampler.accept([], sampled.token_ids)
    assert sampled.to_host().token_ids == ()


@pytest.mark.parametrize(
    ("misuse", "words"),
    [
        (lambda sampler: sampler.add_request(0, SamplingParams(), []), "seat 0 still belongs to another"),
        (lambda sampler: sampler.add_request(9, SamplingParams(), []), "seat 9 of 8"),
        (lambda sampler: sampler.add_request(1, SamplingParams(n=2), []), "becomes several requests"),
        (lambda sampler: sampler.remove_request(1), "seat 1 belongs to no request"),
        (lambda sampler: sampler.sample(torch.zeros(1, 10), [1]), r"seats \[1\] have no request"),
        (lambda sampler: sampler.sample(torch.zeros(2, 10), [0, 0]), "may take part in a step once"),
        (lambda sampler: sampler.sample(torch.zeros(1, 11), [0]), r"shape \(1, 11\) for 1 rows of 10"),
    ],
)
def test_misuse_is_named(misuse: Any, words: str) -> None:
    sampler = make_sampler(10)
    sampler.add_request(0, SamplingParams(temperature=0), [])
    with pytest.raises(AssertionError, match=words):
        misuse(sampler)


def test_a_batch_does_not_outlive_its_requests() -> None:
    sampler = make_sampler(10)
    sampler.add_request(0, SamplingParams(temperature=0), [])
    sampler.sample(torch.zeros(1, 10), [0])
    sampler.remove_request(0)
    with pytest.raises(AssertionError, match=r"seats \[0\] have no request"):
        sampler.sample(torch.zeros(1, 10), [0])
    sampler.add_request(0, SamplingParams(temperature=0, logit_bias={4: 1.0}), [])
    assert sampler.sample(torch.zeros(1, 10), [0]).to_host().token_ids == (4,)


def test_an_arrival_that_does_not_sample_yet_disturbs_no_one() -> None:
    """Its long bad word lengthens what is remembered of everybody's output; its prompt is still running."""
    sampler = make_sampler(10)
    sampler.add_request(0, SamplingParams(temperature=0, bad_words_token_ids=[[9, 9]]), [])
    tokens = []
    for step in range(3):
        if step == 1:
            sampler.add_request(1, SamplingParams(bad_words_token_ids=[[1, 2, 3, 4]]), [])
        sampled = sampler.sample(torch.arange(10.0).unsqueeze(0), [0])
        sampler.accept([0], sampled.token_ids)
        tokens.append(int(sampled.token_ids[0]))
    assert tokens == [9, 8, 9]


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations that make a host wait for a device, and the largest tensor that is not a view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in {
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
            torch.ops.aten.equal,
        }:
            self.waits.append(str(func))
        is_new = not any(returned.alias_info for returned in func._schema.returns)
        if is_new and isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel() * result.element_size())
        return result


def watch_steps(params: list[SamplingParams], vocab_size: int, num_steps: int = 2) -> Watch:
    sampler = Sampler(num_seats=len(params), vocab_size=vocab_size, device=CPU)
    seats = range(len(params))
    for seat, request in enumerate(params):
        sampler.add_request(seat, request, [1, 2, 3], eos_token_ids=[1])
    watch = Watch()
    for _ in range(num_steps):
        watch.largest = 0  # of the last step: the first makes tables that are kept
        logits = torch.randn(len(params), vocab_size)
        with watch:
            sampled = sampler.sample(logits, seats)
            sampler.accept(seats, sampled.token_ids)
    return watch


def test_the_host_waits_only_for_a_nucleus_without_top_k() -> None:
    waiting = [request for request in COMPANY if request.top_p < 1 and request.top_k == 0]
    others = [request for request in COMPANY if request not in waiting]
    assert watch_steps(others, VOCAB_SIZE).waits == []
    assert len(watch_steps(waiting, VOCAB_SIZE).waits) >= 1, "the watch sees what it is there to see"


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"temperature": 0}, 0.1),
        ({"top_k": 64, "top_p": 0.95}, 0.1),  # what Gemma's checkpoints ask for
        ({"top_k": 64, "presence_penalty": 1.0}, 0.1),
        ({}, 0.25),
        ({"top_p": 0.9}, 0.25),
    ],
)
def test_the_logits_are_not_copied(settings: dict[str, Any], share: float) -> None:
    """No temporary is as large as a fraction of the logits; at most a row at a time is worked on."""
    vocab_size, num_rows = 300_000, 8
    watch = watch_steps([SamplingParams(**settings, seed=row) for row in range(num_rows)], vocab_size)
    assert watch.largest <= share * vocab_size * num_rows * 4
