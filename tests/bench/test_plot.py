"""What pictures show; the drawing itself where matplotlib is installed."""

import importlib.util
from pathlib import Path

import pytest

from facet.bench.plot import check_plot, draw, series_of
from facet.errors import ConfigError
from tests.bench.test_metrics import OUTCOMES, failed

HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def test_series() -> None:
    series = series_of(OUTCOMES[:3])
    assert series.starts.tolist() == pytest.approx([0.0, 0.3, 1.0])
    assert series.ttfts.tolist() == pytest.approx([100, 200, 300])
    assert series.latencies.tolist() == pytest.approx([400, 200, 500])
    assert series.tpots.tolist() == pytest.approx([100, 200])
    assert series.itls.tolist() == pytest.approx([100, 200, 200])
    assert series.tokens_per_second.tolist() == [4, 2]
    assert len(series.failed_starts) == 0
    assert len(series_of([failed("x")]).failed_starts) == 1


def test_what_cannot_be_drawn_is_known_before_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    check_plot(None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        check_plot("x.png")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    check_plot(str(tmp_path / "x.png"))
    with pytest.raises(ConfigError, match="no such folder"):
        check_plot(str(tmp_path / "none" / "x.png"))
    with pytest.raises(ConfigError, match="cannot be written to: Is a directory"):
        check_plot(str(tmp_path))


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="matplotlib is not installed")
def test_drawing(tmp_path: Path) -> None:
    for number, outcomes in enumerate((OUTCOMES, OUTCOMES[:1], [failed("x")])):
        path = tmp_path / f"{number}.png"
        draw(str(path), "a run", series_of(outcomes))
        assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="cannot be written"):
        draw(str(tmp_path / "x.unknown"), "a run", series_of(OUTCOMES))
