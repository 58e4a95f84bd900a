"""All that follows attention in one launch: against products and norms of their own, on a GPU bit for bit."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from facet.kernels.add_norm import invariant_add_norm
from facet.kernels.after_attention import Weights, can_run
from facet.kernels.after_attention.plan import Sizes, can_divide, num_stages
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.kernels.hopper import runs_on_hopper
from facet.kernels.linear import cases
from facet.kernels.per_layer_input.reference import gate_per_layer_input

pytest.importorskip("triton")
from tests.kernels import gluon_together
from tests.kernels.gluon_copies import COPYING, LaterProduct, nothing, wait_for_products
from tests.kernels.gluon_emulator import emulated

ROOM = "facet.kernels.after_attention"
ON_HOPPER = torch.cuda.is_available() and runs_on_hopper(torch.device("cuda"))
DEVICE = "cuda" if ON_HOPPER else "cpu"
NAMES = {
    **COPYING,
    "arrive": gluon_together.arrive,
    "let_through": lambda gate, up: gate_per_layer_input(gate, up),
    "meet": gluon_together.meet,
    "fence_async_shared": nothing,
    "warpgroup_mma": lambda values, tile, sums, is_async: LaterProduct(values, tile, sums),
    "warpgroup_mma_wait": wait_for_products,
}
# Whole tiles and others; groups of one size and others; with a gate and without; long norms.
SMALL = {
    "whole": Sizes(2560, 512, 1024, 256),
    "without a gate": Sizes(2816, 256, 768, 0),
    "long rows": Sizes(5376, 1024, 512, 0),
}
E4B, E4B_GLOBAL, B31 = Sizes(2560, 2048, 10240, 256), Sizes(2560, 4096, 10240, 256), Sizes(5376, 8192, 21504, 0)


def make(sizes: Sizes, *, has_scale: bool, seed: int = 0) -> tuple[Weights, Tensor, Tensor, Tensor | None, Tensor]:
    source = torch.Generator().manual_seed(seed)

    def matrix(num_out: int, num_in: int) -> Tensor:
        return (torch.randn(num_out, num_in, generator=source) * num_in**-0.5).bfloat16().to(DEVICE)

    def norm() -> Tensor:
        return (1 + 0.2 * torch.randn(sizes.hidden, generator=source)).to(DEVICE)

    def row(width: int) -> Tensor:
        return torch.randn(1, width, generator=source).bfloat16().to(DEVICE)

    has_gate = sizes.per_layer > 0
    weights = Weights(
        output=matrix(sizes.hidden, sizes.queries),
        output_norm=norm(),
        gate_up_norm=norm(),
        gate_up=matrix(2 * sizes.mlp, sizes.hidden),
        down=matrix(sizes.hidden, sizes.mlp),
        down_norm=norm(),
        gate=matrix(sizes.per_layer, sizes.hidden) if has_gate else None,
        projection=matrix(sizes.hidden, sizes.per_layer) if has_gate else None,
        projection_norm=norm() if has_gate else None,
        scale=torch.tensor([0.7]).bfloat16().to(DEVICE) if has_scale else None,
        eps=1e-6,
    )
    given = row(3 * sizes.per_layer)[:, sizes.per_layer : 2 * sizes.per_layer] if has_gate else None
    return weights, row(sizes.queries), row(sizes.hidden), given, norm()


def one_after_another(
    attended: Tensor, stream: Tensor, given: Tensor | None, weights: Weights, next_norm: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    with_chains, eps = BATCH_INVARIANT, weights.eps
    update = with_chains.linear(attended, weights.output)
    stream, h = invariant_add_norm(stream, update, weights.output_norm, weights.gate_up_norm, eps)
    assert h is not None
    update, norm = with_chains.linear(with_chains.geglu_linear(h, weights.gate_up), weights.down), weights.down_norm
    if weights.gate is not None:
        assert given is not None
        assert weights.projection is not None
        assert weights.projection_norm is not None
        stream, _ = invariant_add_norm(stream, update, norm, None, eps)
        gated = with_chains.gated_input_linear(stream, weights.gate, given)
        update, norm = with_chains.linear(gated, weights.projection), weights.projection_norm
    return invariant_add_norm(stream, update, norm, next_norm, eps, weights.scale)


@pytest.fixture(autouse=True)
def nothing_left_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs have not stored yet cannot be read: it is not there from a launch before."""
    monkeypatch.setattr(Tensor, "new_empty", lambda like, *shape: like.new_full(shape, float("nan")))


def emulate(change: tuple[str, str] | None = None) -> ModuleType:
    names = [f"{ROOM}.kernel", f"{ROOM}.launch"]
    return emulated(names, f"{ROOM}.language", own=NAMES, change=change, make_kernel=gluon_together.jit)


@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
@pytest.mark.parametrize("has_scale", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_emulated(name: str, has_scale: bool) -> None:
    launch = emulate()
    weights, attended, stream, given, next_norm = make(SMALL[name], has_scale=has_scale)
    norm = next_norm if has_scale else None
    got, got_normed = launch.run(attended, stream, given, weights, norm, num_programs=4)
    expected, expected_normed = one_after_another(attended, stream, given, weights, norm)
    cases.HALF.check(got, expected)
    if norm is None:
        assert got_normed is None
    else:
        cases.HALF.check(got_normed, expected_normed)


@pytest.mark.skipif(ON_HOPPER, reason="of the emulator")
@pytest.mark.parametrize(
    "change",
    [
        ("wait_for_copies(STAGES - 3)", "wait_for_copies(STAGES - 2)"),
        ("tile + STAGES - 2, tiles", "tile + STAGES - 1, tiles"),
        ("mask=is_out)\n    meet(arrivals, NUM_PROGRAMS)", "mask=is_out)"),
        ("BLOCK)\n    meet(arrivals, NUM_PROGRAMS)", "BLOCK)"),
        ("mask=is_out)\n        meet(arrivals, NUM_PROGRAMS)", "mask=is_out)"),
        ("- 1)) == NUM_PROGRAMS - 1", "- 1)) == 0"),
    ],
)
def test_faults_are_found(change: tuple[str, str]) -> None:
    launch = emulate(change=change)
    weights, attended, stream, given, next_norm = make(SMALL["whole"], has_scale=True)
    expected, _ = one_after_another(attended, stream, given, weights, next_norm)

    def run_in_some_orders() -> None:
        for seed in range(6):
            gluon_together.PROGRAMS.random.seed(seed)
            got, _ = launch.run(attended, stream, given, weights, next_norm, num_programs=4)
            cases.HALF.check(got, expected)

    with pytest.raises(AssertionError):
        run_in_some_orders()


def test_which_layers_are_served() -> None:
    for sizes in (E4B, E4B_GLOBAL, B31, Sizes(3840, 4096, 15360, 0)):
        assert can_divide(sizes)
        assert 4 <= num_stages(sizes) <= 11
    assert not can_divide(Sizes(1152, 1024, 6912, 0)), "norms of short rows add in another order"
    assert not can_divide(Sizes(2560, 2048, 10240 + 64, 0)), "programs have as many outputs"
    weights, attended, *_ = make(SMALL["whole"], has_scale=False)
    assert can_run(attended, weights) == ON_HOPPER
    assert not can_run(attended.repeat(2, 1), weights), "one row alone"


@pytest.mark.skipif(not ON_HOPPER, reason="sums are those of tensor cores")
@pytest.mark.parametrize("sizes", [E4B, E4B_GLOBAL, B31, Sizes(3840, 4096, 15360, 0)], ids=str)
def test_bits_are_those_of_products_and_norms_of_their_own(sizes: Sizes) -> None:
    from facet.kernels.after_attention import launch

    for seed in range(4):
        weights, attended, stream, given, next_norm = make(sizes, has_scale=seed % 2 == 1, seed=seed)
        norm = None if seed == 2 else next_norm
        expected = one_after_another(attended, stream, given, weights, norm)
        for _ in range(50):
            got = launch.run(attended, stream, given, weights, norm)
            for ours, theirs in zip(got, expected, strict=True):
                assert (ours is None and theirs is None) or torch.equal(ours, theirs)
