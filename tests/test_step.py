import numpy as np

from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.step import Admission, NewBlocks, StepPlan


def test_a_preempted_request_returns_with_its_output_behind_its_prompt() -> None:
    request = Request(request_id="a", prompt_token_ids=(1, 2), sampling=SamplingParams())
    admission = Admission(seat=0, request=request, output_token_ids=(3,), num_computed_tokens=0, tables=())
    assert admission.token_ids == (1, 2, 3)


def test_a_plan_counts_the_tokens_of_all_entries() -> None:
    nothing = np.zeros(0, np.int32)
    plan = StepPlan(
        step=1,
        released_seats=(),
        admissions=(),
        freed_blocks=nothing,
        page_copies=nothing.reshape(0, 2),
        new_blocks=NewBlocks(seats=nothing, groups=nothing, indices=nothing, block_ids=nothing),
        seats=np.array([4, 2], np.int32),
        request_numbers=np.array([1, 2]),
        num_computed=np.array([9, 0], np.int32),
        num_scheduled=np.array([1, 7], np.int32),
        num_drafts=np.zeros(2, np.int32),
        samples=np.array([True, False]),
        num_logit_rows=np.array([1, 0], np.int32),
        draft_token_ids=np.zeros(0, np.int64),
    )
    assert plan.num_tokens == 8
    assert len(plan.new_blocks) == 0
