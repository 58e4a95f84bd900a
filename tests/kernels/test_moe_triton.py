"""Routing and experts in Triton against the reference: in its interpreter on small shapes, on a GPU on real ones."""

from dataclasses import replace

import pytest
import torch

from facet.kernels.moe import cases, reference

pytest.importorskip("triton")
from facet.kernels.moe import triton as fast
from facet.kernels.moe.config import MAX_PAIR_ROWS, TileConfig, choose_tiles
from facet.kernels.moe.triton_changed import sorted_products

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter multiplies bfloat16 matrices wrongly, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16
TOLERANCES = {torch.float32: cases.FLOAT32, torch.float16: cases.BFLOAT16, torch.bfloat16: cases.BFLOAT16}
SMALL_TILES = (
    TileConfig(block_rows=16, block_out=32, block_in=32, num_warps=4, num_stages=2),
    TileConfig(block_rows=16, block_out=16, block_in=16, num_warps=4, num_stages=2),
)
HALVED_TILES = (
    TileConfig(block_rows=32, block_out=32, block_in=32, num_warps=4, num_stages=2, may_halve=True),
    TileConfig(block_rows=32, block_out=64, block_in=16, num_warps=4, num_stages=2, may_halve=True),
)
# Fewer pairs than experts, several chunks of pairs, all experts chosen; widths that are no multiple of a tile.
SMALL = (
    cases.Case(num_rows=1, hidden=24, num_experts=6, num_chosen=2, width=10),
    cases.Case(num_rows=3, hidden=24, num_experts=5, num_chosen=3, width=12),
    cases.Case(num_rows=37, hidden=32, num_experts=6, num_chosen=4, width=16),
    cases.Case(num_rows=4, hidden=20, num_experts=3, num_chosen=3, width=8),
)
REAL = tuple(
    cases.Case(num_rows=num_rows, hidden=2816, num_experts=128, num_chosen=8, width=704)
    for num_rows in (1, 3, 8, 9, 32, 128, 2048)
)


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("case", [*SMALL, *REAL] if ON_GPU else SMALL, ids=str)
def test_route_is_the_reference(case: cases.Case, dtype: torch.dtype) -> None:
    """Rows in which two logits are equal may differ in which of the two comes first, so they are made to differ."""
    inputs = case.inputs(dtype, DEVICE)
    ranks = torch.rand(case.num_rows, case.num_experts, device=DEVICE).argsort(-1)
    logits = (ranks / 16 - 3).to(dtype)
    weights, chosen = fast.route(logits, case.num_chosen, inputs.expert_scale)
    expected_weights, expected_chosen = reference.route(logits, case.num_chosen, inputs.expert_scale)
    assert torch.equal(chosen, expected_chosen)
    assert weights.dtype == torch.float32
    cases.FLOAT32.check(weights, expected_weights)


def test_of_equal_experts_the_first_are_chosen() -> None:
    logits = torch.zeros(2, 6, device=DEVICE)
    logits[1, 4] = 1.0
    weights, chosen = fast.route(logits, 3, torch.ones(6, device=DEVICE))
    assert chosen.tolist() == [[0, 1, 2], [4, 0, 1]]
    assert weights[0].tolist() == pytest.approx([1 / 3] * 3)


def test_experts_ruled_out_come_last_and_weigh_nothing() -> None:
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, -torch.inf, -torch.inf]], device=DEVICE)
    weights, chosen = fast.route(logits, 2, torch.ones(5, device=DEVICE))
    assert chosen.tolist() == [[1, 0]]
    assert weights.tolist() == [[1.0, 0.0]]


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # the interpreter computes with numpy
def test_nan_among_the_logits_still_names_experts_that_exist() -> None:
    logits = torch.full((2, 5), torch.nan, device=DEVICE)
    _, chosen = fast.route(logits, 3, torch.ones(5, device=DEVICE))
    assert ((chosen >= 0) & (chosen < 5)).all()


def check_experts(case: cases.Case, dtype: torch.dtype, tiles: tuple[TileConfig, TileConfig] | None) -> None:
    inputs = case.inputs(dtype, DEVICE)
    weights, chosen = reference.route(inputs.router_logits, case.num_chosen, inputs.expert_scale)
    got = fast.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down, tiles)
    assert got.dtype == dtype
    TOLERANCES[dtype].check(got, reference.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down))


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_grouped_experts_are_the_reference(case: cases.Case, dtype: torch.dtype) -> None:
    check_experts(case, dtype, SMALL_TILES)


@pytest.mark.parametrize("width", [40, 64])
@pytest.mark.parametrize("counts", [(40, 10, 32, 16), (17, 33, 1, 64)], ids=str)
def test_tiles_are_halved_where_little_is_left(counts: tuple[int, ...], width: int) -> None:
    """Groups of few pairs, weights of few rows, and both: the same bits as in whole tiles."""
    case = cases.Case(num_rows=sum(counts), hidden=48, num_experts=4, num_chosen=1, width=width)
    inputs = case.inputs(HALF, DEVICE)
    chosen = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))[:, None].to(DEVICE)
    weights = torch.rand(case.num_rows, 1, device=DEVICE)
    whole = tuple(replace(config, may_halve=False) for config in HALVED_TILES)
    got, expected = (
        fast.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down, tiles)  # type: ignore[arg-type]
        for tiles in (HALVED_TILES, whole)
    )
    assert torch.equal(got, expected)
    TOLERANCES[HALF].check(got, reference.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down))


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("case", [case for case in SMALL if case.num_rows <= MAX_PAIR_ROWS], ids=str)
def test_experts_of_few_rows_are_the_reference(case: cases.Case, dtype: torch.dtype) -> None:
    check_experts(case, dtype, None)


@pytest.mark.skipif(not ON_GPU, reason="real shapes need a GPU")
@pytest.mark.parametrize("case", REAL, ids=str)
def test_real_experts(case: cases.Case) -> None:
    check_experts(case, torch.bfloat16, None)


@pytest.mark.skipif(not ON_GPU, reason="real shapes need a GPU")
@pytest.mark.parametrize("case", [REAL[0], REAL[4]], ids=str)
def test_real_experts_in_float32(case: cases.Case) -> None:
    check_experts(case, torch.float32, None)


@pytest.mark.parametrize("tiles", [None, SMALL_TILES], ids=["few rows", "grouped"])
def test_experts_nobody_chose_are_not_read(tiles: tuple[TileConfig, TileConfig] | None) -> None:
    """NaN in their weights would show; one expert has all of some choices, and the first and the last have none."""
    inputs = SMALL[1].inputs(torch.float32, DEVICE)
    chosen = torch.tensor([[3, 1], [3, 1], [1, 3]], device=DEVICE)
    weights = torch.full(chosen.shape, 0.5, device=DEVICE)
    expected = reference.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down)
    for unused in (0, 2, 4):
        inputs.gate_up[unused] = torch.nan
        inputs.down[unused] = torch.nan
    got = fast.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down, tiles)
    cases.FLOAT32.check(got, expected)


@pytest.mark.parametrize("tiles", [None, SMALL_TILES], ids=["few rows", "grouped"])
def test_company_does_not_change_a_row(tiles: tuple[TileConfig, TileConfig] | None) -> None:
    """Bit for bit, wherever in its expert's tile a row comes to lie."""
    case = SMALL[1]
    inputs = case.inputs(HALF, DEVICE)
    weights, chosen = reference.route(inputs.router_logits, case.num_chosen, inputs.expert_scale)
    together = fast.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down, tiles)
    for row in range(case.num_rows):
        only = slice(row, row + 1)
        alone = fast.run_experts(inputs.x[only], weights[only], chosen[only], inputs.gate_up, inputs.down, tiles)
        assert torch.equal(alone, together[only])


def test_no_rows() -> None:
    inputs = SMALL[0].inputs(torch.float32, DEVICE)
    weights, chosen = fast.route(inputs.router_logits[:0], 2, inputs.expert_scale)
    assert weights.shape == chosen.shape == (0, 2)
    assert fast.run_experts(inputs.x[:0], weights, chosen, inputs.gate_up, inputs.down).shape == (0, 24)


def test_tiles_grow_with_the_pairs_of_an_expert() -> None:
    heights = [choose_tiles(8 * num_rows, 128, element_size=2)[0].block_rows for num_rows in (16, 128, 1024, 8192)]
    assert heights == sorted(heights)
    assert heights[0] < heights[-1]


@pytest.mark.skipif(not ON_GPU, reason="graphs need a GPU")
@pytest.mark.parametrize("case", REAL[1:5], ids=str)
def test_a_captured_graph_follows_its_inputs(case: cases.Case) -> None:
    """The choice of experts at replay is another than at capture."""
    inputs = case.inputs(torch.bfloat16, DEVICE)
    logits = torch.zeros_like(inputs.router_logits)

    def run() -> torch.Tensor:
        weights, chosen = fast.route(logits, case.num_chosen, inputs.expert_scale)
        return fast.run_experts(inputs.x, weights, chosen, inputs.gate_up, inputs.down)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()
    logits.copy_(inputs.router_logits)
    graph.replay()
    assert torch.equal(output, run())


@pytest.mark.parametrize("case", [*SMALL, *REAL[:4]] if ON_GPU else SMALL, ids=str)
def test_products_of_sorted_pairs(case: cases.Case) -> None:
    """Each product by itself, for those who change its results: every pair by the matrix of its expert."""
    inputs = case.inputs(torch.float32, DEVICE)
    _, chosen = reference.route(inputs.router_logits, case.num_chosen, inputs.expert_scale)
    order, multiply = sorted_products(chosen, case.num_experts, 4)
    experts = chosen.flatten()[order]
    assert experts.tolist() == sorted(chosen.flatten().tolist())
    rows = inputs.x[order // case.num_chosen]
    gates = multiply(rows, inputs.gate_up)
    cases.FLOAT32.check(gates, torch.einsum("pi,poi->po", rows.double(), inputs.gate_up[experts].double()))
    hidden = gates[:, : case.width].contiguous()
    expected = torch.einsum("pi,poi->po", hidden.double(), inputs.down[experts].double())
    cases.FLOAT32.check(multiply(hidden, inputs.down), expected)
