"""The gated activation in Triton. Same meaning as `reference.py`.

The sparse version is in `triton_sparse.py`; only batch-invariant arithmetic uses it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Columns of one program: one wide load of the gate and one of the other half for each thread of four warps.
BLOCK = 1024


def geglu(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    num_blocks = triton.cdiv(width, BLOCK)
    # One axis: the others of a grid end at 65,535.
    grid = (gate_up.numel() // (2 * width) * num_blocks,)
    _geglu_kernel[grid](gate_up, out, WIDTH=width, NUM_BLOCKS=num_blocks, BLOCK=BLOCK, num_warps=4)
    return out


@triton.jit
def gelu_tanh(x):
    """0.5 x (1 + tanh(z)), z = sqrt(2 / pi) (x + 0.044715 x^3), as x times the logistic function of 2 z.

    The exponent is never positive: nothing overflows, and the negative tail keeps its digits.
    """
    doubled = 1.5957691216057308 * (x + 0.044715 * x * x * x)
    power = tl.exp(-tl.abs(doubled))
    return x * tl.where(doubled >= 0, 1.0, power) / (1.0 + power)


@triton.jit
def let_through(gate, up):
    """gelu_tanh(gate) * up in their type, to which the reference rounds the first factor too."""
    opened = gelu_tanh(gate.to(tl.float32)).to(gate.dtype)
    return (opened.to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _geglu_kernel(gate_up, out, WIDTH: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    row = (program // NUM_BLOCKS).to(tl.int64)
    columns = program % NUM_BLOCKS * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    start = gate_up + row * (2 * WIDTH)
    gate = tl.load(start + columns, mask=mask, other=0.0)
    up = tl.load(start + WIDTH + columns, mask=mask, other=0.0)
    tl.store(out + row * WIDTH + columns, let_through(gate, up), mask=mask)
