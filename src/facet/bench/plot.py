"""Draws a run: latency over time, throughput over time, and distributions. Loads matplotlib only if asked to draw."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from facet.bench.metrics import tokens_per_second
from facet.bench.outcome import Outcome
from facet.bench.writable import check_writable
from facet.errors import ConfigError

_NUM_BINS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What the pictures show, by request or by second; times from the first request on."""

    starts: npt.NDArray[np.float64]  # seconds
    ttfts: npt.NDArray[np.float64]  # milliseconds, as all latencies here
    latencies: npt.NDArray[np.float64]
    tpots: npt.NDArray[np.float64]
    itls: npt.NDArray[np.float64]
    tokens_per_second: npt.NDArray[np.int64]
    failed_starts: npt.NDArray[np.float64]


def series_of(outcomes: Sequence[Outcome]) -> Series:
    good = [outcome for outcome in outcomes if outcome.is_success]
    beginning = min((outcome.start for outcome in outcomes), default=0.0)
    itls = [outcome.itls for outcome in good]
    return Series(
        starts=np.array([outcome.start - beginning for outcome in good]),
        ttfts=np.array([outcome.ttft * 1e3 for outcome in good]),
        latencies=np.array([outcome.latency * 1e3 for outcome in good]),
        tpots=np.array([tpot * 1e3 for outcome in good if (tpot := outcome.tpot) is not None]),
        itls=np.concatenate(itls) * 1e3 if itls else np.array([]),
        tokens_per_second=tokens_per_second(good),
        failed_starts=np.array([outcome.start - beginning for outcome in outcomes if not outcome.is_success]),
    )


def check_plot(path: str | None) -> None:
    """Checked before the run, so that a benchmark is not lost because its picture cannot be drawn."""
    if path is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed: pip install matplotlib, or leave --plot out."
        )
    if not Path(path).resolve().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no such folder.")
    check_writable("--plot", Path(path))


def draw(path: str, title: str, series: Series) -> None:
    # By name: it is no dependency of Facet's, and may be missing where types are checked. Not pyplot, which looks for a
    # screen.
    figure: Any = importlib.import_module("matplotlib.figure").Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(2, 2)
    over_time, pace, first, between = panels.flat
    over_time.scatter(series.starts, series.latencies, s=8, label="E2EL")
    over_time.scatter(series.starts, series.ttfts, s=8, label="TTFT")
    for start in series.failed_starts:
        over_time.axvline(start, color="red", linewidth=0.5)
    over_time.set(title="Latency by start of request (failures red)", xlabel="s", ylabel="ms")
    over_time.legend()
    if len(series.tokens_per_second):
        pace.stairs(series.tokens_per_second)
    pace.set(title="Output", xlabel="s", ylabel="chunks in this second")
    _histogram(first, {"TTFT": series.ttfts, "E2EL": series.latencies}, "Time to first token, end-to-end latency")
    _histogram(between, {"TPOT": series.tpots, "ITL": series.itls}, "Time per output token, inter-token latency")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The picture cannot be written to {path}: {error}.") from None


def _histogram(panel: Any, values: dict[str, npt.NDArray[np.float64]], title: str) -> None:
    """Draws both over the same bins, as shares: there are many more gaps between tokens than requests."""
    bins = np.histogram_bin_edges(np.concatenate(list(values.values())), bins=_NUM_BINS)
    for name, milliseconds in values.items():
        weights = np.full(len(milliseconds), 100 / max(len(milliseconds), 1))
        panel.hist(milliseconds, bins=bins, weights=weights, histtype="step", label=name)
    panel.set(title=title, xlabel="ms", ylabel="%")
    panel.legend()
