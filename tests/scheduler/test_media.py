"""Media in prompts: what attends both ways is computed in one step, whatever budget, memory and cache say."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facet.errors import CapacityError, RequestError
from facet.media_span import MediaSpan
from tests.kv_cache.layouts import make_layout
from tests.media_spans import encoded, prompt_of, segments, spans_at
from tests.scheduler.fake_runner import FakeEngine
from tests.scheduler.requests import Guesser, alone, continuation, make_engine, make_request

LAYOUT = make_layout((8, 4), (None, 10))
NO_WINDOW_LEFT_BEHIND = make_layout((500, 4), (None, 8))
LAYOUTS = [LAYOUT, NO_WINDOW_LEFT_BEHIND, make_layout((13, 5), (None, 7)), make_layout((9, 4))]
MAX_MODEL_LEN = 130


def chunks(engine: FakeEngine) -> list[list[int]]:
    """What every step until the end schedules, of entries with more than a token."""
    steps = []
    while engine.scheduler.has_requests:
        scheduled = engine.scheduler.plan().entries.num_scheduled
        steps.append(sorted(scheduled[scheduled > 1].tolist()))
        engine.step()
    return [step for step in steps if step]


def engine_with(budget: int, *media: tuple[MediaSpan, ...], num_tokens: int = 60, num_blocks: int = 200) -> FakeEngine:
    engine = make_engine(LAYOUT, num_blocks=num_blocks, max_num_batched_tokens=budget, enable_prefix_caching=False)
    for index, spans in enumerate(media):
        engine.submit(make_request(str(index), [index] * num_tokens, max_tokens=1, media=spans))
    return engine


@pytest.mark.parametrize(
    ("budget", "spans", "expected"),
    [
        (20, spans_at((15, 30)), [15, 20, 20, 5]),  # ends before it, then goes on behind it
        (20, spans_at((15, 30), both_ways=False), [20, 20, 20]),
        (20, spans_at((0, 20), (20, 40), (40, 60)), [20, 20, 20]),
        (20, spans_at((10, 25), (25, 35), (35, 55)), [10, 15, 10, 20, 5]),
        (20, spans_at((5, 20), (20, 39), (39, 58)), [20, 19, 20]),
        (4, spans_at((54, 58)), [4] * 13 + [2, 4, 2]),  # as long as the budget
    ],
)
def test_where_chunks_end(budget: int, spans: tuple[MediaSpan, ...], expected: list[int]) -> None:
    assert [count for step in chunks(engine_with(budget, spans)) for count in step] == expected


def test_a_span_waits_until_it_fits_into_what_others_leave() -> None:
    """The second request's picture of 15 does not fit beside the 10 tokens that the first still wants."""
    engine = engine_with(20, (), spans_at((0, 15)), num_tokens=50)
    assert chunks(engine) == [[20], [20], [10], [20], [20], [10]]


@pytest.mark.parametrize(
    ("budget", "num_blocks", "error", "words"),
    [
        (54, 200, RequestError, r"picture of 55 tokens.*but a step computes 54\..*--max-num-batched-tokens 55\."),
        (55, 18, CapacityError, r"picture of 55 tokens.*one step, and then needs 21 cache blocks, but there are 17\."),
    ],
)
def test_what_can_never_be_computed_in_one_step_is_refused_with_the_numbers(
    budget: int, num_blocks: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        engine_with(budget, spans_at((0, 55)), num_blocks=num_blocks)
    assert chunks(engine_with(budget, spans_at((0, 55), both_ways=False), num_blocks=num_blocks))


def assert_the_first_in_line_goes_on(engine: FakeEngine) -> None:
    view, scheduled = engine.scheduler.queues.view(), engine.scheduler.plan().entries.seats
    first = view.order[:1]
    is_in_its_prompt = view.seats.num_tokens[first] - view.seats.num_computed[first] > 1
    assert not is_in_its_prompt.any() or first in scheduled


@pytest.mark.parametrize("ordered_on_one_stream", [True, False])
def test_for_a_whole_span_others_give_way_as_for_a_token(ordered_on_one_stream: bool) -> None:
    """Beside two requests with pictures others grow: for a whole span, whoever stands behind gives way. It waits for
    those in front, and for blocks that steps in flight still touch; but it is never cut.
    """
    choose, num_preemptions = random.Random(0), 0
    for _ in range(10):
        engine = make_engine(
            LAYOUT,
            num_blocks=choose.randrange(32, 42),
            max_num_batched_tokens=20,
            max_num_seqs=6,
            enable_prefix_caching=False,
            overlapped=True,
            ordered_on_one_stream=ordered_on_one_stream,
        )
        for index in range(choose.randrange(2, 5)):
            engine.submit(make_request(f"grows {index}", [index] * 2, max_tokens=60, ignore_eos=True, priority=1))
        engine.step()
        pictures = spans_at(*((first, first + 15) for first in range(0, 150, 15)))
        engine.submit(make_request("pictures", [8] * 150, max_tokens=1, media=pictures, priority=-1))
        priority = choose.choice([0, 2])
        engine.submit(make_request("picture", [9] * 25, max_tokens=1, media=spans_at((5, 25)), priority=priority))
        while "picture" not in engine.finish_reasons:
            if ordered_on_one_stream:
                assert_the_first_in_line_goes_on(engine)
            engine.step()
        engine.run()
        num_preemptions += engine.scheduler.stats().num_preemptions
    assert num_preemptions > 2


def test_prompt_logits_that_were_delivered_cut_no_span_when_a_request_comes_back() -> None:
    """Its last picture ends with the prompt, whose last position has no logits to deliver."""
    engine = make_engine(LAYOUT, num_blocks=20, max_num_seqs=3, enable_prefix_caching=False)
    for index in range(3):
        request = make_request(
            str(index), [index] * 15, max_tokens=50, ignore_eos=True, prompt_logprobs=1, media=spans_at((5, 15))
        )
        engine.submit(request)
    engine.run()
    assert engine.scheduler.stats().num_preemptions > 0
    assert all(positions == list(range(14)) for positions in engine.prompt_logprobs.values())


def test_the_second_question_about_a_picture_computes_neither_it_nor_what_stands_before_it() -> None:
    engine = make_engine(NO_WINDOW_LEFT_BEHIND, num_blocks=200)
    picture, other = spans_at((20, 60)), spans_at((20, 60), key="other")
    for name, media in (("first", picture), ("again", picture), ("other", other)):
        engine.submit(make_request(name, [5] * 80, max_tokens=2, media=media, ignore_eos=True))
        engine.run()
    assert engine.num_cached_tokens == {"first": 0, "again": 79, "other": 16}


def test_a_step_encodes_so_many_rows_and_a_prompt_is_computed_up_to_what_waits() -> None:
    """Pictures of 20, 20 and 30 rows, of which a step encodes 45 at most; somebody else's tokens come in every step."""
    engine = make_engine(
        LAYOUT, num_blocks=200, num_encoder_rows=60, max_num_encoded_rows=45, enable_prefix_caching=False
    )
    engine.submit(make_request("streams", [1], max_tokens=9, ignore_eos=True))
    engine.step()
    pictures = spans_at((2, 22), (22, 42), both_ways=False)
    engine.submit(make_request("two", [2] * 50, max_tokens=1, **encoded(pictures)))
    engine.submit(make_request("third", [3] * 40, max_tokens=1, **encoded(spans_at((5, 35), key="third"))))
    num_streamed = len(engine.output_token_ids["streams"])
    assert sorted(engine.scheduler.plan().entries.num_scheduled.tolist()) == [1, 5, 50]
    for _ in range(3):
        engine.step()
    assert [len(keys) for keys in engine.runner.encoded] == [2, 1]
    assert len(engine.output_token_ids["streams"]) == num_streamed + 3
    # The first of the two was forgotten to make room for the third, the second was not.
    engine.submit(make_request("again", [4] * 50, max_tokens=1, **encoded(pictures)))
    engine.run()
    assert engine.runner.encoded[2:] == [(encoded(pictures)["media"][0].content_key,)]


def test_media_that_the_encoder_cache_cannot_hold_are_refused() -> None:
    engine = make_engine(LAYOUT, num_blocks=200, num_encoder_rows=19, max_num_encoded_rows=5)
    with pytest.raises(RequestError, match=r"media of 20 tokens, but the encoder cache has room for 19\."):
        engine.submit(make_request("large", [1] * 30, **encoded(spans_at((2, 22)))))
    engine.submit(make_request("alone", [1] * 30, max_tokens=1, **encoded(spans_at((2, 21)))))
    engine.run()
    assert len(engine.runner.encoded) == 1


@settings(max_examples=60)
@given(st.data())
def test_any_spans_budget_memory_and_cache(data: st.DataObject) -> None:
    """Nothing is cut, every read is right, every block is accounted for, and every request gets what it gets alone."""
    engine = make_engine(
        data.draw(st.sampled_from(LAYOUTS)),
        num_blocks=data.draw(st.integers(16, 60)),
        max_num_batched_tokens=data.draw(st.integers(10, 40)),
        max_num_seqs=data.draw(st.integers(1, 4)),
        max_model_len=MAX_MODEL_LEN,
        overlapped=data.draw(st.booleans()),
        drafter=data.draw(st.sampled_from([None, Guesser(continuation, max_num_drafts=3)])),
        num_encoder_rows=data.draw(st.integers(20, 60)),
        max_num_encoded_rows=data.draw(st.integers(1, 40)),
    )
    shared, requests = data.draw(segments()), []
    for index in range(data.draw(st.integers(1, 6))):
        token_ids, media = prompt_of([*shared, *data.draw(segments(max_segments=3))])
        if 0 < len(token_ids) < MAX_MODEL_LEN - 8:
            logprobs = data.draw(st.sampled_from([None, None, 1]))
            fields = data.draw(st.sampled_from([{"media": media}, encoded(media)]))
            requests.append(make_request(str(index), token_ids, max_tokens=5, prompt_logprobs=logprobs, **fields))
    submitted = []
    for request in requests:
        try:
            engine.submit(request)
        except (CapacityError, RequestError):
            continue
        submitted.append(request)
        for _ in range(data.draw(st.integers(0, 3))):
            engine.step()
    engine.run()
    for request in submitted:
        expected = alone(request, MAX_MODEL_LEN)
        assert (engine.output_token_ids[request.request_id], engine.finish_reasons[request.request_id]) == expected
    assert engine.scheduler.stats().cache.num_blocks_in_tables == 0
