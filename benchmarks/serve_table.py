"""Writes what `serve_gpu` measured as tables in Markdown, one for each model.

    python -m benchmarks.serve_table results.json [more.json ...]
    python -m benchmarks.serve_table results.json --without others.json    # what a flag costs, row by row

A figure is the mean of its runs, with half the distance between the lowest and the highest behind it. *Of vLLM* says
how many times as good it is: more requests and tokens, or less time. *Floor* is what `floors.py` says of the first
figure of a row that it knows.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import floors
from benchmarks.serve_rows import BY_NAME, ROWS, Figure, Row
from facet.model.families import read_model_spec
from tests.published_configs import text_only

Results = dict[str, list[dict[str, Any]]]  # of every row, its runs
COLUMNS = ("load", "Facet", "vLLM 0.26.0", "of vLLM", "floor", "target")


def floor_of(row: Row, figure: Figure) -> float | None:
    """None: not known, or the load is bound by something else."""
    spec = read_model_spec(text_only(row.server.model))
    if row.extra_body is not None:
        return None
    fast_prefill = "--no-kv-sharing-fast-prefill" not in row.server.flags
    if row.concurrency == 1:
        if figure.key == "mean_tpot_ms":
            return floors.step_seconds(spec, 1, row.input_len + row.output_len / 2) * 1e3 * figure.unit_scale
        if figure.key == "mean_ttft_ms" and row.input_len >= 8192:
            return floors.prompt_seconds(spec, row.input_len, fast_prefill=fast_prefill) * 1e3 * figure.unit_scale
        return None
    seconds = floors.request_seconds(spec, row.input_len, row.output_len, row.concurrency, fast_prefill=fast_prefill)
    if figure.key == "request_throughput":
        return 1 / seconds
    if figure.key == "output_throughput":
        return row.output_len / seconds
    return seconds * row.num_prompts if figure.key == "duration" else None


def measured(figure: Figure, results: list[dict[str, Any]]) -> str:
    values = [figure.of(result) for result in results]
    spread = (max(values) - min(values)) / 2
    behind = f" ± {figure.written(spread)}" if len(values) > 1 else ""
    return f"{figure.written(mean(values))}{behind} {figure.unit}"


def ratio(figure: Figure, results: list[dict[str, Any]]) -> str | None:
    if figure.vllm is None:
        return None
    value = mean(figure.of(result) for result in results)
    return f"{value / figure.vllm if figure.more_is_better else figure.vllm / value:.2f}"


def target(figure: Figure, results: list[dict[str, Any]]) -> str | None:
    if figure.target is None:
        return None
    is_met = figure.meets(mean(figure.of(result) for result in results))
    return f"{figure.written(figure.target)} {'met' if is_met else 'missed'}"


def cells(row: Row, results: list[dict[str, Any]]) -> tuple[str, ...]:
    def joined(values: list[str | None]) -> str:
        return ", ".join(value for value in values if value is not None)

    known = ((figure, floor_of(row, figure)) for figure in row.figures)
    floor = next((f"{figure.written(value)} {figure.unit}" for figure, value in known if value is not None), "")
    return (
        row.load,
        joined([measured(figure, results) for figure in row.figures]),
        joined([None if figure.vllm is None else figure.written(figure.vllm) for figure in row.figures]),
        joined([ratio(figure, results) for figure in row.figures]),
        floor,
        joined([target(figure, results) for figure in row.figures]),
    )


def tables(results: Results) -> str:
    lines: list[str] = []
    rows = [row for row in ROWS if results.get(row.name)]
    for model in dict.fromkeys(row.server.model for row in rows):
        lines += [f"### {model}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(cells(row, results[row.name]))} |" for row in rows if row.server.model == model]
        lines.append("")
    return "\n".join(lines)


def costs(results: Results, without: Results) -> str:
    """Rows that both have: without a flag, with it, and how many times as much time it takes."""
    lines = ["| load | without | with | ratio |", "|---|---|---|---|"]
    for row in ROWS:
        both = [runs.get(row.name, []) for runs in (without, results)]
        if not all(both):
            continue
        means = [[mean(figure.of(result) for result in runs) for figure in row.figures] for runs in both]
        cells = [", ".join(measured(figure, runs) for figure in row.figures) for runs in both]
        ratios = (
            before / after if figure.more_is_better else after / before
            for figure, before, after in zip(row.figures, *means, strict=True)
        )
        lines.append(
            f"| {row.server.title} {row.load} | {cells[0]} | {cells[1]} | {', '.join(map('{:.2f}'.format, ratios))} |"
        )
    return "\n".join(lines)


def read(paths: Sequence[Path]) -> Results:
    results: Results = {name: [] for name in BY_NAME}
    for path in paths:
        for name, runs in json.loads(path.read_text()).items():
            results[name] += runs
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="what serve_gpu --output wrote; rows may be in several")
    parser.add_argument("--without", type=Path, nargs="+", default=[], help="the same, of servers without some flag")
    options = parser.parse_args()
    results = read(options.files)
    print(costs(results, read(options.without)) if options.without else tables(results))


if __name__ == "__main__":
    main()
