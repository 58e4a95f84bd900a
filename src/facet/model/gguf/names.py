"""Gives the tensors of a GGUF file the names that unquantized checkpoints have for them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from facet.model.gguf.container import TensorInfo
from facet.model.gguf.layouts import Layout, checkpoint_shape

_PREFIX = "model."
_WHOLE = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "per_layer_token_embd.weight": "embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "per_layer_projection_norm.weight",
}
_IN_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate.weight": "per_layer_input_gate.weight",
    "proj.weight": "per_layer_projection.weight",
    "post_norm.weight": "post_per_layer_input_norm.weight",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    "altup_correct_coef.weight": "altup.correction_coefs.weight",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_predict_coef.weight": "altup.prediction_coefs.weight",
    "altup_router.weight": "altup.modality_router.weight",
    "altup_router_norm.weight": "altup.router_norm.weight",
    "laurel_l.weight": "laurel.linear_left.weight",
    "laurel_r.weight": "laurel.linear_right.weight",
    "laurel_post_norm.weight": "laurel.post_laurel_norm.weight",
}
# Stacks whose entries are tensors of their own elsewhere.
_STACKS = {
    "altup_proj.weight": "altup_projections.{}.weight",
    "altup_unembd_proj.weight": "altup_unembed_projections.{}.weight",
}
_STACKS_IN_LAYER = {
    "ffn_gate_exps.weight": "experts.{}.gate_proj.weight",
    "ffn_up_exps.weight": "experts.{}.up_proj.weight",
}
# Which pairs global layers rotate; `config.py` has read it.
ROTATED_PAIRS = "rope_freqs.weight"

_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTensor:
    """A tensor, or one entry along its first axis."""

    name: str  # as in an unquantized checkpoint
    info: TensorInfo
    index: int | None = None
    layout: Layout | None = None  # how it is stored otherwise; only towers have any

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.info.shape if self.index is None else self.info.shape[1:]
        return shape if self.layout is None else checkpoint_shape(self.layout, shape)


def named_tensors(info: TensorInfo) -> Iterator[NamedTensor]:
    """The tensors of a checkpoint that a tensor of a file holds: one, or those of a stack. A name that no Gemma has
    stays as it is, and will be found unexpected."""
    if info.name == ROTATED_PAIRS:
        return
    if info.name == "output.weight":
        yield NamedTensor(name="lm_head.weight", info=info)
        return
    whole, stacks, prefix, name = _WHOLE, _STACKS, _PREFIX, info.name
    if layer := _LAYER.fullmatch(info.name):
        whole, stacks, prefix, name = _IN_LAYER, _STACKS_IN_LAYER, f"{_PREFIX}layers.{int(layer[1])}.", layer[2]
    if name in stacks and len(info.shape) == 3:
        for index in range(info.shape[0]):
            yield NamedTensor(name=prefix + stacks[name].format(index), info=info, index=index)
    elif name in whole:
        # The loader finds a quantized stack of experts under the name of its codes.
        codes = "_weight" if whole[name].startswith("experts.") and info.type.format is not None else ""
        yield NamedTensor(name=prefix + whole[name] + codes, info=info)
    else:
        yield NamedTensor(name=info.name, info=info)
