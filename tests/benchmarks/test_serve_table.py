"""Floors against figures worked out by hand, and the tables made of results."""

import pytest

from benchmarks.floors import prompt_seconds, request_seconds, step_seconds
from benchmarks.serve_rows import BY_NAME, ROWS
from benchmarks.serve_table import costs, tables
from facet.model.families import read_model_spec
from facet.model_spec import ModelSpec
from tests.published_configs import text_only


@pytest.fixture(scope="module")
def large() -> ModelSpec:
    return read_model_spec(text_only("Gemma 4 31B"))


def test_a_step_of_one_request_reads_every_matrix(large: ModelSpec) -> None:
    """57.3 GiB of weights, of which embeddings are the head: 14.4 ms, and a little for keys and values."""
    assert step_seconds(large, 1, 0) * 1e3 == pytest.approx(14.4, abs=0.1)
    assert step_seconds(large, 1, 640) > step_seconds(large, 1, 0)


def test_a_step_of_several_reads_more_experts() -> None:
    sparse = read_model_spec(text_only("Gemma 4 26B-A4B"))
    one, many = step_seconds(sparse, 1, 0), step_seconds(sparse, 10_000, 0)
    # Nearly all of the 128 experts of a layer instead of 8, three matrices of 704 x 2816 each.
    assert (many - one) * 4.26e12 / 2 == pytest.approx(30 * 120 * 3 * 704 * 2816, rel=1e-3)


def test_windows_end(large: ModelSpec) -> None:
    grown = step_seconds(large, 1, 20_000) - step_seconds(large, 1, 10_000)
    # Ten global layers of four heads of 512, whose values are their keys.
    assert grown * 4.26e12 == pytest.approx(10_000 * 10 * 4 * 512 * 2)


def test_fast_prefill_halves_the_layers_of_a_prompt() -> None:
    small = read_model_spec(text_only("Gemma 4 E4B"))
    assert prompt_seconds(small, 8192) < 0.65 * prompt_seconds(small, 8192, fast_prefill=False)


def test_requests_share_steps(large: ModelSpec) -> None:
    """The floor of 31B at 2048/256 and 32 requests: 735 tokens a second."""
    assert 256 / request_seconds(large, 2048, 256, 32) == pytest.approx(735, abs=5)


def test_tables_say_how_far_runs_lie_apart_and_what_was_met() -> None:
    runs = [
        {"request_throughput": value, "mean_ttft_ms": 200.0, "mean_tpot_ms": 6.0, "failed": 0} for value in (7.1, 7.4)
    ]
    written = tables({"e4b-8k-c8": runs, "31b-c1": []})
    assert "### Gemma 4 E4B" in written
    assert "31B" not in written
    (line,) = (line for line in written.splitlines() if line.startswith("| 8192/150"))
    assert "7.25 ± 0.15 req/s" in line
    assert "| 1.30, 2.23, 1.10 |" in line
    assert line.endswith("| 7.20 met |")


def test_what_a_flag_costs() -> None:
    def run(requests: float, seconds: float) -> list[dict[str, float]]:
        return [{"request_throughput": requests, "mean_ttft_ms": seconds, "mean_tpot_ms": 6.0}]

    written = costs({"e4b-8k-c8": run(6.0, 220.0), "31b-c1": []}, {"e4b-8k-c8": run(6.6, 200.0), "31b-c1": run(1, 1)})
    (line,) = written.splitlines()[2:]
    assert line.startswith("| Gemma 4 E4B 8192/150, c=8 | 6.60 req/s, 200 ms TTFT")
    assert line.endswith("| 1.10, 1.10, 1.00 |")


def test_no_two_rows_have_one_name() -> None:
    assert len(BY_NAME) == len(ROWS)
