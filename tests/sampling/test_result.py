"""From tensors to host values."""

import pytest
import torch

from facet.kernels.token_choice import Outcome
from facet.sampling import Fault, SampledTokens
from facet.sampling.logprobs import LogprobTensors
from facet.token_logprobs import TokenLogprobs


def test_faults_hide_the_number_that_stands_in_for_a_token() -> None:
    part = LogprobTensors(
        places=(0, 2),
        num_others=(1, 0),
        token_ids=torch.tensor([[5, 6], [7, 8]]),
        logprobs=torch.tensor([[-1.5, -0.5], [-2.0, -1.0]]),
        ranks=torch.tensor([[3], [2]]),
    )
    sampled = SampledTokens(
        token_ids=torch.tensor([5, 0, 7, 0]),
        is_finite=torch.tensor([True, False, True, True]),
        has_choice=torch.tensor([True, False, True, False]),
        logprobs=(part,),
    )
    host = sampled.start_copy().wait()
    assert host == sampled.to_host()
    assert host.token_ids == (5, None, 7, None)
    assert host.faults == (None, Fault.NON_FINITE_LOGITS, None, Fault.NOTHING_ALLOWED)
    assert host.logprobs == (
        TokenLogprobs([5, 6], [-1.5, -0.5], [3, 1]),
        None,
        TokenLogprobs([7], [-2.0], [2]),
        None,
    )


@pytest.mark.parametrize("num_rows", [1, 15, 16, 17])
def test_one_copy_of_the_storage_holds_tokens_and_flags(num_rows: int) -> None:
    outcome = Outcome.empty(num_rows, torch.device("cpu"))
    outcome.token_ids.copy_(torch.arange(num_rows) + 2**40)
    outcome.is_finite.copy_(torch.arange(num_rows) % 2 == 0)
    outcome.has_choice.copy_(torch.arange(num_rows) % 3 == 0)
    assert outcome.storage is not None
    copy = Outcome.within(outcome.storage.clone(), num_rows)
    outcome.storage.zero_()
    assert copy.token_ids.tolist() == [2**40 + row for row in range(num_rows)]
    assert copy.is_finite.tolist() == [row % 2 == 0 for row in range(num_rows)]
    assert copy.has_choice.tolist() == [row % 3 == 0 for row in range(num_rows)]
