"""Rounds the numbers of a matrix to few bits, where a checkpoint has not done so."""

import torch
from torch import Tensor

from facet.kernels.quantized.matrix import QuantizedMatrix
from facet.matrix_format import MatrixFormat

_LARGEST = {"fp8": 448.0, "int8": 127.0}


def quantize(values: Tensor, format: MatrixFormat) -> QuantizedMatrix:
    """[..., outputs, inputs] in one of the formats that `--quantization` offers: a row by its largest magnitude, or
    groups of four-bit codes as GGUF's Q4_0 has them."""
    wide = values.float()
    if format.codes == "int4":
        return _quantize_groups(wide, format)
    largest = _LARGEST[format.codes]
    scales = wide.abs().amax(-1, keepdim=True) / largest
    scaled = (wide / torch.where(scales > 0, scales, torch.ones_like(scales))).clamp_(-largest, largest)
    codes = scaled.to(torch.float8_e4m3fn) if format.codes == "fp8" else scaled.round_().to(torch.int8)
    return QuantizedMatrix(format=format, codes=codes, scales=scales)


def _quantize_groups(wide: Tensor, format: MatrixFormat) -> QuantizedMatrix:
    """The number of largest magnitude in a group becomes -8, whatever its sign: the scale takes the other one. Codes
    follow from the scale before it is rounded to float16, and halves go up: so Q4_0 is defined, and a checkpoint that
    was trained for it comes out as its GGUF."""
    assert format.scales.group is not None
    groups = wide.reshape(*wide.shape[:-1], -1, format.scales.group)
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scales = extreme / -8
    inverse = torch.where(scales == 0, 0.0, 1.0 / torch.where(scales == 0, 1.0, scales))
    codes = (groups.double() * inverse.double() + 8.5).trunc_().clamp_(0, 15).to(torch.uint8).flatten(-2)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return QuantizedMatrix(format=format, codes=packed, scales=scales[..., 0].to(torch.float16))
