"""Few-row products against the reference: in Triton's interpreter on small shapes, on a GPU on real ones."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from facet.kernels import linear as public
from facet.kernels.linear import cases, gated_input_linear, geglu_linear, linear, reference
from facet.kernels.linear.config import MAX_ROWS, MAX_VECTOR_ROWS, NUM_DOT_ROWS, Config, choose_config

pytest.importorskip("triton")
from facet.kernels.linear import triton as fast

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Triton's interpreter multiplies bfloat16 matrices wrongly, so there float16 stands for the half types.
HALF = torch.bfloat16 if ON_GPU else torch.float16
VECTOR_CONFIG = Config(is_dot=False, block_out=16, block_in=64, num_warps=1, num_stages=1)
DOT_CONFIG = Config(is_dot=True, block_out=32, block_in=64, num_warps=4, num_stages=2)
TALL_CONFIG = replace(DOT_CONFIG, num_rows=32)
REAL_SHAPES = (*cases.E4B, *cases.LARGE)
# What the real shapes are served with.
CHOSEN = sorted(
    {
        config
        for shape in REAL_SHAPES
        for num_rows in range(1, MAX_ROWS + 1)
        if (config := choose_config(num_rows, shape.num_out, shape.num_in)) is not None
    },
    key=str,
)


def check(x: Tensor, weight: Tensor, config: Config) -> None:
    tolerance = cases.TOLERANCES[x.dtype]
    tolerance.check(fast.linear(x, weight, config), reference.linear(x, weight))
    if len(weight) % 2 == 0:
        tolerance.check(fast.geglu_linear(x, weight, config), reference.geglu_linear(x, weight))
    # One layer's share of an input made for three.
    given = torch.randn(len(x), 3, len(weight), device=x.device).to(x.dtype)[:, 1]
    tolerance.check(fast.gated_input_linear(x, weight, given, config), reference.gated_input_linear(x, weight, given))


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize(
    ("num_rows", "config"),
    [*((n, VECTOR_CONFIG) for n in (1, 2, 3, 7)), *((n, DOT_CONFIG) for n in (5, 17)), (35, TALL_CONFIG)],
    ids=str,
)
@pytest.mark.parametrize("shape", cases.ODD, ids=lambda shape: shape.name)
def test_odd_shapes(shape: cases.Shape, num_rows: int, config: Config, dtype: torch.dtype) -> None:
    check(*shape.inputs(num_rows, dtype, DEVICE), config)


@pytest.mark.skipif(not ON_GPU, reason="real shapes need a GPU")
@pytest.mark.parametrize("num_rows", [1, 2, 7, NUM_DOT_ROWS, 32, MAX_ROWS])
@pytest.mark.parametrize("shape", REAL_SHAPES, ids=lambda shape: shape.name)
def test_real_shapes(shape: cases.Shape, num_rows: int) -> None:
    """Through the public functions, and so in the configuration that serves the shape."""
    inputs: tuple[Tensor, ...] = shape.inputs(num_rows, torch.bfloat16, DEVICE)
    if shape.operation == "gated_input_linear":
        inputs = (*inputs, torch.randn(num_rows, 42, shape.num_out, device=DEVICE).bfloat16()[:, 7])
    got, expected = (getattr(module, shape.operation)(*inputs) for module in (public, reference))
    cases.HALF.check(got, expected)


def test_stages_do_not_change_anything() -> None:
    x, weight = cases.ODD[0].inputs(2, HALF, DEVICE)
    staged = Config(is_dot=False, block_out=16, block_in=64, num_warps=1, num_stages=3)
    assert torch.equal(fast.linear(x, weight, staged), fast.linear(x, weight, VECTOR_CONFIG))


@pytest.mark.parametrize(
    ("config", "most"), [(VECTOR_CONFIG, MAX_VECTOR_ROWS + 2), (DOT_CONFIG, NUM_DOT_ROWS)], ids=str
)
def test_company_does_not_change_a_row(config: Config, most: int) -> None:
    """Bit for bit, among calls of one configuration."""
    x, weight = cases.ODD[0].inputs(most, HALF, DEVICE)
    together = fast.geglu_linear(x, weight, config)
    for num_rows in (1, 2, most - 1):
        assert torch.equal(fast.geglu_linear(x[:num_rows], weight, config), together[:num_rows])


@pytest.mark.parametrize(("num_rows", "config"), [(3, VECTOR_CONFIG), (7, VECTOR_CONFIG), (5, DOT_CONFIG)], ids=str)
def test_nothing_around_the_tensors_is_read(num_rows: int, config: Config) -> None:
    """x and the weight lie in larger buffers; NaN in what surrounds them would show."""
    shape = cases.ODD[0]
    x, weight = shape.inputs(num_rows, torch.float32, DEVICE)
    wide_x = torch.full((num_rows + 16, shape.num_in + 64), torch.nan, device=DEVICE)
    wide_weight = torch.full((shape.num_out + 64, shape.num_in + 64), torch.nan, device=DEVICE)
    wide_x[:num_rows, : shape.num_in] = x
    wide_weight[: shape.num_out, : shape.num_in] = weight
    check(wide_x[:num_rows, : shape.num_in], wide_weight[: shape.num_out, : shape.num_in], config)


def test_x_may_lie_column_by_column() -> None:
    x, weight = cases.ODD[0].inputs(3, torch.float32, DEVICE)
    scattered = x.t().contiguous().t()
    assert torch.equal(fast.linear(scattered, weight, VECTOR_CONFIG), fast.linear(x, weight, VECTOR_CONFIG))


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("num_rows", [0, 1, 2, NUM_DOT_ROWS, NUM_DOT_ROWS + 1, MAX_ROWS + 1])
def test_the_public_functions_are_the_reference(num_rows: int, dtype: torch.dtype) -> None:
    """Whichever kernel they choose."""
    tolerance = cases.TOLERANCES[dtype]
    x, weight = cases.ODD[0].inputs(num_rows, dtype, DEVICE)
    given = torch.randn(num_rows, len(weight), device=DEVICE).to(dtype)
    tolerance.check(linear(x, weight), reference.linear(x, weight))
    tolerance.check(geglu_linear(x, weight), reference.geglu_linear(x, weight))
    tolerance.check(gated_input_linear(x, weight, given), reference.gated_input_linear(x, weight, given))


def chosen(shape: cases.Shape, *row_counts: int) -> set[Config | None]:
    return {choose_config(num_rows, shape.num_out, shape.num_in) for num_rows in row_counts}


@pytest.mark.parametrize("shape", REAL_SHAPES, ids=lambda shape: shape.name)
def test_few_row_counts_change_the_configuration(shape: cases.Shape) -> None:
    """So that a row's result seldom depends on its company."""
    assert len(chosen(shape, *range(3, 9))) == 1
    for counts in (range(9, NUM_DOT_ROWS + 1), range(NUM_DOT_ROWS + 1, 33), range(33, MAX_ROWS + 1)):
        assert len(chosen(shape, *counts)) == 1
    assert chosen(shape, 0, MAX_ROWS + 1) == {None}


@pytest.mark.parametrize("shape", REAL_SHAPES, ids=lambda shape: shape.name)
def test_one_row_needs_no_tensor_cores(shape: cases.Shape) -> None:
    (config,) = chosen(shape, 1)
    assert config is not None
    assert not config.is_dot


def test_products_with_an_activation_are_never_left_to_cublas() -> None:
    """Of few rows, that is: it would need a second kernel."""
    for shape in REAL_SHAPES:
        if shape.operation != "linear":
            assert None not in chosen(shape, *range(1, NUM_DOT_ROWS + 1)), shape


def test_down_projections_of_several_rows_are_left_to_cublas() -> None:
    for shape in REAL_SHAPES:
        if shape.name.endswith("down"):
            assert chosen(shape, *range(3, MAX_ROWS + 1)) == {None}, shape


@pytest.mark.parametrize("config", CHOSEN, ids=str)
def test_every_configuration_in_use_is_right(config: Config) -> None:
    check(*cases.ODD[1].inputs(3, HALF, DEVICE), config)


@pytest.mark.parametrize("config", CHOSEN, ids=str)
def test_no_thread_of_a_configuration_in_use_is_idle(config: Config) -> None:
    """Eight columns for each: fewer would leave threads with copies of the same work."""
    assert config.is_dot or config.block_in % (256 * config.num_warps) == 0


@pytest.mark.skipif(not ON_GPU, reason="graphs need a GPU")
@pytest.mark.parametrize("num_rows", [1, 8])
def test_a_captured_graph_computes_the_same(num_rows: int) -> None:
    x, weight = cases.E4B[0].inputs(num_rows, torch.bfloat16, DEVICE)
    expected = geglu_linear(x, weight)
    graph = torch.cuda.CUDAGraph()
    static_x = torch.zeros_like(x)
    with torch.cuda.graph(graph):
        output = geglu_linear(static_x, weight)
    static_x.copy_(x)
    graph.replay()
    assert torch.equal(output, expected)
