"""R1: whatever else is in the batch, a request gets the answer it gets alone. Dead memory is NaN, so that a read of
it shows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from facet.engine.engine import Engine
from facet.kv_cache.accountant import need_of
from facet.kv_layout import make_kv_layout
from facet.model.gemma import Gemma
from facet.request import Request
from tests.engine.harness import Answer, alone, make_engine, mixed_requests, run
from tests.model.paged_model import load
from tests.tiny_models import SMALL_WINDOW_NAMES, TinyModel

NUM_REQUESTS = 20  # of each family its own: 140 between them
FIRST_SEED = 16  # with it, some of every family outgrow memory that is short
LOGPROB_TOLERANCE = 1e-4
PAD = 0

TinyModels = Callable[[str], TinyModel]


@dataclass(frozen=True)
class Setting:
    """How the engine is run."""

    chunk: int
    prefix_caching: bool
    overlapped: bool
    fast_prefill: bool
    is_short_of_memory: bool = False
    num_requests: int = NUM_REQUESTS
    graph_sizes: tuple[int, ...] = ()
    piece_sizes: tuple[int, ...] = ()

    def engine(self, model: Gemma, requests: list[Request]) -> Engine:
        layout = make_kv_layout(model.spec, dtype="float32", min_tokens_per_block=4)
        longest = max(len(request.prompt_token_ids) + (request.sampling.max_tokens or 0) for request in requests)
        enough_for_one_and_a_bit = 5 * need_of(layout, 0, num_tokens=longest).num_blocks // 4
        return make_engine(
            model,
            max_num_batched_tokens=self.chunk,
            enable_prefix_caching=self.prefix_caching,
            overlapped=self.overlapped,
            fast_prefill=self.fast_prefill,
            num_blocks=enough_for_one_and_a_bit if self.is_short_of_memory else 2000,
            graph_sizes=self.graph_sizes,
            piece_sizes=self.piece_sizes,
        )


SETTINGS = {
    # A few tokens a step take many steps: fewer requests.
    "chunk1": Setting(1, prefix_caching=True, overlapped=True, fast_prefill=True, num_requests=4),
    "chunk7_graphs": Setting(
        7, prefix_caching=False, overlapped=True, fast_prefill=True, num_requests=8, graph_sizes=(1, 3, 8)
    ),
    "chunk16_plain": Setting(16, prefix_caching=True, overlapped=False, fast_prefill=True),
    "chunk64_plain_all_rows": Setting(64, prefix_caching=False, overlapped=False, fast_prefill=False),
    "chunk512_all_rows_graphs": Setting(
        512, prefix_caching=True, overlapped=True, fast_prefill=False, graph_sizes=(5, 16), piece_sizes=(48, 300)
    ),
    "chunk512": Setting(512, prefix_caching=True, overlapped=True, fast_prefill=True),
    "preempting_graphs": Setting(
        64,
        prefix_caching=False,
        overlapped=True,
        fast_prefill=True,
        is_short_of_memory=True,
        graph_sizes=(2, 6),
        piece_sizes=(16, 70),
    ),
    "preempting_cached_plain": Setting(
        16, prefix_caching=True, overlapped=False, fast_prefill=True, is_short_of_memory=True
    ),
}
# In either half every switch is on in one setting and off in another. Families of one kind (layers that read others'
# keys; values that are keys) meet both halves between them.
HALVES = (
    ("chunk1", "chunk64_plain_all_rows", "chunk512", "preempting_graphs"),
    ("chunk7_graphs", "chunk16_plain", "chunk512_all_rows_graphs", "preempting_cached_plain"),
)
CASES = [(name, setting) for index, name in enumerate(SMALL_WINDOW_NAMES) for setting in HALVES[index % len(HALVES)]]


@pytest.fixture(scope="session")
def solo(tiny_model: TinyModels) -> Callable[[str], tuple[Gemma, list[Request], dict[str, Answer]]]:
    """Each request by itself, in an engine with nothing on that could matter."""

    @cache
    def get(name: str) -> tuple[Gemma, list[Request], dict[str, Answer]]:
        tiny = tiny_model(name)
        model = load(tiny.folder, max_model_len=512).model
        seed = FIRST_SEED + SMALL_WINDOW_NAMES.index(name)
        requests = mixed_requests(tiny.window, model.spec.vocab_size, count=NUM_REQUESTS, seed=seed)
        answers = {}
        engine = make_engine(model, enable_prefix_caching=False, overlapped=False, fast_prefill=False)
        for request in requests:
            answers |= run(engine, [alone(request)], check_every=1000)
        return model, requests, answers

    return get


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_alone_equals_together(
    name: str, setting: str, solo: Callable[[str], tuple[Gemma, list[Request], dict[str, Answer]]]
) -> None:
    model, requests, expected = solo(name)
    requests = requests[: SETTINGS[setting].num_requests]
    engine = SETTINGS[setting].engine(model, requests)
    arrivals = {request.request_id: 3 * index // 2 for index, request in enumerate(requests)}
    cancel_after = {request.request_id: 2 for request in requests if int(request.request_id) % 10 < 3}
    got = run(engine, requests, arrivals=arrivals, cancel_after=cancel_after)
    assert_all_same(requests, got, expected)
    stats = engine.stats()
    assert stats.num_corrupted_requests == 0
    if SETTINGS[setting].is_short_of_memory:
        assert stats.scheduler.num_preemptions > 0
    if setting.startswith("chunk512"):
        assert stats.scheduler.cache.num_prompt_tokens_hit > 0


def assert_all_same(requests: list[Request], got: dict[str, Answer], expected: dict[str, Answer]) -> None:
    num_different_samples = 0
    for request in requests:
        ours, theirs = got[request.request_id], expected[request.request_id]
        if request.sampling.is_greedy:
            assert_same(request, ours, theirs)
        else:
            num_different_samples += ours.token_ids != theirs.token_ids[: len(ours.token_ids)]
    # Rounding of 1e-4 on the logits may tip one draw in some thousands.
    assert num_different_samples <= 1


def assert_same(request: Request, got: Answer, expected: Answer) -> None:
    """The same tokens with the same log-probabilities, up to where the two likeliest tokens tie in float32."""
    assert got.error is None
    if got.finish_reason == "abort":
        assert len(got.token_ids) == 2
    else:
        assert (got.finish_reason, len(got.token_ids)) == (expected.finish_reason, len(expected.token_ids))
    for index, (token, logprobs) in enumerate(zip(got.token_ids, got.logprobs, strict=True)):
        reference = expected.logprobs[index]
        if token != expected.token_ids[index]:
            best, second = reference.logprobs[1:3]
            assert best - second < 2 * LOGPROB_TOLERANCE, f"request {request.request_id} differs at {index}"
            return
        assert abs(logprobs.logprobs[0] - reference.logprobs[0]) <= LOGPROB_TOLERANCE * max(
            1, abs(reference.logprobs[0])
        )
        assert token != PAD or reference.token_ids[0] == PAD
    if request.sampling.prompt_logprobs is not None and got.finish_reason != "abort":
        assert len(got.prompt_logprobs) == len(request.prompt_token_ids) - 1
        for ours, theirs in zip(got.prompt_logprobs, expected.prompt_logprobs, strict=True):
            assert abs(ours.logprobs[0] - theirs.logprobs[0]) <= 2 * LOGPROB_TOLERANCE * max(1, abs(theirs.logprobs[0]))
