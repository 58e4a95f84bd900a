"""`facet doctor` as a command: exit codes, the table, JSON, and what it refuses in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from facet.cli import main
from facet.kernels.paged_attention import reference
from tests.doctor.test_planted_faults import keep_checks
from tests.tiny_checkpoints import SHRUNK, write_config

CONFIG = SHRUNK["Gemma 3 1B"]
FLAGS = ("--load-format", "dummy", "--device", "cpu", "--dtype", "float32", "--quick")


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["doctor", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


Doctor = Callable[..., tuple[int, str, str]]


def test_a_config_alone_is_enough(doctor: Doctor, tmp_path: Path) -> None:
    code, out, err = doctor(write_config(tmp_path, CONFIG), *FLAGS)
    assert (code, err) == (0, "")
    for words in ("environment", "torch: ", "8 in flight", "window edge", "NaN in dead memory", "Healthy."):
        assert words in out
    assert "fail" not in out


def test_a_fault_shows_in_exit_code_and_json(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_reference = reference.plan_reference

    def off_by_one(*arguments: Any, window: int | None, **named: Any) -> Any:
        return plan_reference(*arguments, window=window and window + 1, **named)

    monkeypatch.setattr(reference, "plan_reference", off_by_one)
    keep_checks(monkeypatch, "attention", "window edge")
    code, out, _ = doctor(write_config(tmp_path, CONFIG), *FLAGS, "--json")
    assert code == 1
    report = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert not report["is_healthy"]
    assert report["environment"]["torch"]
    findings = {finding["check"]: finding for finding in report["findings"]}
    assert findings["attention, sliding"]["status"] == "fail"
    assert findings["attention, sliding"]["deviation"] == "inf"
    assert findings["attention, global"]["status"] == "pass"
    assert "attend further back" in findings["window edge, one row"]["note"]


def refusal(doctor: Doctor, *arguments: object) -> str:
    code, out, err = doctor(*arguments)
    assert code == 2
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    return err


def test_no_such_model(doctor: Doctor, tmp_path: Path) -> None:
    assert "nowhere" in refusal(doctor, tmp_path / "nowhere", "--device", "cpu")
    assert "config.json" in refusal(doctor, tmp_path, "--device", "cpu")


def test_no_memory_for_it(doctor: Doctor, tmp_path: Path) -> None:
    folder = write_config(tmp_path, {**CONFIG, "vocab_size": 2**31 - 1, "hidden_size": 2**20})
    assert "GiB" in refusal(doctor, folder, *FLAGS)


def test_flags_that_cannot_be(doctor: Doctor, tmp_path: Path) -> None:
    folder = write_config(tmp_path, CONFIG)
    assert "--full contradict" in refusal(doctor, folder, *FLAGS, "--full")
    assert "--max-model-len is 8, but" in refusal(doctor, folder, *FLAGS, "--max-model-len", "8")
    assert "llama" in refusal(doctor, write_config(tmp_path / "x", {"model_type": "llama"}), *FLAGS)


def test_no_memory_for_keys(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("facet.doctor.engines.cpu_cache_limit", lambda: 1000)
    assert "Use a smaller model" in refusal(doctor, write_config(tmp_path, CONFIG), *FLAGS)
