"""Which sizes are captured. What replaying them gives is the engine's test: alone equals together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.config import EngineConfig
from facet.engine.settings import resolve_graph_sizes
from facet.errors import ConfigError
from facet.runner.graphs import default_sizes


@given(max_num_seqs=st.integers(1, 2000))
def test_default_sizes_end_at_the_most_requests(max_num_seqs: int) -> None:
    sizes = default_sizes(max_num_seqs)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == max_num_seqs
    # A step never computes more than twice its rows, and from sixteen on not more than half as many again.
    for count in range(1, max_num_seqs + 1):
        size = next(size for size in sizes if size >= count)
        assert size <= 2 * count
        assert size < 16 or size <= 1.5 * count + 1 or size == max_num_seqs


def test_sizes_a_user_names() -> None:
    assert resolve_graph_sizes(EngineConfig(cudagraph_capture_sizes=(8, 1, 500), max_num_seqs=64)) == (1, 8, 64)
    assert resolve_graph_sizes(EngineConfig(cudagraph_capture_sizes=(8,), enforce_eager=True)) == ()
    with pytest.raises(ConfigError, match="--cudagraph-capture-sizes holds 0"):
        resolve_graph_sizes(EngineConfig(cudagraph_capture_sizes=(0, 8)))
