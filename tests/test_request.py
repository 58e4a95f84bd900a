from dataclasses import FrozenInstanceError

import pytest

from facet.request import Request
from facet.sampling_params import SamplingParams


def test_a_request_cannot_be_changed_and_runs_at_normal_priority() -> None:
    request = Request(request_id="a", prompt_token_ids=(1, 2), sampling=SamplingParams())
    assert (request.priority, request.cache_salt, request.needs_sampled_token_on_host) == (0, None, False)
    with pytest.raises(FrozenInstanceError):
        request.priority = 1  # type: ignore[misc]
