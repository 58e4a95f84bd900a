"""Chooses how results are computed: as fast as possible, or batch-invariant, so that other rows cannot change a row's
bits.

The choice is made once, when a model is loaded, and passed down as a value. Operations that are not listed here have a
single implementation, in which rows never affect each other. Nor are rows that a product makes itself
(`linear/normed_rings.py`): they have the bits of norms of either kind.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Unpack

from torch import Tensor

from facet.forward_batch import AttentionRows
from facet.kernels import add_norm, geglu, head_inputs, linear, mean_square, moe, per_layer_input, rms_norm, streams
from facet.kernels.paged_attention import AttentionPlan, HeadShape, plan_attention, plan_invariant_attention
from facet.kernels.per_layer_input import invariant as invariant_per_layer_input
from facet.kernels.quantized import QuantizedMatrix, eight_bits, int4, int8_groups, packed_int4
from facet.kernels.rounded_rows import RoundedRows, RowCodes


class PrepareHeads(Protocol):
    def __call__(self, projected: Tensor, heads: HeadShape, **arguments: Unpack[head_inputs.Arguments]) -> Tensor: ...


class PlanAttention(Protocol):
    def __call__(
        self, rows: AttentionRows, block_table: Tensor, heads: HeadShape, *, window: int | None, tokens_per_block: int
    ) -> AttentionPlan: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The function that computes each operation. What each means is said where it is defined."""

    linear: Callable[[Tensor, Tensor], Tensor]
    geglu_linear: Callable[[Tensor, Tensor], Tensor]
    gated_input_linear: Callable[[Tensor, Tensor, Tensor], Tensor]
    run_experts: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    run_rounded_experts: Callable[[Tensor | RoundedRows, Tensor, Tensor, QuantizedMatrix, QuantizedMatrix], Tensor]
    geglu: Callable[[Tensor], Tensor]
    sparse_geglu: Callable[[Tensor, float], Tensor]
    gate_per_layer_input: Callable[[Tensor, Tensor], Tensor]
    rms_norm: Callable[[Tensor, Tensor | None, float], Tensor]
    router_norms: Callable[[Tensor, Tensor, float, Tensor | None, float], tuple[Tensor, Tensor | None]]
    add_norm: Callable[[Tensor, Tensor, Tensor, Tensor | None, float, Tensor | None], tuple[Tensor, Tensor | None]]
    rounded_rms_norm: Callable[[Tensor, Tensor, float, RowCodes], RoundedRows]
    rounded_add_norm: Callable[
        [Tensor, Tensor, Tensor, Tensor, float, Tensor | None, RowCodes], tuple[Tensor, RoundedRows]
    ]
    sum_of_norms: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
    mean_square: Callable[[Tensor], Tensor]
    mix_streams: Callable[[Tensor, Tensor], Tensor]
    mean_of_streams: Callable[[Sequence[Tensor]], Tensor]
    prepare_heads: PrepareHeads
    plan_attention: PlanAttention
    attends_by_role_on: tuple[
        str, ...
    ]  # types of devices where tokens of prompts and answers have kernels of their own
    choose_eight_bits: eight_bits.ChooseConfig  # how programs divide products with matrices of eight bits
    adds_in_one_chain: bool  # whether products of values made of codes must (`linear/chain.py`)
    most_rows_of_int4: float  # that are multiplied by 4-bit codes as they are, and not by values made of them
    most_rows_of_int8_groups: float  # the same, of 8-bit codes in groups
    most_rows_of_packed_int4: float  # the same on a processor, of 4-bit codes


USUAL = Arithmetic(
    linear=linear.linear,
    geglu_linear=linear.geglu_linear,
    gated_input_linear=linear.gated_input_linear,
    run_experts=moe.run_experts,
    run_rounded_experts=eight_bits.run_experts,
    geglu=geglu.geglu,
    sparse_geglu=geglu.sparse_geglu,
    gate_per_layer_input=per_layer_input.gate_per_layer_input,
    rms_norm=rms_norm.rms_norm,
    router_norms=rms_norm.router_norms,
    add_norm=add_norm.add_norm,
    rounded_rms_norm=rms_norm.rounded_rms_norm,
    rounded_add_norm=add_norm.rounded_add_norm,
    sum_of_norms=add_norm.sum_of_norms,
    mean_square=mean_square.mean_square,
    mix_streams=streams.mix_streams,
    mean_of_streams=streams.mean_of_streams,
    prepare_heads=head_inputs.prepare_heads,
    plan_attention=plan_attention,
    attends_by_role_on=(),  # kernels are chosen by how many rows there are
    choose_eight_bits=eight_bits.choose_config,
    adds_in_one_chain=False,
    most_rows_of_int4=int4.MAX_FEW_ROWS,
    most_rows_of_int8_groups=int8_groups.MAX_FEW_ROWS,
    most_rows_of_packed_int4=packed_int4.MAX_FEW_ROWS,
)
# The bits of a row depend neither on the rows computed with it nor on their number.
BATCH_INVARIANT = Arithmetic(
    linear=linear.invariant_linear,
    geglu_linear=linear.invariant_geglu_linear,
    gated_input_linear=linear.invariant_gated_input_linear,
    run_experts=moe.invariant_run_experts,
    run_rounded_experts=eight_bits.invariant_run_experts,
    geglu=geglu.invariant_geglu,
    sparse_geglu=geglu.invariant_sparse_geglu,
    gate_per_layer_input=invariant_per_layer_input.gate_per_layer_input,
    rms_norm=rms_norm.invariant_rms_norm,
    router_norms=rms_norm.invariant_router_norms,
    add_norm=add_norm.invariant_add_norm,
    rounded_rms_norm=rms_norm.invariant_rounded_rms_norm,
    rounded_add_norm=add_norm.invariant_rounded_add_norm,
    sum_of_norms=add_norm.invariant_sum_of_norms,
    mean_square=mean_square.invariant_mean_square,
    mix_streams=streams.invariant_mix_streams,
    mean_of_streams=streams.invariant_mean_of_streams,
    prepare_heads=head_inputs.invariant_prepare_heads,
    plan_attention=plan_invariant_attention,
    attends_by_role_on=("cuda",),
    choose_eight_bits=eight_bits.choose_in_one_order,
    adds_in_one_chain=True,
    most_rows_of_int4=math.inf,
    most_rows_of_int8_groups=math.inf,
    most_rows_of_packed_int4=math.inf,
)
