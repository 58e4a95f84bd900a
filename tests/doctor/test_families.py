"""Tiny models are healthy, one for each kind of layer that the doctor looks at. `test_planted_faults` has another."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from facet.bundled_model import find_bundled_model
from facet.doctor.config import DoctorConfig
from facet.doctor.examine import examine
from facet.doctor.kernel_checks import compare_kernels
from facet.kernels.rms_norm import reference
from facet.layers.quantized_weight import QuantizedWeight
from facet.model.gemma import Gemma
from tests.model.paged_model import load

if TYPE_CHECKING:
    from tests.tiny_models import TinyModel

    TinyModels = Callable[[str], TinyModel]

# Shared vectors and experts; none; several streams, and layers that read others' keys.
NAMES = ("gemma4_26b_a4b_small", "gemma3_small", "gemma3n_small")


@pytest.mark.parametrize("name", NAMES)
def test_healthy(name: str, tiny_model: "TinyModels") -> None:
    report = examine(DoctorConfig(model=str(tiny_model(name).folder), device="cpu", quick=True))
    assert 0 < sum(finding.seconds for finding in report.findings) <= report.seconds
    failed = [finding for finding in report.findings if finding.status == "fail"]
    assert not failed
    passed = {finding.check for finding in report.findings if finding.status == "pass"}
    assert {"2 in flight", "8 in flight", "prefix cache", "window edge, one row", "KV int8_per_token_head"} <= passed
    assert ("fast prefill" in passed) == (name == "gemma3n_small")


@pytest.fixture(scope="module")
def model(tiny_model: "TinyModels") -> Gemma:
    """Experts; on a GPU all of this is Triton against PyTorch, here each reference against itself."""
    return load(tiny_model("gemma4_26b_a4b_small").folder, max_model_len=128).model


def test_every_kernel_is_compared(model: Gemma) -> None:
    findings = {finding.check: finding for finding in compare_kernels(model)}
    assert {finding.status for finding in findings.values()} == {"pass"}
    assert {"kernel: experts", "kernel: head inputs", "kernel: linear", "kernel: token choice"} <= set(findings)


def test_quantized_weights_leave_the_other_kernels_to_compare() -> None:
    model = load(find_bundled_model(), max_model_len=128).model
    assert any(isinstance(module, QuantizedWeight) for module in model.modules())
    findings = {finding.check: finding for finding in compare_kernels(model)}
    assert {finding.status for finding in findings.values()} == {"pass"}
    assert "kernel: add norm" in findings


def test_a_kernel_that_is_off_is_named(model: Gemma, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
        return reference.rms_norm(x, weight, eps) * 1.001

    arithmetic = replace(model.placement.arithmetic, rms_norm=off)
    monkeypatch.setattr(model, "placement", replace(model.placement, arithmetic=arithmetic))
    assert [finding.check for finding in compare_kernels(model) if finding.status == "fail"] == ["kernel: rms norm"]
