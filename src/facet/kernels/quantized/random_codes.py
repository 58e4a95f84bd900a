"""Fills quantized matrices with random codes, for models without a checkpoint and for checks."""

import torch
from torch import Tensor

from facet.kernels.quantized.matrix import QuantizedMatrix

# The deviation of random codes of each kind, about.
_DEVIATIONS = {"int4": 4.6, "uint4": 4.6, "fp4": 2.9, "int8": 74.0, "fp8": 0.9}


def fill_random(matrix: QuantizedMatrix, generator: torch.Generator) -> None:
    """Fills a matrix with values whose deviation is about one over the root of the number of inputs."""
    device = matrix.codes.device
    octets = matrix.codes.view(torch.uint8)
    if matrix.format.codes == "fp8":
        # Exponents near the middle of the range, and any sign: 0x30 to 0x3F are 0.5 to 1.9.
        octets.random_(0, 32, generator=generator)
        octets.copy_((octets & 15) | 0x30 | ((octets & 16) << 3))
    else:
        octets.random_(0, 256, generator=generator)
    scale = 1.0 / (_DEVIATIONS[matrix.format.codes] * matrix.num_inputs**0.5)
    bits, stored = matrix.format.code_bits, matrix.format.stored_bits
    if matrix.format.codes == "int8" and stored is not None:  # the range of fewer bits
        matrix.codes.copy_(matrix.codes >> (bits - stored))
        scale *= 2 ** (bits - stored)
    if matrix.minimums is not None:
        scale /= 2
    for name, tensor in matrix.tensors().items():
        if "scales" in name or "minimums" in name:
            _fill_scales(tensor, scale, generator, has_coarse=matrix.coarse_scales is not None)
    if matrix.zeros is not None:
        matrix.zeros.random_(3, 12, generator=generator)
    if matrix.order is not None:
        matrix.order.copy_(torch.rand(matrix.order.shape, generator=generator, device=device).argsort(-1))
    for numbers in (matrix.input_scale, matrix.output_scale):
        if numbers is not None:
            numbers.fill_(0.03)


def _fill_scales(tensor: Tensor, scale: float, generator: torch.Generator, *, has_coarse: bool) -> None:
    """Fills scales with numbers near `scale`; where there are two levels, their product is."""
    draws = torch.rand(tensor.shape, generator=generator, device=tensor.device) + 0.5
    if tensor.dtype == torch.float8_e8m0fnu:
        tensor.copy_(torch.exp2((draws * scale).log2().round()))
    elif not has_coarse:
        tensor.copy_(draws * scale)
    elif tensor.dtype in (torch.float16, torch.float32):
        tensor.copy_(draws * scale / 16)
    else:
        tensor.copy_(draws * 16)
