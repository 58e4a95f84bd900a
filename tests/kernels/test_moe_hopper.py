"""Grouped products of experts on Hopper against plain ones: emulated on a CPU; on the card bit for bit as in Triton."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear.reference import geglu_linear, linear
from facet.kernels.moe import cases, route, run_experts
from facet.kernels.per_layer_input.reference import gate_per_layer_input

pytest.importorskip("triton")
from facet.kernels.moe import triton_groups
from facet.kernels.moe.config import choose_tiles
from facet.kernels.moe.groups import Groups
from facet.kernels.moe.triton_groups import ExpertMatrices
from facet.kernels.moe.triton_sorting import group_pairs
from tests.kernels.gluon_emulator import emulated

ON_HOPPER = torch.cuda.is_available() and runs_on_hopper(torch.device("cuda"))
DEVICE = "cuda" if ON_HOPPER else "cpu"
pytestmark = pytest.mark.skipif(torch.cuda.is_available() and not ON_HOPPER, reason="emulated where there is no GPU")
emulated_only = pytest.mark.skipif(ON_HOPPER, reason="about the emulator")

ROOM = "facet.kernels.moe"
GROUP_SIZE = 128
NUM_CHOSEN = 2
# Pairs of each expert: whole tiles, half ones and less, more than a program's turn; experts without any.
COUNTS = ((128, 0, 60, 130), (0, 64, 65, 193, 2), (1, 257, 0))
# Of columns and inputs: whole tiles, a wide and a narrow one, a narrow one alone.
FIRST_SHAPES = ((128, 64), (168, 192), (232, 448), (40, 576))
SECOND_SHAPES = ((256, 64), (300, 136), (440, 40), (64, 520))


def kernels(**how: Any) -> ModuleType:
    if ON_HOPPER:
        from facet.kernels.moe import hopper_groups

        return hopper_groups
    return emulated(
        ["facet.kernels.gluon_parts", *(f"{ROOM}.hopper_{name}" for name in ("turns", "kernel", "groups"))],
        "facet.kernels.gluon_names",
        f"{ROOM}.language",
        own={"let_through": gate_per_layer_input, "start_after_previous": lambda is_dependent: None},
        **how,
    )


def normal(*shape: int, deviation: float = 1.0) -> Tensor:
    return (deviation * torch.randn(*shape)).bfloat16().to(DEVICE)


def grouped(counts: tuple[int, ...]) -> Groups:
    """Pairs in any order; an odd number of them is filled up with one more of the last expert that has some."""
    experts = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    if len(experts) % NUM_CHOSEN:
        experts = torch.cat((experts, experts[-1:]))
    chosen = experts[torch.randperm(len(experts))].view(-1, NUM_CHOSEN)
    return group_pairs(chosen.to(DEVICE), len(counts), GROUP_SIZE)


def places_of(groups: Groups) -> list[tuple[int, slice]]:
    return [(expert, slice(first, end)) for expert, first, end in groups.table.tolist() if end]


def check_first(counts: tuple[int, ...], width: int, num_in: int, **how: Any) -> None:
    groups = grouped(counts)
    x = normal(len(groups.order) // NUM_CHOSEN, num_in)
    matrices = normal(len(counts), 2 * width, num_in, deviation=num_in**-0.5)
    result = torch.full((len(groups.order), width), torch.nan, dtype=x.dtype, device=DEVICE)
    kernels(**how).multiply_groups(x, groups, matrices, result, NUM_CHOSEN)
    assert not groups.taken.any(), "the next product counts from zero"
    for expert, places in places_of(groups):
        rows = x[groups.order[places].long() // NUM_CHOSEN]
        cases.BFLOAT16.check(result[places], geglu_linear(rows, matrices[expert]))


def check_second(counts: tuple[int, ...], num_out: int, num_in: int, **how: Any) -> None:
    groups = grouped(counts)
    source = normal(len(groups.order), num_in)
    matrices = normal(len(counts), num_out, num_in, deviation=num_in**-0.5)
    result = torch.full((len(groups.order), num_out), torch.nan, dtype=source.dtype, device=DEVICE)
    kernels(**how).multiply_groups(source, groups, matrices, result, None)
    assert not groups.taken.any(), "the next product counts from zero"
    for expert, places in places_of(groups):
        cases.BFLOAT16.check(result[groups.order[places].long()], linear(source[places], matrices[expert]))


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(("width", "num_in"), FIRST_SHAPES)
def test_gate_and_up(counts: tuple[int, ...], width: int, num_in: int) -> None:
    check_first(counts, width, num_in)


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize(("num_out", "num_in"), SECOND_SHAPES)
def test_down(counts: tuple[int, ...], num_out: int, num_in: int) -> None:
    check_second(counts, num_out, num_in)


@emulated_only
@pytest.mark.parametrize("seed", range(1, 5))
def test_whichever_partition_goes_first(seed: int) -> None:
    check_first((70, 3, 130), 168, 384, seed=seed)
    check_second((70, 3, 130), 300, 384, seed=seed)


@pytest.mark.parametrize("is_first", [True, False], ids=["gate and up", "down"])
def test_some_of_the_experts(is_first: bool) -> None:
    """Results of the others are left as they are, and infinities among their rows and weights do not get far.

    Nor does NaN, but in the emulator that means that a copy has not landed.
    """
    counts, some = (70, 131, 10, 140, 5), slice(1, 3)
    groups = grouped(counts)
    num_pairs = len(groups.order)
    matrices = normal(len(counts), 300, 128, deviation=0.1)
    expected_matrices = matrices.clone()
    for other in (0, 3, 4):
        matrices[other] = torch.inf
    source = normal(num_pairs // NUM_CHOSEN if is_first else num_pairs, 128)
    result = torch.full((num_pairs, 150 if is_first else 300), torch.nan, dtype=source.dtype, device=DEVICE)
    of_some = torch.zeros(num_pairs, dtype=torch.bool, device=DEVICE)
    for expert, places in places_of(groups):
        if expert in (1, 2):
            of_some[places] = True
        elif not is_first:
            source[places] = torch.inf
    written = of_some.clone()
    if not is_first:
        written[groups.order.long()] = of_some
    kernels().multiply_groups(source, groups, matrices[some], result, NUM_CHOSEN if is_first else None, 1)
    assert result[~written].isnan().all()
    assert not result[written].isnan().any()
    for expert, places in places_of(groups):
        if expert in (1, 2):
            pairs = groups.order[places].long()
            if is_first:
                got, expected = result[places], geglu_linear(source[pairs // NUM_CHOSEN], expected_matrices[expert])
            else:
                got, expected = result[pairs], linear(source[places], expected_matrices[expert])
            cases.BFLOAT16.check(got, expected)


@pytest.mark.skipif(not ON_HOPPER, reason="bits are those of tensor cores")
@pytest.mark.parametrize("num_rows", [100, 1500, 8192])
@pytest.mark.parametrize("width", [704, 352])
def test_bits_are_those_of_the_triton_kernel(num_rows: int, width: int) -> None:
    case = cases.Case(num_rows=num_rows, hidden=2816, num_experts=128, num_chosen=8, width=width)
    inputs = case.inputs(torch.bfloat16, DEVICE)
    # Some experts have many pairs, others few or none.
    favoured = inputs.router_logits + torch.linspace(-2, 2, case.num_experts, device=DEVICE)
    groups = group_pairs(favoured.topk(case.num_chosen).indices, case.num_experts, GROUP_SIZE)
    config = choose_tiles(128 * 512, 128, element_size=2)[0]
    source: Tensor = inputs.x
    for matrices, num_columns, num_chosen in ((inputs.gate_up, width, case.num_chosen), (inputs.down, 2816, None)):
        got, expected = (
            torch.full((len(groups.order), num_columns), torch.nan, dtype=source.dtype, device=DEVICE) for _ in range(2)
        )
        kernels().multiply_groups(source, groups, matrices, got, num_chosen)
        triton_groups.multiply_in_triton(source, groups, ExpertMatrices(matrices), expected, num_chosen, config)
        assert torch.equal(got, expected)
        source = got


@pytest.mark.skipif(not ON_HOPPER, reason="chosen on Hopper alone")
@pytest.mark.parametrize("num_rows", [1024, 4096])
def test_experts_are_the_same_either_way(num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1024 rows on, experts have 64 pairs."""
    case = cases.Case(num_rows=num_rows, hidden=2816, num_experts=128, num_chosen=8, width=704)
    inputs = case.inputs(torch.bfloat16, DEVICE)
    weights, chosen = route(inputs.router_logits, case.num_chosen, inputs.expert_scale)
    got = run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down)
    monkeypatch.setattr(triton_groups, "runs_on_hopper", lambda device: False)
    assert torch.equal(got, run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down))


@pytest.mark.skipif(not ON_HOPPER, reason="other GPUs know no dependent launch")
def test_products_that_start_early_wait_for_their_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of layers one after another, whose tensors take each other's memory."""
    from facet.kernels.moe import hopper_groups

    case = cases.Case(num_rows=2048, hidden=2816, num_experts=128, num_chosen=8, width=704)
    inputs = case.inputs(torch.bfloat16, DEVICE)

    def run() -> Tensor:
        x = inputs.x
        for layer in range(8):
            weights, chosen = route(inputs.router_logits.roll(layer, 0), case.num_chosen, inputs.expert_scale)
            x = run_experts(x, weights, chosen, inputs.gate_up, inputs.down)
        return x

    got = [run() for _ in range(3)]
    monkeypatch.setattr(hopper_groups, "launch_options", lambda device: {"IS_DEPENDENT": False})
    expected = run()
    assert all(torch.equal(each, expected) for each in got)


FAULTS = {
    "copied numbers reach a product without a fence": ("        fence_async_shared()\n", "        pass\n"),
    "partitions wait for each other": (
        "            for idle in range(number, number + NUM_STEPS):",
        "            for idle in range(number, number + NUM_STEPS - 1):",
    ),
    "other warps of the partition may be behind": ("    thread_barrier()\n    mbarrier.arrive", "    mbarrier.arrive"),
    "a product reads what has not landed": ("    mbarrier.wait(ready.index(stage), number // STAGES & 1)\n", ""),
    "an operand changed under a product": (
        "wait(1, deps=(started,))\n        _give_back",
        "wait(2, deps=(started,))\n        _give_back",
    ),
    "Tensor-likes are not close": ("(NUM_OUT // 2 if IS_FIRST", "(NUM_OUT // 2 - 1 if IS_FIRST"),
}


@emulated_only
@pytest.mark.parametrize("finding", FAULTS)
def test_planted_faults_are_found(finding: str) -> None:
    with pytest.raises(AssertionError, match=finding):
        check_first((70, 3, 130), 168, 640, change=FAULTS[finding])
