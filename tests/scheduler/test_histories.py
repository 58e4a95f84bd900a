"""Random histories: whatever comes and goes, every read is right, every block is accounted for, every request ends."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from facet.errors import CapacityError
from facet.media_span import MediaSpan
from facet.request import Request
from facet.scheduler import time_left
from tests.kv_cache.layouts import make_layout
from tests.scheduler.requests import (
    VOCAB_SIZE,
    Guesser,
    UnseenGuesser,
    alone,
    continuation,
    make_engine,
    make_request,
    sample,
)

LAYOUTS = {
    "as 31B": make_layout((8, 4), (None, 20)),
    "as E4B": make_layout((6, 4), (None, 10)),
    "blocks of the same size": make_layout((8, 4), (None, 4)),
    "window ends inside a block": make_layout((13, 5), (None, 7)),
    "window of one": make_layout((1, 3), (None, 4)),
    "global only": make_layout((None, 6)),
    "sliding only": make_layout((9, 4)),
    "window larger than any request": make_layout((500, 4), (None, 8)),
}
MAX_MODEL_LEN = 90
# Prompts begin with a part of one of these, so that prefixes are shared.
DOCUMENTS = [[(7 * i + d * i * i) % VOCAB_SIZE for i in range(MAX_MODEL_LEN)] for d in range(3)]
# Parts of them that may be media, of one content or another: (first, length, attends both ways).
SPANS = [(0, 2, True), (5, 9, True), (14, 3, False), (17, 1, True), (20, 18, True), (40, 25, False), (65, 5, True)]


def media_of(contents: str, num_tokens: int) -> tuple[MediaSpan, ...]:
    """Where contents has a letter rather than a dash, the span of that place has it."""
    return tuple(
        MediaSpan(first=first, length=length, kind="image", content_key=letter, attends_both_ways=both_ways)
        for letter, (first, length, both_ways) in zip(contents, SPANS, strict=True)
        if letter != "-" and first + length <= num_tokens
    )


def sample_or_fail(request: Request, token_ids: Any) -> int | None:
    """Requests named so fail when they have this many tokens."""
    if request.request_id.startswith("fails") and len(token_ids) % 5 == 0:
        return None
    return sample(request, token_ids)


@pytest.fixture(autouse=True)
def chunks_may_be_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are short here, and are to be cut by time all the same."""
    monkeypatch.setattr(time_left, "LEAST_ROWS", 3)


class History(RuleBasedStateMachine):
    @initialize(
        layout=st.sampled_from(sorted(LAYOUTS)),
        num_blocks=st.integers(14, 40),
        max_num_seqs=st.integers(1, 5),
        max_num_batched_tokens=st.sampled_from([1, 2, 7, 16, 64]),
        max_in_flight=st.sampled_from([0, 1, 1, 2]),
        ordered_on_one_stream=st.booleans(),
        enable_prefix_caching=st.sampled_from([True, True, True, False]),
        max_num_drafts=st.sampled_from([0, 0, 1, 3, 9]),
        max_num_rows_ahead=st.sampled_from([0, 4, 1000, 1000]),
        max_step_seconds=st.sampled_from([None, None, 1e-3, 12.0]),
        seed=st.integers(0, 1000),
    )
    def start(self, layout: str, max_num_drafts: int, seed: int, **options: Any) -> None:
        kind = UnseenGuesser if options["max_num_rows_ahead"] else Guesser
        drafter = kind(continuation, max_num_drafts=max_num_drafts, seed=seed) if max_num_drafts else None
        self.some_wait = seed % 2 == 0  # no step is ahead while they run
        self.engine = make_engine(
            LAYOUTS[layout], max_model_len=MAX_MODEL_LEN, sample=sample_or_fail, drafter=drafter, **options
        )
        self.requests: dict[str, Request] = {}
        self.caches_prefixes = options["enable_prefix_caching"]

    @rule(
        document=st.sampled_from(DOCUMENTS),
        num_shared=st.integers(0, 70),
        own=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=15),
        max_tokens=st.sampled_from([None, 1, 2, 5, 20]),
        min_tokens=st.integers(0, 1),
        ignore_eos=st.booleans(),
        stop_token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=1),
        prompt_logprobs=st.sampled_from([None, None, None, 1]),
        priority=st.sampled_from([0, 0, 1]),
        arrival_time=st.integers(0, 3),
        cache_salt=st.sampled_from([None, None, "salt"]),
        needs_sampled_token_on_host=st.sampled_from([False, False, True]),
        fails=st.sampled_from([False] * 9 + [True]),
        contents=st.sampled_from(["-------", "-------", "aaaaaaa", "aaaabaa", "-a-a-a-", "-aa-ab-", "a---a--"]),
    )
    def submit(
        self, document: list[int], num_shared: int, own: list[int], fails: bool, contents: str, **fields: Any
    ) -> None:
        request_id = f"{'fails' if fails else 'request'} {len(self.requests)}"
        if not self.some_wait:
            fields["needs_sampled_token_on_host"] = False
        prompt = document[:num_shared] + own
        request = make_request(request_id, prompt, media=media_of(contents, len(prompt)), **fields)
        self.try_to_submit(request)

    def try_to_submit(self, request: Request) -> None:
        if request.sampling.max_tokens is not None:
            assert len(request.prompt_token_ids) + request.sampling.max_tokens > 0
        try:
            self.engine.submit(request)
        except (CapacityError, ValueError):
            return
        self.requests[request.request_id] = request

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data())
    def continue_a_chat(self, data: st.DataObject) -> None:
        """The next turn: an earlier prompt, its reply, and something new."""
        earlier = data.draw(st.sampled_from(sorted(self.requests)))
        reply, media = self.engine.output_token_ids[earlier], self.requests[earlier].media
        prompt = [*self.requests[earlier].prompt_token_ids, *reply, 1, 2, 3, 5]
        if len(prompt) < MAX_MODEL_LEN - 4:
            self.try_to_submit(make_request(f"turn {len(self.requests)}", prompt, max_tokens=4, media=media))

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.engine.cancel(data.draw(st.sampled_from(sorted(self.requests))))

    @precondition(lambda self: bool(self.requests))
    @rule(data=st.data())
    def cancel_between_launch_and_settle(self, data: st.DataObject) -> None:
        self.engine.step(cancel_in_flight=data.draw(st.sampled_from(sorted(self.requests))))

    @rule(num_steps=st.integers(1, 6))
    def run_steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.engine.step()

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.run(max_num_steps=20_000)
        for request_id, request in self.requests.items():
            outputs, reason = alone(request, MAX_MODEL_LEN, sample_or_fail)
            heard = self.engine.output_token_ids[request_id]
            if self.engine.finish_reasons[request_id] == "abort":
                assert heard == outputs[: len(heard)]
                continue
            assert (heard, self.engine.finish_reasons[request_id]) == (outputs, reason)
            if request.sampling.prompt_logprobs is not None:
                num_positions = len(request.prompt_token_ids) - 1
                assert self.engine.prompt_logprobs[request_id] == list(range(num_positions))
                assert self.engine.num_cached_tokens[request_id] == 0
        stats = self.engine.scheduler.stats()
        assert stats.num_running == stats.num_waiting == stats.cache.num_blocks_in_tables == 0
        if not self.caches_prefixes:
            assert stats.cache.num_blocks_cached == 0


History.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestHistory = History.TestCase
