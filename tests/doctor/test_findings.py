"""The report: what counts as healthy, and that JSON stays JSON."""

import json
import math

import pytest
import torch

from facet.doctor.environment import check_environment, describe
from facet.doctor.findings import Finding, Report, measured, skipped
from facet.doctor.shares import share_of_tolerance
from facet.kernels.tolerance import Tolerance

TOLERANCE = Tolerance(absolute=0.1, relative=0.01, why="a test")
EXACT = Tolerance(absolute=0.0, relative=0.0, why="a test")


def report(*findings: Finding) -> Report:
    return Report(model="m", device="cpu", dtype="float32", environment={}, findings=findings, seconds=1.0)


@pytest.mark.parametrize(
    ("deviation", "status"), [(0.0, "pass"), (1.0, "pass"), (1.1, "fail"), (math.inf, "fail"), (math.nan, "fail")]
)
def test_a_number_decides(deviation: float, status: str) -> None:
    finding = measured("x", deviation, 1.0)
    assert finding.status == status
    assert report(finding).is_healthy == (status == "pass")
    written = json.loads(json.dumps(report(finding).as_json(), allow_nan=False))
    assert written["is_healthy"] == (status == "pass")


def test_what_was_skipped_is_no_illness() -> None:
    assert report(skipped("x", "no GPU")).is_healthy
    assert report(skipped("x", "no GPU")).as_json()["findings"][0]["deviation"] is None


@pytest.mark.parametrize(
    ("got", "expected", "tolerance", "share"),
    [
        ([1.0, 2.0], [1.0, 2.0], EXACT, 0.0),
        ([1.0, 2.5], [1.0, 2.0], EXACT, math.inf),
        ([100.0], [100.55], TOLERANCE, 0.55 / (0.1 + 1.0055)),
        ([math.nan], [math.nan], TOLERANCE, 0.0),
        ([math.nan], [1.0], TOLERANCE, math.inf),
        ([1.0], [math.nan], TOLERANCE, math.inf),
        ([math.inf], [math.inf], TOLERANCE, 0.0),
        ([], [], EXACT, 0.0),
    ],
)
def test_shares(got: list[float], expected: list[float], tolerance: Tolerance, share: float) -> None:
    found = share_of_tolerance(*(torch.tensor(numbers, dtype=torch.float64) for numbers in (got, expected)), tolerance)
    assert found.share == pytest.approx(share)


def test_a_missing_package_is_named_with_the_way_to_get_it() -> None:
    described = describe()
    assert described["torch"] == torch.__version__
    (finding,) = check_environment({**described, "xgrammar": "missing"})
    assert finding.status == "fail"
    assert "xgrammar is missing, needed for structured output: pip install xgrammar" in finding.note
    (finding,) = check_environment({**described, "triton": "missing", "cuda:0": "a GPU"})
    assert (finding.status, "pip install triton" in finding.note) == ("fail", True)
