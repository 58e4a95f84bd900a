"""The definition of the rotation.

Pairs are (j, j + head_dim/2). Only the first `num_pairs` of them are rotated; with "proportional" rotary that is a
quarter, and the rotated dimensions are *not* the first quarter of the vector:

    head_dim 8, 1 rotated pair    x0 x1 x2 x3 | x4 x5 x6 x7
                                  ▲             ▲              x0, x4 rotate; the rest pass
"""

import torch
from torch import Tensor


def rotary_table(
    num_positions: int,
    *,
    head_dim: int,
    num_pairs: int,
    theta: float,
    factor: float,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Tensor:
    """cos and sin of every angle: [num_positions, 2, num_pairs]. Angles are float32; the result is `dtype`.

    The exponent is divided by the whole head_dim, however few pairs turn.
    """
    exponents = torch.arange(0, 2 * num_pairs, 2, dtype=torch.float32, device=device) / head_dim
    frequencies = 1.0 / (theta**exponents) / factor
    angles = torch.arange(num_positions, dtype=torch.float32, device=device)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(dtype)


def apply_rotary(x: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate heads. x: [..., heads, head_dim]; cos_sin: [..., 2, num_pairs], one entry per row, shared by its heads."""
    cos, sin = cos_sin.unsqueeze(-3).unbind(-2)
    num_pairs = cos.shape[-1]
    half = x.shape[-1] // 2
    low, high = x[..., :num_pairs], x[..., half : half + num_pairs]
    rotated_low = low * cos - high * sin
    rotated_high = high * cos + low * sin
    if num_pairs == half:
        return torch.cat((rotated_low, rotated_high), dim=-1)
    still_low, still_high = x[..., num_pairs:half], x[..., half + num_pairs :]
    return torch.cat((rotated_low, still_low, rotated_high, still_high), dim=-1)
