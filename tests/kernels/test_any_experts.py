"""Experts whose matrices are of any format, as Triton runs them: against the reference."""

from functools import partial

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.moe.reference import sum_of_chosen
from facet.kernels.quantized import experts, reference
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.matrix import QuantizedMatrix, stack

pytest.importorskip("triton")

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
DTYPE = torch.bfloat16 if HAS_GPU else torch.float32  # the interpreter's bfloat16 is not the GPU's
NUM_EXPERTS, HIDDEN, WIDTH = 5, 256, 96
NAMES = ("uint4 minimums", "int8 groups", "fp4 powers", "int8 rows", "fp8 blocks", "fp8 token")


def matrices(gate_up: str, down: str) -> tuple[QuantizedMatrix, QuantizedMatrix]:
    """Those of every expert are others."""

    def made(case: Case) -> QuantizedMatrix:
        return stack([case.matrix(DEVICE, seed) for seed in range(NUM_EXPERTS)])

    first = Case(format=FORMATS[gate_up], num_out=2 * WIDTH, num_in=HIDDEN)
    return made(first), made(Case(format=FORMATS[down], num_out=HIDDEN, num_in=WIDTH))


def rows(num_rows: int, num_chosen: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """x, weights and choices. Nobody chose expert 1."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_rows, HIDDEN, generator=generator).to(DTYPE)
    weights = torch.rand(num_rows, num_chosen, generator=generator)
    others = torch.tensor([0, 2, 3, 4])[torch.rand(num_rows, 4, generator=generator).argsort(-1)]
    return x.to(DEVICE), weights.to(DEVICE), others[:, :num_chosen].contiguous().to(DEVICE)


def check(gate_up: QuantizedMatrix, down: QuantizedMatrix, num_rows: int) -> None:
    x, weights, chosen = rows(num_rows)

    def run_expert(few: Tensor, expert: int) -> Tensor:
        hidden = geglu(reference.linear(few.float(), gate_up.expert(expert)).to(DTYPE))
        return reference.linear(hidden.float(), down.expert(expert)).to(DTYPE)

    expected = sum_of_chosen(x, weights, chosen, run_expert).float()
    got = experts.run(x, weights, chosen, gate_up, down, in_one_chain=False).float()
    # A hidden number between two codes may fall to either side.
    is_rounded = down.format.rounding is not None
    assert (got - expected).norm() <= (0.03 if HAS_GPU or is_rounded else 1e-5) * expected.norm()


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter computes with numpy
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_rows", [1, 21])
def test_few_rows(name: str, num_rows: int) -> None:
    check(*matrices(name, name), num_rows)


def test_formats_may_differ() -> None:
    check(*matrices("uint4 minimums", "int8 groups"), 3)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("name", NAMES)
def test_many_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "MAX_FEW_PAIRS", 1)
    monkeypatch.setattr(experts, "_SLICE_BYTES", 2 * 4 * 2 * WIDTH * HIDDEN)  # two experts at a time, or four
    check(*matrices(name, name), 21)


@pytest.mark.skipif(not HAS_GPU, reason="sums are those of tensor cores")
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_same_in_company(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate_up, down = matrices(name, name)
    x, weights, chosen = rows(200)
    run = partial(experts.run, gate_up=gate_up, down=down, in_one_chain=True)
    together = run(x, weights, chosen)
    for row in range(0, 200, 9):
        own = slice(row, row + 1)
        assert torch.equal(run(x[own], weights[own], chosen[own]), together[own])
    monkeypatch.setattr(experts, "MAX_FEW_PAIRS", 1)
    assert torch.equal(run(x, weights, chosen), together), "of many rows"


def test_no_rows() -> None:
    x, weights, chosen = rows(1)
    none = experts.run(x[:0], weights[:0], chosen[:0], *matrices("int8 rows", "int8 rows"), in_one_chain=True)
    assert none.shape == (0, HIDDEN)


def test_which_are_served() -> None:
    refused = [name for name, format in FORMATS.items() if not experts.serves(format)]
    assert refused == ["int4 reordered", "int8 static", "fp8 static"]
