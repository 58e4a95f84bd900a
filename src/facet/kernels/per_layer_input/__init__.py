"""Per-layer inputs: mixes the narrow second embedding that feeds each layer, and gates it into a layer.

The Triton kernels serve tensors on a GPU, the reference everything else.
"""

from typing import Unpack

from torch import Tensor

from facet.kernels.per_layer_input import reference
from facet.kernels.per_layer_input.reference import MixArguments

__all__ = ["MixArguments", "gate_per_layer_input", "mix_looked_up_inputs"]


def mix_looked_up_inputs(
    context: Tensor, token_ids: Tensor, table: Tensor, norm_weight: Tensor, **arguments: Unpack[MixArguments]
) -> Tensor:
    """(rms(context * context_scale) + token) / sqrt(2), all [rows, layers, width].

    `token` is table[token_ids] * token_scale, from `first_column` on.
    """
    if context.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.per_layer_input import triton

        return triton.mix_looked_up_inputs(context, token_ids, table, norm_weight, **arguments)
    return reference.mix_looked_up_inputs(context, token_ids, table, norm_weight, **arguments)


def gate_per_layer_input(gate: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(gate) * per_layer_input, both [rows, width]."""
    if gate.is_cuda:
        from facet.kernels.per_layer_input import triton

        return triton.gate_per_layer_input(gate, per_layer_input)
    return reference.gate_per_layer_input(gate, per_layer_input)
