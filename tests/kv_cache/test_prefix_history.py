import pytest

from facet.kv_cache import prefix_history
from facet.kv_cache.prefix_chain import TOKENS_PER_LINK, PrefixChain
from facet.kv_cache.prefix_history import PrefixHistory


def test_the_longest_known_way_counts_and_its_last_time() -> None:
    history = PrefixHistory()
    history.remember(PrefixChain(range(4 * TOKENS_PER_LINK)), 1)
    history.remember(PrefixChain(range(2 * TOKENS_PER_LINK)), 5)
    assert history.last_passage(PrefixChain(range(6 * TOKENS_PER_LINK))) == (4, 1)
    assert history.last_passage(PrefixChain(range(3 * TOKENS_PER_LINK - 1))) == (2, 5)
    assert history.last_passage(PrefixChain(range(1, 3 * TOKENS_PER_LINK))) is None


def test_what_nobody_passes_any_more_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_history, "GENERATION_SIZE", 10)
    history = PrefixHistory()
    abandoned, alive = PrefixChain(range(TOKENS_PER_LINK)), PrefixChain(range(1000, 1000 + TOKENS_PER_LINK))
    history.remember(abandoned, 1)
    for tick in range(2, 50):
        history.remember(alive, tick)
        history.remember(PrefixChain(range(tick, tick + 2 * TOKENS_PER_LINK)), tick)
    assert history.last_passage(abandoned) is None
    assert history.last_passage(alive) == (1, 49)
