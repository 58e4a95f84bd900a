"""Log-probabilities and ranks of the model's own logits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from facet.sampling import prompt_logprobs
from facet.sampling_params import SamplingParams
from facet.token_logprobs import TokenLogprobs
from tests.sampling.builders import make_sampler, quantized_logits, sample_once
from tests.sampling.reference import log_softmax, ranked


def check_entry(entry: TokenLogprobs | None, logits: list[float], token_id: int, num_top: int) -> None:
    assert entry is not None
    logprobs, order = log_softmax(logits), ranked(logits)
    assert entry.token_ids == [token_id, *order[:num_top]]
    assert entry.logprobs == pytest.approx([logprobs[token] for token in entry.token_ids], abs=1e-5)
    assert entry.ranks == [order.index(token_id) + 1, *range(1, len(order[:num_top]) + 1)]


@given(
    logits=st.lists(quantized_logits(15), min_size=1, max_size=5),
    wanted=st.lists(st.sampled_from([None, 0, 1, 4, 15, -1]), min_size=5, max_size=5),
)
def test_sampled_tokens(logits: list[list[float]], wanted: list[int | None]) -> None:
    params = [SamplingParams(temperature=2.0, logprobs=k, top_k=9, seed=1) for k in wanted[: len(logits)]]
    result = sample_once(logits, params)
    for place, request in enumerate(params):
        token_id = result.token_ids[place]
        assert token_id is not None
        if request.logprobs is None:
            assert result.logprobs[place] is None
        else:
            num_top = 15 if request.logprobs == -1 else request.logprobs
            check_entry(result.logprobs[place], logits[place], token_id, num_top)


def test_requests_for_many_and_for_few_do_not_share_tensors() -> None:
    logits = torch.randn(4, 3000)
    params = [SamplingParams(temperature=0, logprobs=k) for k in (2, -1, 5, 100)]
    sampler = make_sampler(3000)
    for seat, request in enumerate(params):
        sampler.add_request(seat, request, [])
    sampled = sampler.sample(logits, range(4))
    assert sampled.logprobs is not None
    assert [part.token_ids.shape[1] for part in sampled.logprobs] == [1 + 5, 1 + 3000, 1 + 100]
    host = sampled.to_host()
    for place, num_top in enumerate((2, 3000, 5, 100)):
        check_entry(host.logprobs[place], logits[place].tolist(), int(logits[place].argmax()), num_top)


def test_named_tokens_beside_the_best() -> None:
    """Rows with named tokens, each with its own, between one with the best and one with none."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    logits[1, 7] = logits[1, 9]  # a tie: the lower id comes first
    named: list[list[int] | None] = [None, [9, 7, 9], [3], None]
    params = [SamplingParams(temperature=0, logprobs=2)] + [
        SamplingParams(temperature=0, logprob_token_ids=ids) for ids in named[1:]
    ]
    result = sample_once(logits, params)
    check_entry(result.logprobs[0], logits[0].tolist(), int(logits[0].argmax()), 2)
    assert result.logprobs[3] is None
    for place in (1, 2):
        entry, order = result.logprobs[place], ranked(logits[place].tolist())
        assert entry is not None
        assert entry.token_ids == [order[0], *(named[place] or [])]
        assert entry.ranks == [order.index(token) + 1 for token in entry.token_ids]
        expected = log_softmax(logits[place].tolist())
        assert entry.logprobs == pytest.approx([expected[token] for token in entry.token_ids], abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("neighbours", [0, 2])
def test_settings_of_the_request_do_not_show(dtype: torch.dtype, neighbours: int) -> None:
    """The bias makes token 3 win; its log-probability is still what the model said."""
    logits = torch.randn(1 + neighbours, 40).to(dtype)
    biased = SamplingParams(
        temperature=0, logprobs=3, logit_bias={3: 1000}, repetition_penalty=3.0, allowed_token_ids=[2, 3]
    )
    result = sample_once(logits, [SamplingParams(seed=0, logprobs=None)] * neighbours + [biased])
    assert result.token_ids[-1] == 3
    check_entry(result.logprobs[-1], logits[-1].tolist(), 3, 3)


@given(st.lists(quantized_logits(9), min_size=1, max_size=6), st.sampled_from([0, 1, 5, 9, -1]), st.data())
def test_prompt_tokens(logits: list[list[float]], num_top: int, data: st.DataObject) -> None:
    token_ids = data.draw(st.lists(st.integers(0, 8), min_size=len(logits), max_size=len(logits)))
    given_logits = torch.tensor(logits)
    found = prompt_logprobs(given_logits, torch.tensor(token_ids), num_top)
    assert torch.equal(given_logits, torch.tensor(logits)), "the logits are only read"
    for row, token_id, entry in zip(logits, token_ids, found.to_list(), strict=True):
        check_entry(entry, row, token_id, 9 if num_top == -1 else num_top)


def test_a_vocabulary_larger_than_a_part() -> None:
    logits = torch.randn(3, 300_000, generator=torch.Generator().manual_seed(0))
    found = prompt_logprobs(logits, torch.tensor([7, 299_999, 5]), 20).to_list()
    expected = logits.double().log_softmax(-1)
    for row, token_id in enumerate((7, 299_999, 5)):
        order = torch.sort(logits[row], descending=True, stable=True).indices
        assert found[row].token_ids == [token_id, *order[:20].tolist()]
        assert found[row].ranks[0] == order.tolist().index(token_id) + 1
        values = [float(expected[row, token]) for token in found[row].token_ids]
        assert found[row].logprobs == pytest.approx(values, abs=1e-5)


def test_masked_logits_have_no_probability() -> None:
    found = prompt_logprobs(torch.tensor([[0.0, -math.inf]]), torch.tensor([1]), 2).to_list()
    assert found == [TokenLogprobs([1, 0, 1], [-math.inf, 0.0, -math.inf], [2, 1, 2])]
