"""Plans and masks as bytes: what arrives is what was sent."""

from dataclasses import fields, is_dataclass, replace
from timeit import repeat
from typing import Any

import numpy as np
import pytest

from facet.engine.step_codec import decode_masks, decode_plan, encode_masks, encode_plan
from facet.grammar_spec import GrammarSpec
from facet.request import Request
from facet.sampling_params import SamplingParams
from facet.step import Admission, NewBlocks, StepMasks, StepPlan, TableSlice
from facet.thoughts import ThoughtTokens
from tests.media_spans import spans_at

NOTHING = np.zeros(0, np.int32)


def decode_step(num_requests: int) -> StepPlan:
    """What most steps are: one token for everybody, a few new blocks."""
    count = num_requests // 16
    new = np.arange(count, dtype=np.int32)
    return StepPlan(
        step=7,
        released_seats=(),
        admissions=(),
        freed_blocks=new + 500,
        page_copies=NOTHING.reshape(0, 2),
        new_blocks=NewBlocks(seats=new, groups=new % 2, indices=new + 9, block_ids=new + 100),
        seats=np.arange(num_requests, dtype=np.int32)[::-1],
        request_numbers=np.arange(num_requests) + 2**40,
        num_computed=np.arange(num_requests, dtype=np.int32) * 1000,
        num_scheduled=np.ones(num_requests, np.int32),
        num_drafts=np.zeros(num_requests, np.int32),
        samples=np.ones(num_requests, np.bool_),
        num_logit_rows=np.ones(num_requests, np.int32),
        draft_token_ids=np.zeros(0, np.int64),
    )


def everything() -> StepPlan:
    request = Request(
        request_id="a",
        prompt_token_ids=tuple(range(300)),
        sampling=SamplingParams(
            logit_bias={3: 1.5}, stop_token_ids=(4,), seed=2**63 - 1, bad_words_token_ids=((1, 2),)
        ),
        eos_token_ids=(1, 106),
        cache_salt="salt",
        grammar=GrammarSpec(kind="choice", sources=("yes", "no")),
        thought=ThoughtTokens(open_id=100, close_id=101, turn_end_ids=(1, 106), is_open=True),
        media=(*spans_at((3, 9), (9, 260)), *spans_at((270, 280), both_ways=False)),
    )
    tables = (TableSlice(3, np.array([5, 6], np.int32)), TableSlice(0, NOTHING))
    admissions = (
        Admission(seat=0, request=request, output_token_ids=(8, 9), num_computed_tokens=256, tables=tables),
        Admission(
            seat=1,
            request=replace(request, grammar=None),
            output_token_ids=(),
            num_computed_tokens=0,
            tables=(TableSlice(0, NOTHING),) * 2,
        ),
    )
    return replace(
        decode_step(40),
        released_seats=(3, 0),
        admissions=admissions,
        page_copies=np.array([[1, 2], [3, 4]], np.int32),
        num_drafts=np.arange(40, dtype=np.int32) % 3,
        draft_token_ids=np.arange(39),
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    if is_dataclass(one):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("plan", [decode_step(100), everything()], ids=["decode", "everything"])
def test_a_plan_arrives_as_it_was_sent(plan: StepPlan) -> None:
    assert same(decode_plan(encode_plan(plan)), plan)


def test_masks_arrive_as_they_were_sent() -> None:
    masks = StepMasks(bitmask=np.arange(-9, 9, dtype=np.int32).reshape(2, 9), places=(0, 7), only_after=(None, 262_143))
    assert same(decode_masks(encode_masks(masks)), masks)
    assert decode_masks(encode_masks(None)) is None


def test_a_step_of_a_hundred_requests_takes_microseconds() -> None:
    plan = decode_step(100)
    message = encode_plan(plan)
    encoding, decoding = (
        min(repeat(work, number=100, repeat=20)) / 100 * 1e6
        for work in (lambda: encode_plan(plan), lambda: decode_plan(message))
    )
    print(f"{len(message)} bytes, encoded in {encoding:.0f} µs, decoded in {decoding:.0f} µs")
    assert encoding + decoding < 1000, "far from microseconds"
