import pytest

from facet.kv_cache import prefix_history
from facet.kv_cache.prefix_chain import STEP, PrefixChain
from facet.kv_cache.prefix_history import PrefixHistory


def test_the_longest_known_way_counts_and_its_last_time() -> None:
    history = PrefixHistory()
    history.remember(PrefixChain(range(4 * STEP)), 1)
    history.remember(PrefixChain(range(2 * STEP)), 5)
    assert history.last_passage(PrefixChain(range(6 * STEP))) == (4, 1)
    assert history.last_passage(PrefixChain(range(3 * STEP - 1))) == (2, 5)
    assert history.last_passage(PrefixChain(range(1, 3 * STEP))) is None


def test_what_nobody_passes_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_history, "GENERATION_SIZE", 10)
    history = PrefixHistory()
    abandoned, alive = PrefixChain(range(STEP)), PrefixChain(range(1000, 1000 + STEP))
    history.remember(abandoned, 1)
    for tick in range(2, 50):
        history.remember(alive, tick)
        history.remember(PrefixChain(range(tick, tick + 2 * STEP)), tick)
    assert history.last_passage(abandoned) is None
    assert history.last_passage(alive) == (1, 49)
