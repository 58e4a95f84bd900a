"""R1 on a GPU: alone equals together, with graphs, overlap, fast prefill, and NaN in all dead memory."""

from collections.abc import Callable

import pytest

from facet.config import ModelConfig
from facet.model.loader import load_model
from tests.engine.harness import Answer, alone, make_engine, mixed_requests, run
from tests.engine.test_alone_equals_together import assert_all_same
from tests.engine.test_kv_dtypes import (
    FAMILIES,
    LARGEST_TOLERANCE,
    QUANTIZED,
    USUAL_TOLERANCE,
    differences,
    greedy_requests,
)
from tests.tiny_models import SMALL_WINDOW_NAMES, TinyModel

GRAPH_SIZES = (1, 2, 4, 8, 64)
PIECE_SIZES = (16, 48, 128)


@pytest.mark.parametrize("name", SMALL_WINDOW_NAMES)
def test_alone_equals_together(name: str, tiny_model: Callable[[str], TinyModel]) -> None:
    tiny = tiny_model(name)
    model = load_model(ModelConfig(model=str(tiny.folder), device="cuda", max_model_len=512, dtype="float32")).model
    requests = mixed_requests(tiny.window, model.spec.vocab_size, count=64, seed=len(name))
    solo_engine = make_engine(model, enable_prefix_caching=False, overlapped=False, fast_prefill=False)
    expected: dict[str, Answer] = {}
    for request in requests:
        expected |= run(solo_engine, [alone(request)], check_every=1000)
    for graph_sizes, piece_sizes in ((GRAPH_SIZES, PIECE_SIZES), (GRAPH_SIZES, ()), ((), ())):
        engine = make_engine(model, max_num_batched_tokens=64, graph_sizes=graph_sizes, piece_sizes=piece_sizes)
        arrivals = {request.request_id: 3 * index // 2 for index, request in enumerate(requests)}
        cancel_after = {request.request_id: 2 for request in requests if int(request.request_id) % 10 < 3}
        got = run(engine, requests, arrivals=arrivals, cancel_after=cancel_after)
        assert_all_same(requests, got, expected)
        assert engine.stats().num_corrupted_requests == 0


@pytest.mark.parametrize("dtype", [*QUANTIZED, "global=int8_per_token_head,sliding=bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_alone_equals_together_in_every_kv_dtype(name: str, dtype: str, tiny_model: Callable[[str], TinyModel]) -> None:
    """As on a CPU: a number between two quantized ones may fall to either side, seldom, and then stays."""
    folder = str(tiny_model(name).folder)
    model = load_model(ModelConfig(model=folder, device="cuda", max_model_len=512, dtype="float32")).model
    requests = greedy_requests(model, 12)
    solo = make_engine(model, kv_dtype=dtype, enable_prefix_caching=False, overlapped=False, fast_prefill=False)
    expected: dict[str, Answer] = {}
    for request in requests:
        expected |= run(solo, [alone(request)], check_every=1000)
    engine = make_engine(model, kv_dtype=dtype, max_num_batched_tokens=64, graph_sizes=(1, 4, 16), piece_sizes=(32, 80))
    arrivals = {request.request_id: index for index, request in enumerate(requests)}
    for _ in range(2):  # the second time prefixes are found
        got = run(engine, requests, arrivals=arrivals)
        found = [difference for key in got for difference in differences(got[key], expected[key])]
        assert max(found) <= LARGEST_TOLERANCE
        assert sorted(found)[len(found) // 2] <= USUAL_TOLERANCE
    assert engine.stats().num_corrupted_requests == 0
