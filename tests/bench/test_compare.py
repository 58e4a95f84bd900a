"""Results side by side."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from facet.bench.compare import compare, comparison_table, differences, read_result
from facet.errors import ConfigError

FIRST: dict[str, Any] = {
    "duration": 10.0,
    "completed": 100,
    "failed": 0,
    "num_prompts": 100,
    "request_throughput": 10.0,
    "request_goodput": None,
    "output_throughput": 1000.0,
    "max_concurrency": 8,
    "mean_ttft_ms": 50.0,
    "p99.9_itl_ms": 4.0,
    "itls": [[1.0]],
}
SECOND = {**FIRST, "request_throughput": 12.5, "mean_ttft_ms": 40.0, "output_throughput": 900.0, "p99_itl_ms": 1.0}


def test_ratios_are_to_the_first() -> None:
    rows = {row.name: row for row in compare([FIRST, SECOND, FIRST])}
    assert rows["Request throughput (req/s)"].ratio(1) == 1.25
    assert rows["Request throughput (req/s)"].ratio(2) == 1.0
    assert rows["Mean TTFT (ms)"].ratio(1) == 0.8
    assert rows["Failed requests"].ratio(1) is None  # nothing to divide by
    assert "P99.9 ITL (ms)" in rows
    assert "P99 ITL (ms)" not in rows  # the first does not have it
    assert "Request goodput (req/s)" not in rows
    assert list(rows)[:3] == ["Successful requests", "Failed requests", "Benchmark duration (s)"]


def test_a_number_that_one_of_three_lacks() -> None:
    lacking = {name: value for name, value in SECOND.items() if name != "mean_ttft_ms"}
    rows = {row.name: row for row in compare([FIRST, lacking, SECOND])}
    assert rows["Mean TTFT (ms)"].values == (50.0, None, 40.0)
    assert rows["Mean TTFT (ms)"].ratio(1) is None


def test_the_table_says_which_way_is_better() -> None:
    table = comparison_table(compare([FIRST, SECOND]), ["a", "b"])
    cells = {str(name): cell for name, cell in zip(table.columns[0]._cells, table.columns[3]._cells, strict=True)}
    assert cells["Request throughput (req/s)"] == "[green]1.250[/green]"
    assert cells["Mean TTFT (ms)"] == "[green]0.800[/green]"
    assert cells["Output token throughput (tok/s)"] == "[red]0.900[/red]"
    assert cells["Successful requests"] == "1.000"
    assert cells["Failed requests"] == "-"
    Console(quiet=True).print(table)


def test_loads_that_differ_are_named() -> None:
    assert list(differences([FIRST, SECOND], ["a", "b"])) == []
    (line,) = differences([FIRST, {**FIRST, "max_concurrency": 16}], ["a", "b"])
    assert line == "Not the same load: max_concurrency is 8 in a, 16 in b."


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "not JSON"), ("[1]", "not the result"), ('{"a": 1}', "not the result"), (None, "No such")],
)
def test_what_is_no_result(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_result(path)
    path.write_text(json.dumps(FIRST))
    assert read_result(path) == FIRST
