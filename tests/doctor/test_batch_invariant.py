"""`--batch-invariant`: the same bits are demanded, and the smallest difference is found."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from facet.doctor.config import DoctorConfig
from facet.doctor.examine import examine
from facet.doctor.findings import Report
from facet.doctor.judge import EXACT, Outcome, ScoredToken, Transcript, judge
from facet.kernels.linear import alike
from tests.doctor.test_planted_faults import failed, keep_checks

COMPANY = {"2 in flight", "8 in flight", "prefix cache", "padded steps", "NaN in dead memory", "little memory"}


def examined(folder: Path, **settings: object) -> Report:
    config = DoctorConfig(model=str(folder), device="cpu", quick=True, batch_invariant=True, **settings)  # type: ignore[arg-type]
    return examine(config)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_changes_no_bit(dtype: str, chatty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_checks(monkeypatch, "alone", "chat with tools", "fast prefill", *COMPANY)
    report = examined(chatty_folder, dtype=dtype)
    assert report.is_healthy, report.findings
    found = {finding.check: finding for finding in report.findings}
    for name in {*COMPANY, "chat with tools"}:
        assert (found[name].deviation, found[name].limit) == (0, 0), name
    limit = found["fast prefill"].limit
    assert limit is not None, "another setting may round differently"
    assert limit > 0
    assert report.as_json()["batch_invariant"]


def test_a_last_bit_is_found(chatty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def moody(x: Tensor, weight: Tensor) -> Tensor:
        product = functional.linear(x, weight)
        return product * (1 + 2**-20) if len(x) == 2 else product

    monkeypatch.setattr(alike, "linear", moody)
    keep_checks(monkeypatch, "alone", "2 in flight")
    report = examined(chatty_folder, dtype="float32")
    assert failed(report) == {"2 in flight"}
    (note,) = [finding.note for finding in report.findings if finding.status == "fail"]
    assert "answers differ; request" in note
    deviation = max(finding.deviation or 0.0 for finding in report.findings)
    assert deviation < 5e-4, "which would be rounding without the flag"


def test_not_even_a_tie_is_chosen_between_in_another_way() -> None:
    likeliest = ((3, -1.0), (4, -1.0))
    one, other = (Transcript(tokens=(ScoredToken(token_id, -1.0, likeliest),)) for token_id in (3, 4))
    assert judge(one, one, EXACT).outcome is Outcome.SAME
    assert judge(one, other, EXACT).outcome is Outcome.CORRUPT
    nearly = Transcript(tokens=(ScoredToken(3, -1.0 - torch.finfo(torch.float32).eps, likeliest),))
    assert judge(one, nearly, EXACT).outcome is Outcome.CORRUPT
