"""Defines how vectors become stored numbers and back; every kernel follows it.

In, from activations x [..., head_dim] of any float type, all in float32:

    per token and head   scale  = max |x| / L           L = 127 for int8, 448 for fp8 e4m3
                         stored = round(x / scale)      to the nearest, ties to even; cut to -L .. L
    otherwise            stored = round(x)              cut to the range of the stored type; nothing where types agree

A scale below the smallest normal float32 (so that of a vector of zeros) is 1, and the vector is stored as zeros. NaN or
infinity in x makes the scale NaN or infinity, and every number of the vector NaN when it is read, so the fault stays
visible.

Out, to the type of the queries:

    x = stored * scale   in float32, then rounded once to the type of the queries; without scales, stored is converted
"""

import torch
from torch import Tensor

SMALLEST_SCALE = 2.0**-126


def largest_stored(dtype: torch.dtype) -> float:
    """The largest magnitude that is stored: 127 and not 128 for int8, so that signs are alike."""
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def quantize(vectors: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers to store, of `dtype`, and a float32 scale for every vector."""
    x, limit = vectors.float(), largest_stored(dtype)
    scales = x.abs().amax(dim=-1) / limit
    scales = torch.where(scales < SMALLEST_SCALE, 1.0, scales)  # a NaN is not smaller, and stays
    scaled = (x / scales[..., None]).clamp(-limit, limit)
    # An int8 cannot hold the NaN that a scale of NaN leads to.
    stored = scaled.nan_to_num(nan=0.0).round() if dtype == torch.int8 else scaled
    return stored.to(dtype), scales


def cast(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers to store without a scale."""
    if vectors.dtype == dtype:
        return vectors
    limit = largest_stored(dtype)
    return vectors.float().clamp(-limit, limit).to(dtype)


def dequantize(stored: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Vectors [..., head_dim] of `dtype`; scales [...]."""
    return stored.to(dtype) if scales is None else (stored.float() * scales[..., None]).to(dtype)
