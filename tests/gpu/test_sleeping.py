"""A model on a GPU sleeps: its memory is given back, and captured graphs find everything where it was."""

from typing import Any

import pytest
import torch

from facet.config import EngineConfig
from facet.engine.engine import make_engine
from facet.runner import sleeping
from tests.engine.test_sleeping import answer

CACHE_BYTES = 1 << 30


@pytest.mark.parametrize("level", [1, 2])
def test_graphs_stay_valid(level: int, tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "LEAST_BYTES", 1 << 10)  # the model is tiny
    engine, _ = make_engine(
        EngineConfig(
            model=str(tiny_model("gemma4_e2b_small").folder),
            device="cuda",
            dtype="bfloat16",
            max_model_len=256,
            max_num_seqs=8,
            enable_sleep_mode=True,
            kv_cache_memory_bytes=CACHE_BYTES,
        )
    )
    assert engine.settings.graph_sizes
    expected = answer(engine, "before")
    awake, _ = torch.cuda.mem_get_info()
    engine.sleep(level)
    asleep, _ = torch.cuda.mem_get_info()
    assert asleep - awake > 0.9 * CACHE_BYTES
    engine.wake_up()
    assert answer(engine, "after") == expected
