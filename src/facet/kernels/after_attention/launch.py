"""Launches the kernel that computes all that follows attention."""

from functools import cache

import torch
from torch import Tensor

from facet.kernels.after_attention.kernel import after_attention_kernel
from facet.kernels.after_attention.plan import NUM_PROGRAMS, NUM_WARPS, Sizes, num_stages
from facet.kernels.after_attention.weights import Weights
from facet.kernels.dependent_launch import launch_options


def run(
    attended: Tensor,
    stream: Tensor,
    per_layer_input: Tensor | None,
    weights: Weights,
    next_norm: Tensor | None,
    *,
    num_programs: int = NUM_PROGRAMS,
) -> tuple[Tensor, Tensor | None]:
    sizes = Sizes.of(weights)
    new = torch.empty_like(stream)
    normed = None if next_norm is None else torch.empty_like(stream)
    products = stream.new_empty(3 * sizes.hidden + sizes.mlp + sizes.per_layer)
    after_attention_kernel[(num_programs,)](
        attended,
        stream,
        per_layer_input,
        weights.output,
        weights.gate_up,
        weights.down,
        weights.gate,
        weights.projection,
        weights.output_norm,
        weights.gate_up_norm,
        weights.down_norm,
        weights.projection_norm,
        next_norm,
        weights.scale,
        products,
        new,
        normed,
        _arrivals_on(stream.device),
        weights.eps,
        HIDDEN=sizes.hidden,
        QUERIES=sizes.queries,
        MLP=sizes.mlp,
        PER_LAYER=sizes.per_layer,
        BLOCK=sizes.norm_block,
        STAGES=num_stages(sizes),
        NUM_PROGRAMS=num_programs,
        num_warps=NUM_WARPS,
        **launch_options(stream.device),
    )
    return new, normed


@cache
def _arrivals_on(device: torch.device) -> Tensor:
    """Counts on from launch to launch, which follow each other on one stream."""
    return torch.zeros(1, dtype=torch.int32, device=device)
