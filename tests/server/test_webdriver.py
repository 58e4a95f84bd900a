"""The driver of the browser, in place of which a program runs that cannot listen at once."""

from pathlib import Path

import pytest

from tools.webdriver import WebDriverError, running_driver


def put_driver(folder: Path, num_failures: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ends as often as said, like one whose port is taken; then listens. Writes a line for every start."""
    starts = folder / "starts"
    driver = folder / "chromedriver"
    driver.write_text(
        f"#!/bin/sh\necho started >> {starts}\n"
        f"[ $(wc -l < {starts}) -gt {num_failures} ] || exit 1\n"
        "echo ChromeDriver was started successfully on port 4321.\nexec sleep 60\n"
    )
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return starts


def test_a_driver_whose_port_is_taken_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = put_driver(tmp_path, 2, monkeypatch)
    with running_driver() as port:
        assert port == 4321
    assert len(starts.read_text().splitlines()) == 3


def test_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_driver(tmp_path, 1000, monkeypatch)
    with pytest.raises(WebDriverError, match="always ended before it listened"), running_driver():
        pass
