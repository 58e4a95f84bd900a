"""Launches the kernel for some tens of rows."""

import torch
from torch import Tensor

from facet.kernels.hopper import num_multiprocessors
from facet.kernels.quantized.int4.shuffled import BLOCK_IN, ShuffledInt4
from facet.kernels.quantized.int4.tuning import choose_wide_tuning
from facet.kernels.quantized.int4.wide_kernel import wide_kernel
from facet.kernels.quantized.shuffled.language import gl
from facet.kernels.quantized.shuffled.wide_launch import launch
from facet.kernels.quantized.shuffled.wide_tuning import WideTuning


def multiply(
    x: Tensor, matrix: ShuffledInt4, per_layer_input: Tensor | None = None, tuning: WideTuning | None = None
) -> Tensor:
    if tuning is None:
        tuning = choose_wide_tuning(matrix.num_tiles, matrix.num_blocks, x.shape[0], num_multiprocessors(x.device))
    codes, scales, others = matrix.words()
    constants = dict(
        SCALE_DTYPE=getattr(gl, matrix.scale_type),
        HAS_ZEROS=matrix.zeros is not None,
        GROUPS=matrix.scales.shape[-2],
        BLOCKS=tuning.turn_in // BLOCK_IN,
        **tuning.constants(),
    )
    tensors = (codes, scales, others.flatten().view(torch.int32), matrix.factors)
    num_turns = -(-matrix.num_blocks * BLOCK_IN // tuning.turn_in)
    return launch(wide_kernel, x, matrix, per_layer_input, tuning, tensors, num_turns=num_turns, constants=constants)
