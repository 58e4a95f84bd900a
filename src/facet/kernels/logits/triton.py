"""The soft cap in Triton: one pass over the logits, from the activations' type to float32."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, start_after_previous

# Two wide loads for each thread of four warps.
BLOCK = 2048


def softcap(logits: Tensor, cap: float | None, out: Tensor | None = None) -> Tensor:
    if cap is None:
        return logits.float() if out is None else out.copy_(logits)
    logits = logits.contiguous()
    if out is None:
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    assert out.is_contiguous(), "one run of logits"
    num_elements = logits.numel()
    grid = (triton.cdiv(num_elements, BLOCK),)
    _softcap_kernel[grid](
        logits, out, num_elements, cap, 1.0 / cap, BLOCK=BLOCK, num_warps=4, **launch_options(logits.device)
    )
    return out


@triton.jit
def _tanh(x, BORDER: tl.constexpr = 0.0625):
    """Computes tanh from an exponential whose exponent is never positive; near zero, where that loses digits, from a
    series.

    At the border the series' first missing term is 1e-8 of the result.
    """
    square = tl.minimum(x * x, BORDER)
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    power = tl.exp(-2 * tl.abs(x))
    size = (1 - power) / (1 + power)
    return tl.where(square < BORDER, series, tl.where(x < 0, -size, size))


@triton.jit
def _softcap_kernel(logits, out, num_elements, cap, inverse_cap, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr):
    start_after_previous(IS_DEPENDENT)
    # 8,192 rows of a vocabulary of 262,144 are 2^31 elements.
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = places < num_elements
    value = tl.load(logits + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + places, _tanh(value * inverse_cap) * cap, mask=mask)
