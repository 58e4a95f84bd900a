"""Made-up media through the engine: against transformers and its masks, alone and in company, cut and uncut.

No pictures yet: placeholder tokens are embedded as what they are, so that only who sees whom differs from text.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from facet.config import ModelConfig
from facet.errors import RequestError
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.kv_cache.accountant import need_of
from facet.media_span import MediaSpan
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.request import Request
from facet.sampling_params import WHOLE_VOCABULARY, SamplingParams
from facet.token_logprobs import TokenLogprobs
from tests.engine.harness import Answer, Rememberer, alone, kv_layout, make_engine, mixed_requests, run
from tests.engine.test_alone_equals_together import assert_all_same
from tests.media_spans import spans_at
from tests.tiny_models import TinyModel

TinyModels = Callable[[str], TinyModel]
Solo = Callable[[str, Arithmetic], tuple[Gemma, list[Request], dict[str, Answer]]]

NAMES = ("gemma3_small", "gemma4_31b_small", "gemma4_26b_a4b_small", "gemma4_12b_small")
# Windows have 6 tokens: spans shorter and longer than one, at the very end, and sounds between and beside them.
SPANS = (
    *spans_at((2, 8)),
    *spans_at((8, 10), both_ways=False, key="sound"),
    *spans_at((10, 12), (13, 31), key="more"),
    *spans_at((33, 40), both_ways=False, key="sound"),
    *spans_at((40, 45), key="last"),
)
NUM_TOKENS = 45
LOGPROB_TOLERANCE = 5e-4
TEXT, IMAGE, AUDIO = 0, 1, 3  # what transformers calls the kinds of tokens


def load_with_media(tiny: TinyModel, arithmetic: Arithmetic = USUAL) -> Gemma:
    config = ModelConfig(model=str(tiny.folder), device="cpu", max_model_len=512)
    model = load_model(config, arithmetic=arithmetic).model
    if tiny.name == "gemma3_small":  # a checkpoint of text alone, whose config names no pictures
        model.spec = replace(model.spec, bidirectional_image_layers=("sliding", "global"))
    return model


def token_types(num_tokens: int, spans: Sequence[MediaSpan]) -> torch.Tensor:
    types = torch.full((1, num_tokens), TEXT)
    for span in spans:
        types[0, span.first : span.end] = IMAGE if span.attends_both_ways else AUDIO
    return types


@torch.no_grad()
def oracle_logprobs(tiny: TinyModel, token_ids: list[int], spans: Sequence[MediaSpan]) -> torch.Tensor:
    """Of every position, by transformers. A model of text takes the masks that the model around it would make."""
    from transformers.models.gemma3 import modeling_gemma3
    from transformers.models.gemma4 import modeling_gemma4

    input_ids, types = torch.tensor([token_ids]), token_types(len(token_ids), spans)
    if "text_config" in tiny.config:
        logits = tiny.oracle(input_ids, mm_token_type_ids=types, use_cache=False).logits[0]
    else:
        modeling: Any = modeling_gemma3 if tiny.name.startswith("gemma3") else modeling_gemma4
        masks = modeling.create_masks_for_vision_model(
            config=tiny.oracle.config,
            inputs_embeds=tiny.oracle.get_input_embeddings()(input_ids),
            attention_mask=None,
            past_key_values=None,
            position_ids=torch.arange(len(token_ids))[None],
            block_sequence_ids=modeling.get_block_sequence_ids_for_mask(types, input_ids.device),
        )
        logits = tiny.oracle(input_ids, attention_mask=masks, use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def request_with(token_ids: list[int], spans: tuple[MediaSpan, ...], **sampling: Any) -> Request:
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, **sampling)
    return Request(request_id="x", prompt_token_ids=tuple(token_ids), sampling=params, media=spans)


def distribution(entry: TokenLogprobs, vocab_size: int) -> torch.Tensor:
    found = torch.full((vocab_size,), torch.nan)
    found[torch.tensor(entry.token_ids)] = torch.tensor(entry.logprobs)
    return found


def assert_close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Relative to what is larger than 1: float32 sums in another order."""
    assert ours.shape == expected.shape
    assert ((ours - expected).abs() / expected.abs().clamp(min=1)).max() <= LOGPROB_TOLERANCE


@pytest.mark.parametrize("name", [*NAMES, "gemma4_31b_mm"])
def test_every_position_sees_what_transformers_lets_it_see(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    model, token_ids = load_with_media(tiny), tiny.prompt(NUM_TOKENS)
    expected = oracle_logprobs(tiny, token_ids, SPANS)
    assert (expected - oracle_logprobs(tiny, token_ids, ())).abs().max() > 0.1, "the masks must matter"
    for budget in (512, 18):
        engine = make_engine(model, max_num_batched_tokens=budget)
        asked = request_with(token_ids, SPANS, prompt_logprobs=WHOLE_VOCABULARY, logprobs=WHOLE_VOCABULARY)
        answer = run(engine, [asked])["x"]
        entries = [*answer.prompt_logprobs, *answer.logprobs]
        assert_close(torch.stack([distribution(entry, model.spec.vocab_size) for entry in entries]), expected)


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_skip_layers_change_nothing(name: str, tiny_model: TinyModels) -> None:
    """The prompt ends with a picture, or with text behind it; its other rows stop at their last keys."""
    tiny = tiny_model(name)
    model, token_ids = load_with_media(tiny), tiny.prompt(NUM_TOKENS + 2)
    options: list[dict[str, Any]] = [{}, dict(fast_prefill=False), dict(max_num_batched_tokens=18, graph_sizes=(1, 2))]
    for count in (NUM_TOKENS, NUM_TOKENS + 2):
        expected = oracle_logprobs(tiny, token_ids[:count], SPANS)[-1]
        for chosen in options:
            asked = request_with(token_ids[:count], SPANS, logprobs=WHOLE_VOCABULARY)
            (entry,) = run(make_engine(model, **chosen), [asked])["x"].logprobs
            assert_close(distribution(entry, model.spec.vocab_size), expected)


def with_media(requests: list[Request]) -> list[Request]:
    """Most of them with some spans: of few contents and at few places, so that prefixes are shared."""
    choose, changed = random.Random(1), []
    for request in requests:
        bounds, first = [], choose.choice([1, 4])
        while first + 11 < len(request.prompt_token_ids) and len(bounds) < 6:
            length = choose.choice([2, 5, 11])
            bounds.append((first, first + length))
            first += length + choose.choice([0, 0, 3])
        if bounds and choose.random() < 0.8:
            both_ways = choose.random() < 0.8
            request = replace(request, media=spans_at(*bounds, both_ways=both_ways, key=choose.choice("ab")))
        changed.append(request)
    return changed


@pytest.fixture(scope="module")
def solo(tiny_model: TinyModels) -> Solo:
    """Each request by itself: its prompt in one chunk, nothing found, nothing put back."""

    @cache
    def get(name: str, arithmetic: Arithmetic) -> tuple[Gemma, list[Request], dict[str, Answer]]:
        tiny = tiny_model(name)
        model = load_with_media(tiny, arithmetic)
        requests = with_media(mixed_requests(tiny.window, model.spec.vocab_size, count=12, seed=3))
        engine = make_engine(model, enable_prefix_caching=False, overlapped=False, fast_prefill=False)
        answers = {}
        for request in requests:
            answers |= run(engine, [alone(request)], check_every=1000)
        return model, requests, answers

    return get


def little_memory(model: Gemma, requests: list[Request]) -> int:
    """Blocks for one and a half of the longest request."""
    longest = max(len(request.prompt_token_ids) + (request.sampling.max_tokens or 0) for request in requests)
    return 3 * need_of(kv_layout(model), 0, num_tokens=longest, num_in_flight=11).num_blocks // 2


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("gemma3_small", "chunks"),
        ("gemma4_31b_small", "little memory"),
        ("gemma3_small", "captured"),
        ("gemma4_31b_small", "drafts"),
    ],
)
def test_alone_equals_together(name: str, setting: str, solo: Solo) -> None:
    model, requests, expected = solo(name, USUAL)
    drafter = Rememberer(requests, expected, model.spec.vocab_size, seed=1)
    options: dict[str, dict[str, Any]] = {
        "chunks": dict(max_num_batched_tokens=11),
        "little memory": dict(
            max_num_batched_tokens=16, num_blocks=little_memory(model, requests), enable_prefix_caching=False
        ),
        "captured": dict(graph_sizes=(2, 8), piece_sizes=(40, 200)),
        "drafts": dict(max_num_batched_tokens=12, drafter=drafter),
    }
    engine = make_engine(model, **options[setting])
    for latest in (len(requests), 1):  # the second time prefixes are found, and all come at once
        arrivals = {request.request_id: index % latest for index, request in enumerate(requests)}
        assert_all_same(requests, run(engine, requests, arrivals=arrivals), expected)
    stats = engine.stats().scheduler
    assert (stats.num_preemptions if setting == "little memory" else stats.cache.num_prompt_tokens_hit) > 0
    assert (drafter.num_drafts > 0) == (setting == "drafts")


def test_company_changes_no_bit(solo: Solo) -> None:
    """Chunked or whole, found or computed: where arithmetic does not depend on company, neither does who sees whom."""
    model, requests, expected = solo("gemma3_small", BATCH_INVARIANT)
    for settings in (dict(max_num_batched_tokens=11), dict(max_num_batched_tokens=512)):
        engine = make_engine(model, **settings)
        got = run(engine, requests[:10], arrivals={request.request_id: 0 for request in requests})
        for request in requests[:10]:
            ours, theirs = got[request.request_id], expected[request.request_id]
            assert (ours.token_ids, ours.logprobs) == (theirs.token_ids, theirs.logprobs)
            assert ours.prompt_logprobs == theirs.prompt_logprobs


def test_the_second_picture_is_not_answered_from_the_first_ones_cache(tiny_model: TinyModels) -> None:
    """The same tokens with another content: nothing behind its beginning is taken from the cache."""
    model = load_with_media(tiny_model("gemma3_small"))
    engine = make_engine(model)
    prompt, cached = [2, *range(3, 80)], []
    for key in ("cat", "cat", "dog"):
        request = request_with(prompt, spans_at((20, 60), key=key))
        cached.append(run(engine, [request])["x"].num_cached_tokens)
    assert cached[0] == 0
    assert cached[1] == len(prompt) - 1
    assert cached[2] <= 20


def test_what_a_model_cannot_attend_to_is_refused(tiny_model: TinyModels) -> None:
    engine = make_engine(load_with_media(tiny_model("gemma4_e2b_small")))
    engine.submit(request_with(list(range(20)), spans_at((3, 9), both_ways=False)))
    words = "image at positions 3 to 8 attends both ways, but every layer of this model"
    with pytest.raises(RequestError, match=words):
        engine.submit(request_with(list(range(20)), spans_at((3, 9))))
