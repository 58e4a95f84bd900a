"""Experts of shuffled 4-bit codes against the reference: emulated on a CPU, as they are on a GPU."""

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor

from facet.kernels.geglu.reference import geglu
from facet.kernels.moe.config import MAX_PAIR_ROWS
from facet.kernels.moe.groups import Groups
from facet.kernels.moe.reference import sum_of_chosen
from facet.kernels.quantized import experts as any_experts
from facet.kernels.quantized import int4, reference
from facet.kernels.quantized.cases import FORMATS, Case
from facet.kernels.quantized.int4.tuning import Tuning
from facet.kernels.quantized.matrix import QuantizedMatrix, stack
from facet.matrix_format import CodeKind, MatrixFormat, ScaleFormat

pytest.importorskip("triton")
from facet.kernels.quantized.int4 import experts as for_gpu
from facet.kernels.quantized.int4.dequantize import dequantize
from tests.kernels.gluon_emulator import emulated
from tests.kernels.int4_machine import LANGUAGES, NAMES

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"
ROOM, SHUFFLED = "facet.kernels.quantized.int4", "facet.kernels.quantized.shuffled"
NUM_EXPERTS = 5


@dataclass(frozen=True)
class Experts:
    """Matrices of a few experts, and rows that chose among them."""

    group: int | None = 32
    dtype: str = "bfloat16"
    zeros: bool = False
    named: str | None = None  # a format; None: the one that is described
    hidden: int = 128
    width: int = 96  # less than a block
    num_rows: int = 7
    num_chosen: int = 2

    def matrices(self) -> tuple[QuantizedMatrix, QuantizedMatrix]:
        codes: CodeKind = "uint4" if self.zeros else "int4"
        scales = ScaleFormat(dtype=self.dtype, group=self.group)
        format = MatrixFormat(codes=codes, scales=scales, has_zeros=self.zeros)
        if self.named is not None:
            format = FORMATS[self.named]
        shapes = ((2 * self.width, self.hidden), (self.hidden, self.width))
        gate_up, down = (
            stack([Case(format=format, num_out=out, num_in=width).matrix(DEVICE) for _ in range(NUM_EXPERTS)])
            for out, width in shapes
        )
        for index in range(NUM_EXPERTS):  # that experts differ is what is tested
            for matrix, factor in ((gate_up, 1 + index / 4), (down, 2 - index / 4)):
                scales = matrix.scales if matrix.coarse_scales is None else matrix.coarse_scales
                scales[index] *= factor
        return gate_up, down

    def rows(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """x, weights and choices. Nobody chose expert 1, and all rows expert 3."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.num_rows, self.hidden, generator=generator).to(dtype)
        weights = torch.rand(self.num_rows, self.num_chosen, generator=generator)
        others = torch.tensor([0, 2, 4])[torch.rand(self.num_rows, 3, generator=generator).argsort(-1)]
        chosen = torch.cat((torch.full((self.num_rows, 1), 3), others), dim=1)[:, : self.num_chosen].contiguous()
        return x.to(DEVICE), weights.to(DEVICE), chosen.to(DEVICE)


@pytest.fixture(scope="module")
def experts() -> ModuleType:
    if HAS_GPU:
        return for_gpu
    return emulated(
        [f"{SHUFFLED}.tiles", f"{ROOM}.tiles", f"{ROOM}.experts_kernel", f"{ROOM}.experts"], *LANGUAGES, own=NAMES
    )


def expected(case: Experts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    gate_up, down = case.matrices()

    def run_expert(rows: Tensor, expert: int) -> Tensor:
        hidden = geglu(reference.linear(rows.float(), gate_up.expert(expert)).to(x.dtype))
        return reference.linear(hidden.float(), down.expert(expert)).to(x.dtype)

    return sum_of_chosen(x, weights, chosen, run_expert)


def shuffled(case: Experts) -> tuple[int4.ShuffledInt4, int4.ShuffledInt4]:
    gate_up, down = case.matrices()
    return int4.shuffle(gate_up, is_gated=True), int4.shuffle(down)


WIDE = Tuning(tiles=2, num_out_warps=2, num_in_warps=1)
DEEP = Tuning(tiles=1, num_out_warps=1, num_in_warps=2)


@pytest.mark.parametrize(
    ("case", "tunings"),
    [
        (Experts(num_rows=1), None),  # pairs as they are
        (Experts(num_rows=MAX_PAIR_ROWS, group=None, dtype="float16", zeros=True), (DEEP, WIDE)),
        (Experts(num_rows=7, num_chosen=3), (WIDE, DEEP)),  # sorted
        (Experts(num_rows=20, hidden=256, group=64, zeros=True), None),  # an expert with several groups
        (Experts(num_rows=30, width=40, group=None), (WIDE, WIDE)),  # 16 rows to a group
        (Experts(num_rows=2, named="fp4 coarse"), None),
        (Experts(num_rows=12, named="fp4 coarse"), (WIDE, DEEP)),
        (Experts(num_rows=2, named="uint4 minimums"), None),
        (Experts(num_rows=12, hidden=480, width=96, named="uint4 minimums"), (WIDE, DEEP)),
    ],
    ids=str,
)
def test_few_rows_equal_the_reference(
    experts: ModuleType, case: Experts, tunings: tuple[Tuning, Tuning] | None
) -> None:
    rows = case.rows(torch.bfloat16)
    got = experts.run_few(*rows, *shuffled(case), tunings)
    torch.testing.assert_close(got, expected(case, *rows), atol=2e-2, rtol=2**-5)


def test_a_row_is_the_same_bits_in_any_company(experts: ModuleType) -> None:
    case = Experts(num_rows=20)
    (x, weights, chosen), matrices = case.rows(torch.bfloat16), shuffled(case)
    alone = experts.run_few(x[4:5], weights[4:5], chosen[4:5], *matrices)
    for num_rows in (6, 20):  # in groups of 8, and of 8 and more
        together = experts.run_few(x[:num_rows], weights[:num_rows], chosen[:num_rows], *matrices)
        assert torch.equal(together[4:5], alone)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # the interpreter computes with numpy
@pytest.mark.parametrize(
    "case",
    [
        Experts(num_rows=12, hidden=64, width=32),
        Experts(num_rows=9, hidden=64, width=64, group=64, zeros=True),
        Experts(num_rows=9, hidden=64, width=64, named="fp4 coarse"),
        Experts(num_rows=9, hidden=256, width=128, named="uint4 minimums"),
    ],
    ids=str,
)
def test_many_rows_equal_the_reference(case: Experts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_experts, "_SLICE_BYTES", 2 * 4 * 64 * 64)  # one to four experts at a time
    dtype = torch.bfloat16 if HAS_GPU else torch.float32  # the interpreter's bfloat16 is not the GPU's
    rows = case.rows(dtype)
    wanted = expected(case, *rows).float()
    difference = for_gpu.run_many(*rows, *shuffled(case)).float() - wanted
    # Values are rounded to bfloat16, which those of the definition are not.
    assert difference.norm() <= (1e-2 if HAS_GPU else 1e-4) * wanted.norm()


def multiply_groups(hidden: Tensor, groups: Groups, down: QuantizedMatrix, _num_chosen: None) -> Tensor:
    """What the kernel for any format does: the interpreter's bfloat16 is not the GPU's."""
    result = torch.empty(len(groups.order), down.num_rows, dtype=hidden.dtype)
    for expert, first, end in groups.table.tolist():
        assert end - first <= 16
        products = reference.linear(hidden[first:end].float(), down.expert(expert))
        result[groups.order[first:end].long()] = products.to(hidden.dtype)
    return result


@pytest.mark.parametrize(("num_rows", "is_invariant"), [(2, False), (9, False), (60, True)])
def test_few_rows_with_a_second_matrix_of_another_format(
    experts: ModuleType, num_rows: int, is_invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not HAS_GPU:
        kernel = SimpleNamespace(MAX_GROUP=16, is_one_chain=lambda _device: True, multiply_groups=multiply_groups)
        monkeypatch.setattr(experts, "any_format", kernel)
    case = Experts(num_rows=num_rows, hidden=256, width=128, named="uint4 minimums")
    rows, (gate_up, down) = case.rows(torch.bfloat16), case.matrices()
    got = experts.run_mixed(*rows, int4.shuffle(gate_up, is_gated=True), down, in_one_chain=is_invariant)
    torch.testing.assert_close(got, expected(case, *rows), atol=3e-2, rtol=2**-5)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_many_rows_with_a_second_matrix_of_another_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(for_gpu, "MAX_FEW_PAIRS", 2)
    case = Experts(num_rows=9, hidden=256, width=128, named="uint4 minimums")
    rows, (gate_up, down) = case.rows(torch.bfloat16 if HAS_GPU else torch.float32), case.matrices()
    wanted = expected(case, *rows).float()
    got = for_gpu.run_mixed(*rows, int4.shuffle(gate_up, is_gated=True), down, in_one_chain=False)
    assert (got.float() - wanted).norm() <= (1e-2 if HAS_GPU else 1e-4) * wanted.norm()


@pytest.mark.parametrize("zeros", [False, True])
def test_shuffling_experts_loses_nothing(zeros: bool) -> None:
    case = Experts(zeros=zeros, hidden=64, width=32)
    for matrix, ordered in zip(case.matrices(), shuffled(case), strict=True):
        back = int4.unshuffle(ordered)
        assert back.format == matrix.format
        for name, tensor in matrix.tensors().items():
            assert torch.equal(back.tensors()[name], tensor), name
        assert torch.equal(dequantize(ordered, torch.float32), matrix.values())
        assert torch.equal(dequantize(ordered.experts(2), torch.float32), matrix.expert(2).values())


def test_no_rows() -> None:
    x, weights, chosen = Experts().rows(torch.bfloat16)
    assert int4.run_experts(x[:0], weights[:0], chosen[:0], *shuffled(Experts())).shape == (0, 128)
