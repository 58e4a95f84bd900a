"""The definition of per-layer inputs."""

from typing import TypedDict

import torch
from torch import Tensor
from torch.nn import functional

from facet.kernels.rms_norm.reference import rms_norm


class MixArguments(TypedDict):
    """What `mix_looked_up_inputs` takes by name."""

    first_column: int
    token_scale: float
    context_scale: float
    eps: float


def mix_per_layer_inputs(
    context: Tensor, token: Tensor, norm_weight: Tensor, *, context_scale: float, eps: float
) -> Tensor:
    """(rms(context * context_scale) + token) / sqrt(2), all [rows, layers, width].

    `context` is projected from the decoder's input, `token` looked up (and already scaled) by token id.
    """
    mixed: Tensor = (rms_norm(context * context_scale, norm_weight, eps) + token) * 0.5**0.5
    return mixed


def mix_looked_up_inputs(
    context: Tensor,
    token_ids: Tensor,
    table: Tensor,
    norm_weight: Tensor,
    *,
    first_column: int,
    token_scale: float,
    context_scale: float,
    eps: float,
) -> Tensor:
    """Like `mix_per_layer_inputs`, where `token` is table[token_ids] * token_scale, from `first_column` on.

    `table` is [vocab, columns], and the columns of the layers in `context` lie side by side. Ids past its end, which
    stand for things that are no text, take row 0.
    """
    num_layers, width = context.shape[1:]
    known = torch.where(token_ids < table.shape[0], token_ids, 0)
    columns = table[:, first_column : first_column + num_layers * width]
    token = functional.embedding(known, columns) * token_scale
    return mix_per_layer_inputs(context, token.view(context.shape), norm_weight, context_scale=context_scale, eps=eps)


def gate_per_layer_input(gate: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(gate) * per_layer_input, both [rows, width]."""
    return functional.gelu(gate, approximate="tanh") * per_layer_input
