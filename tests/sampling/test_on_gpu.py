"""The same tokens on a GPU, without waiting for it, within the memory that was announced. Needs a GPU."""

import math
import warnings
from typing import Any

import pytest
import torch

from facet.sampling import Fault, GrammarMask, Sampler, max_device_bytes
from facet.sampling.bitmask import pack_token_ids
from facet.sampling.candidates import best_token, top_candidates
from facet.sampling.choice import NARROW_LIMIT
from facet.sampling.noise import random_bits, scramble_token_ids
from facet.sampling_params import SamplingParams
from tests.sampling.builders import CPU
from tests.sampling.test_sampler import COMPANY, VOCAB_SIZE, logits_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

GPU = torch.device("cuda", 0)


def run_company(device: torch.device, num_steps: int) -> list[tuple[int | None, ...]]:
    sampler = Sampler(num_seats=len(COMPANY), vocab_size=VOCAB_SIZE, device=device)
    seats = range(len(COMPANY))
    for seat in seats:
        sampler.add_request(seat, COMPANY[seat], [1, 2, 3], eos_token_ids=[1])
    in_flight = []
    for position in range(num_steps):
        logits = torch.stack([logits_of(request, position) for request in seats]).to(device)
        sampled = sampler.sample(logits, seats)
        sampler.accept(seats, sampled.token_ids)
        in_flight.append(sampled.start_copy())  # read only after all steps were launched
    return [tokens.wait().token_ids for tokens in in_flight]


def test_gpu_and_cpu_choose_the_same_tokens() -> None:
    assert run_company(GPU, 12) == run_company(CPU, 12)


@pytest.mark.parametrize("uses_kernels", [True, False])
@pytest.mark.parametrize(
    "settings", [{"temperature": 0}, {"top_k": 64, "top_p": 0.95}, {}, {"min_p": 0.02}, {"top_p": 0.9}]
)
def test_a_large_vocabulary_gives_the_tokens_of_the_cpu(settings: dict[str, Any], uses_kernels: bool) -> None:
    num_rows, vocab_size, seats = 5, 262_144, range(5)
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(0)).mul_(3)
    chosen = []
    for device in (CPU, GPU):
        sampler = Sampler(
            num_seats=num_rows, vocab_size=vocab_size, device=device, uses_kernels=uses_kernels and device == GPU
        )
        for seat in seats:
            sampler.add_request(seat, SamplingParams(**settings, seed=seat), [])
        for _ in range(3):
            sampled = sampler.sample(logits.to(device), seats)
            sampler.accept(seats, sampled.token_ids)
            chosen.append(sampled.to_host().token_ids)
    assert chosen[:3] == chosen[3:]


def test_random_bits_are_the_same_bits() -> None:
    keys = torch.randint(-(2**31), 2**31 - 1, (3, 2), dtype=torch.int32)
    on_cpu = random_bits(keys, scramble_token_ids(torch.arange(300_000)))
    on_gpu = random_bits(keys.to(GPU), scramble_token_ids(torch.arange(300_000, device=GPU)))
    assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [262_144, 262_208, 5003])
@pytest.mark.parametrize("k", [1, 64, 1024])
def test_ties_are_broken_alike(dtype: torch.dtype, vocab_size: int, k: int) -> None:
    logits = torch.randn(4, vocab_size).mul_(4).bfloat16().to(dtype)
    on_gpu, on_cpu = top_candidates(logits.to(GPU), k), top_candidates(logits, k)
    assert torch.equal(on_gpu.token_ids.cpu(), on_cpu.token_ids)
    assert torch.equal(best_token(logits.to(GPU)).token_ids.cpu(), best_token(logits).token_ids)


def test_the_host_never_waits() -> None:
    """From the arrival of requests to their leaving."""
    requests = COMPANY
    sampler = Sampler(num_seats=len(requests), vocab_size=VOCAB_SIZE, device=GPU)
    logits = torch.randn(len(requests), VOCAB_SIZE, device=GPU)
    bitmask = torch.from_numpy(pack_token_ids(range(100), VOCAB_SIZE)).unsqueeze(0).to(GPU)
    seats = range(len(requests))
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the mode a prototype
            torch.cuda.set_sync_debug_mode("error")
        for seat, params in enumerate(requests):
            sampler.add_request(seat, params, [1, 2, 3], [4, 4, 5], eos_token_ids=[1])
        for _ in range(3):
            sampled = sampler.sample(logits, seats, grammar=GrammarMask(bitmask, [0]))
            sampler.accept(seats, sampled.token_ids)
            sampled.start_copy()
        for seat in seats:
            sampler.remove_request(seat)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_poisoned_row_is_flagged(poison: float) -> None:
    for request, params in enumerate(COMPANY):
        sampler = Sampler(num_seats=2, vocab_size=VOCAB_SIZE, device=GPU)
        sampler.add_request(0, params, [])
        sampler.add_request(1, params, [])
        logits = torch.stack([logits_of(request, 0)] * 2).to(GPU)
        logits[1, 777] = poison
        host = sampler.sample(logits, [0, 1]).to_host()
        assert host.faults == (None, Fault.NON_FINITE_LOGITS)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0},
        {"top_k": NARROW_LIMIT, "top_p": 0.95, "logprobs": 64},
        {"top_p": 0.95},
        {"top_k": 5000},
        {"min_p": 0.01},
        {
            "top_p": 0.9,
            "repetition_penalty": 1.1,
            "allowed_token_ids": list(range(0, 262_144, 2)),
            "logit_bias": {1: 2.0},
            "min_tokens": 3,
            "logprobs": 20,
            "max_tokens": None,
        },
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_stays_within_what_was_announced(settings: dict[str, Any], dtype: torch.dtype) -> None:
    num_rows, vocab_size, context_len = 128, 262_144, 8192
    torch.cuda.empty_cache()
    logits = torch.randn(num_rows, vocab_size, device=GPU).to(dtype)  # flat: the largest nuclei
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    sampler = Sampler(num_seats=num_rows, vocab_size=vocab_size, device=GPU)
    for seat in range(num_rows):
        sampler.add_request(seat, SamplingParams(**settings, seed=seat), range(context_len - 10), eos_token_ids=[1])
    for _ in range(3):
        sampled = sampler.sample(logits, range(num_rows))
        sampler.accept(range(num_rows), sampled.token_ids)
    taken = torch.cuda.max_memory_allocated() - before
    announced = max_device_bytes(num_seats=num_rows, vocab_size=vocab_size, context_len=context_len)
    print(f"{taken / 2**20:.0f} of {announced / 2**20:.0f} MiB: {str(settings)[:80]}")
    assert taken <= announced
