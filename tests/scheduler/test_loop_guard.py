"""The loop guard: every loop ends at the token that completes it, and nothing else does."""

import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import facet
from facet.repetition import LOOP_GUARD, LoopRule, RepetitionDetectionParams
from facet.request import FinishReason, Request
from facet.sampling_params import SamplingParams
from facet.scheduler.loop_guard import LoopGuard
from facet.tokens import Tokenizer
from tests.kv_cache.layouts import make_layout
from tests.scheduler.requests import Guesser, make_engine
from tests.scheduler.text_corpus import make_texts

LAYOUT = make_layout((8, 4), (None, 16))


def loop_end(token_ids: Sequence[int], rule: LoopRule, min_outputs: int = 0) -> int | None:
    """The length at which the output is a loop, written from the rule alone."""
    for length in range(max(1, min_outputs), len(token_ids) + 1):
        for cycle in range(rule.min_cycle, rule.max_cycle + 1):
            tail = token_ids[max(0, length - rule.num_tokens(cycle)) : length]
            if len(tail) == rule.num_tokens(cycle) and tail[cycle:] == tail[:-cycle]:
                return length
    return None


def guarded_end(token_ids: Sequence[int], guard: LoopGuard) -> int | None:
    outputs: list[int] = []
    for token_id in token_ids:
        outputs.append(token_id)
        if len(outputs) >= guard.due and guard.sees_loop(outputs):
            return len(outputs)
    return None


def looping(cycle: int, num_before: int, seed: int) -> list[int]:
    """Text, and then a cycle for longer than any rule. The cycle has no shorter one in it."""
    choose = random.Random(seed)
    pattern = [*choose.choices(range(50), k=cycle - 1), 99]
    return [*choose.choices(range(50), k=num_before), *pattern * (700 // cycle + 1)]


@pytest.mark.parametrize(("num_before", "phase"), [(0, 0), (1, 40), (97, 200), (500, 112), (113, 71)])
def test_every_cycle_ends_at_the_token_that_completes_it(num_before: int, phase: int) -> None:
    for cycle in range(1, 65):
        token_ids = looping(cycle, num_before, seed=cycle)
        length = guarded_end(token_ids, LoopGuard(LOOP_GUARD, phase=phase))
        assert length is not None
        # What stood before may have fitted the cycle by chance.
        assert num_before <= length - max(256, 8 * cycle) + 2 <= num_before + 2
        assert length == loop_end(token_ids[: length + 1], LOOP_GUARD, min_outputs=length - 1)


def test_longer_cycles_and_shorter_runs_go_on() -> None:
    assert guarded_end(looping(65, 10, seed=1) * 3, LoopGuard(LOOP_GUARD)) is None
    for cycle in (1, 7, 31, 33, 64):
        pattern = list(range(cycle))
        run = (pattern * 300)[: max(256, 8 * cycle) - 1]
        assert guarded_end([*run, 77, *run, 88, *run], LoopGuard(LOOP_GUARD)) is None


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 9)), max_size=8),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(2, 5),
    st.integers(0, 14),
    st.integers(0, 30),
    st.integers(0, 200),
)
def test_any_rule_on_any_text(
    parts: list[tuple[list[int], int]], first: int, more: int, times: int, length: int, min_outputs: int, phase: int
) -> None:
    rule = LoopRule(min_cycle=first, max_cycle=first + more, min_times=times, min_tokens=length)
    token_ids = [token_id for pattern, count in parts for token_id in pattern * count]
    guard = LoopGuard(rule, min_outputs=min_outputs, phase=phase)
    assert guarded_end(token_ids, guard) == loop_end(token_ids, rule, min_outputs)


def test_no_text_of_the_corpus_is_a_loop() -> None:
    tokenizer = Tokenizer.from_folder(Path(facet.__file__).parent / "bundled")
    num_tokens = 0
    for name, text in make_texts():
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        num_tokens += len(token_ids)
        for phase in (0, 50):
            assert guarded_end(token_ids, LoopGuard(LOOP_GUARD, phase=phase)) is None, name
        assert guarded_end([*token_ids, *token_ids[-9:] * 60], LoopGuard(LOOP_GUARD)) is not None, name
    assert num_tokens > 100_000


class Script:
    """A model that says the same whatever it is asked, and drafts for it that are mostly right."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._token_ids = token_ids

    def __call__(self, request: Request, token_ids: Sequence[int]) -> int:
        return self._token_ids[len(token_ids) - len(request.prompt_token_ids)]


def end_of(
    token_ids: Sequence[int], *, num_drafts: int = 0, num_blocks: int = 4000, **sampling: Any
) -> list[tuple[int, FinishReason]]:
    """How long the answers of two requests in company are, and why they ended."""
    script = Script(token_ids)
    requests = [
        Request(
            request_id=str(index),
            prompt_token_ids=(1, 2, index),
            sampling=SamplingParams(**{"max_tokens": 650, **sampling}),
            eos_token_ids=(7,),
        )
        for index in range(2)
    ]
    drafter = Guesser(lambda tokens: token_ids[len(tokens) - 3], max_num_drafts=num_drafts) if num_drafts else None
    engine = make_engine(
        LAYOUT,
        num_blocks=num_blocks,
        max_model_len=1024,
        overlapped=True,
        sample=script,
        checks_integrity=False,
        drafter=drafter,
    )
    for request in requests:
        engine.submit(request)
    engine.run()
    assert num_blocks == 4000 or engine.scheduler.stats().num_preemptions > 0
    assert all(outputs == token_ids[: len(outputs)] for outputs in engine.output_token_ids.values())
    return [(len(engine.output_token_ids[name]), engine.finish_reasons[name]) for name in "01"]


LOOP = [*range(100, 130), *[5, 6, 9] * 300]
END = 30 + 256
OWN_RULE = RepetitionDetectionParams(max_pattern_size=4, min_pattern_size=2, min_count=5)


@pytest.mark.parametrize("num_drafts", [0, 7])
def test_a_looping_answer_ends(num_drafts: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert end_of(LOOP, num_drafts=num_drafts) == [(END, "repetition")] * 2
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"{name}: ended after {END} tokens, the last of which repeat a cycle of 3 (--no-loop-guard lets it go on)"
        for name in "01"
    ]


def test_a_looping_answer_ends_though_it_gives_way() -> None:
    assert end_of(LOOP, num_blocks=34, max_tokens=300) == [(END, "repetition")] * 2


@pytest.mark.parametrize(
    ("sampling", "end"),
    [
        ({"ignore_eos": True}, (650, "length")),
        ({"loop_guard": False}, (650, "length")),
        ({"min_tokens": 400}, (400, "repetition")),
        ({"min_tokens": END}, (END, "repetition")),
        ({"max_tokens": END}, (END, "length")),
        ({"repetition_detection": OWN_RULE}, (45, "repetition")),
        ({"repetition_detection": OWN_RULE, "ignore_eos": True, "loop_guard": False}, (45, "repetition")),
        ({"repetition_detection": RepetitionDetectionParams()}, (650, "length")),
    ],
    ids=str,
)
def test_when_a_looping_answer_ends(sampling: dict[str, Any], end: tuple[int, FinishReason]) -> None:
    for num_drafts in (0, 5):
        assert end_of(LOOP, num_drafts=num_drafts, **sampling) == [end] * 2


def test_an_end_of_sequence_comes_first() -> None:
    token_ids = [*LOOP[: END - 1], 7, 1]
    assert end_of(token_ids) == [(END, "stop")] * 2


def test_vllms_sizes_mean_what_they_mean_there() -> None:
    assert RepetitionDetectionParams(max_pattern_size=3, min_count=4).rule == LoopRule(
        min_cycle=1, max_cycle=3, min_times=4, min_tokens=0
    )
    params = SamplingParams(repetition_detection=OWN_RULE)
    assert params.loop_rule == OWN_RULE.rule
    assert replace(params, repetition_detection=None).loop_rule == LOOP_GUARD
