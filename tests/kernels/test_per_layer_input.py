"""Per-layer inputs against their formulas in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from facet.kernels.per_layer_input import cases, gate_per_layer_input
from facet.kernels.per_layer_input.reference import mix_per_layer_inputs

TOLERANCES = {torch.float32: cases.FLOAT32, torch.bfloat16: cases.BFLOAT16}


def mixed(context: Tensor, token: Tensor, weight: Tensor, scale: float, eps: float) -> Tensor:
    out = torch.empty(context.shape, dtype=torch.float64)
    for row in range(context.shape[0]):
        for layer in range(context.shape[1]):
            scaled = context[row, layer].double() * scale
            normed = scaled / (scaled.square().mean() + eps).sqrt() * weight.double()
            out[row, layer] = (normed + token[row, layer].double()) / math.sqrt(2)
    return out


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_mixing(case: cases.Case, dtype: torch.dtype) -> None:
    context, token, weight = case.inputs(dtype)
    scale = 2560**-0.5
    got = mix_per_layer_inputs(context, token, weight, context_scale=scale, eps=1e-6)
    assert got.dtype == dtype
    TOLERANCES[dtype].check(got, mixed(context, token, weight, scale, 1e-6))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_gating(case: cases.Case, dtype: torch.dtype) -> None:
    gate, per_layer_input, _ = (tensor.select(-2, 0) if tensor.dim() > 1 else tensor for tensor in case.inputs(dtype))
    got = gate_per_layer_input(gate, per_layer_input)
    u = gate.double()
    gelu = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
    assert got.dtype == dtype
    TOLERANCES[dtype].check(got, gelu * per_layer_input.double())


@given(
    num_rows=st.integers(1, 3),
    num_layers=st.integers(1, 4),
    width=st.integers(1, 9),
    scale=st.floats(0.01, 1.0),
    seed=st.integers(0, 1000),
)
def test_any_small_shape(num_rows: int, num_layers: int, width: int, scale: float, seed: int) -> None:
    case = cases.Case(num_rows=num_rows, num_layers=num_layers, width=width)
    context, token, weight = case.inputs(torch.float32, seed=seed)
    got = mix_per_layer_inputs(context, token, weight, context_scale=scale, eps=1e-6)
    cases.FLOAT32.check(got, mixed(context, token, weight, scale, 1e-6))
