"""--batch-invariant: whatever else is in the batch, a request gets the answer it gets alone, bit for bit.

126 random batches, dead memory NaN throughout. `tests/gpu` has more for a GPU.
"""

from collections.abc import Callable
from functools import cache

import pytest

from facet.config import ModelConfig
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.request import Request
from tests.engine.harness import Answer, make_engine
from tests.engine.random_company import Company, answers_alone, check_batches, draw_requests
from tests.tiny_models import SMALL_WINDOW_NAMES, TinyModel

TinyModels = Callable[[str], TinyModel]
Solo = Callable[[str], tuple[Gemma, list[Request], dict[str, Answer]]]

COMPANIES = {
    "chunk7_cached": Company(7, num_batches=1),
    "chunk19": Company(19, num_batches=6, prefix_caching=False, overlapped=False),
    "chunk512_cached": Company(512, num_batches=9, has_long_prompt=True),
    # With this room, and the seeds below, somebody of nearly every family is put back in the first two batches.
    "preempting_cached": Company(16, num_batches=2, is_short_of_memory=True, room=1.25),
}


@pytest.fixture(scope="module")
def solo(tiny_model: TinyModels) -> Solo:
    """Each request by itself: its prompt in one piece, nothing found, nothing put back."""

    @cache
    def get(name: str) -> tuple[Gemma, list[Request], dict[str, Answer]]:
        tiny = tiny_model(name)
        config = ModelConfig(model=str(tiny.folder), device="cpu", max_model_len=512)
        model = load_model(config, arithmetic=BATCH_INVARIANT).model
        requests = draw_requests(tiny.window, model.spec.vocab_size, seed=len(name))
        engine = make_engine(model, enable_prefix_caching=False, overlapped=False)
        return model, requests, answers_alone(engine, requests)

    return get


@pytest.mark.parametrize("how", COMPANIES)
@pytest.mark.parametrize("name", SMALL_WINDOW_NAMES)
def test_company_changes_no_bit(name: str, how: str, solo: Solo) -> None:
    model, requests, expected = solo(name)
    company = COMPANIES[how]
    engine = make_engine(
        model,
        max_num_batched_tokens=company.chunk,
        enable_prefix_caching=company.prefix_caching,
        overlapped=company.overlapped,
        num_blocks=company.num_blocks(model, requests),
    )
    check_batches(engine, company, requests, expected, seed=f"{how} of {name}")
