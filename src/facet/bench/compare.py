"""Prints results side by side with ratios to the first, from files of `facet bench serve` and `vllm bench serve`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from facet.errors import ConfigError

# Keys in the order of the table that a run prints, and whether more is better; None: neither is.
_COUNTS: Mapping[str, tuple[str, bool | None]] = {
    "completed": ("Successful requests", True),
    "failed": ("Failed requests", False),
    "duration": ("Benchmark duration (s)", False),
    "total_input_tokens": ("Total input tokens", None),
    "total_cached_tokens": ("Cached input tokens", None),
    "total_output_tokens": ("Total generated tokens", None),
    "request_throughput": ("Request throughput (req/s)", True),
    "request_goodput": ("Request goodput (req/s)", True),
    "output_throughput": ("Output token throughput (tok/s)", True),
    "total_token_throughput": ("Total token throughput (tok/s)", True),
    "max_output_tokens_per_s": ("Peak output token throughput (tok/s)", True),
    "max_concurrent_requests": ("Peak concurrent requests", None),
}
_LATENCY = re.compile(r"(mean|median|std|p[\d.]+)_(ttft|tpot|itl|e2el)_ms")
# What makes two runs different loads; said where it differs.
_LOAD = ("num_prompts", "request_rate", "burstiness", "max_concurrency", "total_input_tokens", "total_output_tokens")


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    more_is_better: bool | None
    values: tuple[float | None, ...]  # None: that file does not have it

    def ratio(self, index: int) -> float | None:
        """The ratio of one file's value to the first's."""
        first, other = self.values[0], self.values[index]
        return other / first if first and other is not None else None


def read_result(path: Path) -> dict[str, Any]:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}. Give a file that --save-result wrote.") from None
    if not isinstance(result, dict) or "duration" not in result:
        raise ConfigError(f"{path} is not the result of a benchmark. Give a file that --save-result wrote.")
    return result


def compare(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Every number that the first result has, and any of the others."""
    rows = [_row(name, key, is_better, results) for key, (name, is_better) in _COUNTS.items()]
    for key in results[0]:
        if found := _LATENCY.fullmatch(key):
            statistic, metric = found.groups()
            rows.append(_row(f"{statistic.capitalize()} {metric.upper()} (ms)", key, False, results))
    return [row for row in rows if row.values[0] is not None and any(value is not None for value in row.values[1:])]


def differences(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[str]:
    """Where the loads differ, in which case ratios compare more than the servers."""
    for key in _LOAD:
        values = [result.get(key) for result in results]
        if any(value != values[0] for value in values):
            said = ", ".join(f"{value} in {name}" for value, name in zip(values, names, strict=True))
            yield f"Not the same load: {key} is {said}."


def comparison_table(rows: Sequence[Row], names: Sequence[str]) -> Table:
    table = Table(title=f"ratios to {names[0]}; green is better")
    table.add_column("")
    table.add_column(names[0], justify="right")
    for name in names[1:]:
        table.add_column(name, justify="right")
        table.add_column("ratio", justify="right")
    for row in rows:
        cells = [_shown(row.values[0])]
        for index in range(1, len(names)):
            cells += [_shown(row.values[index]), _shown_ratio(row, index)]
        table.add_row(row.name, *cells)
    return table


def _row(name: str, key: str, is_better: bool | None, results: Sequence[Mapping[str, Any]]) -> Row:
    return Row(name, is_better, tuple(_number(result.get(key)) for result in results))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _shown_ratio(row: Row, index: int) -> str:
    ratio = row.ratio(index)
    if ratio is None:
        return "-"
    text = f"{ratio:.3f}"
    if row.more_is_better is None or text == "1.000":
        return text
    return f"[green]{text}[/green]" if (ratio > 1) == row.more_is_better else f"[red]{text}[/red]"
