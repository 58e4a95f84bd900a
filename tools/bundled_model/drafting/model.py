"""The trainable drafter: the computation of a drafter of Gemma 4, written so that gradients flow through it.

It reads the keys and values that the model has stored. All drafts of a round ask from the same place, that of the last
token whose keys are stored.

Shape letters: B documents, Q places of each that are drafted from, H width of the drafter, D width of the model.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from facet.model.draft_model import DraftModelSpec
from facet.model_spec import AttentionKind, LayerSpec, ModelSpec
from tools.bundled_model.attention import Attend
from tools.bundled_model.model import FIRST_UPDATE_SIZE, Attention, KeysAndValues
from tools.bundled_model.modules import MLP, Matrix, Norm


class Drafter(nn.Module):
    """Parameters are float32 and carry their checkpoint names, but for what stands in front of the decoder's."""

    def __init__(self, spec: DraftModelSpec, seed: int) -> None:
        super().__init__()
        assert spec.centroids is None, "every token has a logit"
        decoder = spec.decoder
        self.spec = spec
        self.pre_projection = Matrix(decoder.hidden_size, 2 * spec.backbone_size)
        self.layers = nn.ModuleList(Layer(decoder, layer) for layer in decoder.layers)
        self.norm = Norm(decoder.hidden_size, decoder.norm_eps)
        self.embed_tokens = Matrix(decoder.vocab_size, decoder.hidden_size)
        self.post_projection = Matrix(spec.backbone_size, decoder.hidden_size)
        self._initialise(seed)

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        angles: Mapping[AttentionKind, Tensor],
        stored: Mapping[int, KeysAndValues],
        attend: Attend,
    ) -> tuple[Tensor, Tensor]:
        """States [B, Q, H], which `embed_tokens` makes logits of, and the hidden states [B, Q, D] to go on from.

        `embedded` and `hidden` [B, Q, D] are of the newest tokens and of the states these were chosen from; `stored`
        has the keys and values of the model's layers.
        """
        x = self.pre_projection(torch.cat([embedded, hidden], dim=-1))
        for layer, module in zip(self.spec.decoder.layers, self.layers, strict=True):
            assert layer.kv_from_layer is not None, "a drafter stores no keys"
            x = module(x, angles[layer.attention], stored[layer.kv_from_layer], attend)
        state = self.norm(x)
        return state, self.post_projection(state)

    @torch.no_grad()
    def begin_with_head(self, table: Tensor) -> None:
        """The rows of the head as the model's own embedding [vocabulary, D] has them, in the directions that matter."""
        width = self.spec.decoder.hidden_size
        left, sizes, _ = torch.linalg.svd(table.float(), full_matrices=False)
        rows = left[:, :width] * sizes[:width]
        self.embed_tokens.weight.copy_(rows / rows.square().mean().sqrt() * width**-0.5)

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """As `Decoder` begins."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            elif name.endswith("q_norm.weight"):
                parameter.fill_(parameter.shape[0] ** -0.25)
            else:
                parameter.fill_(FIRST_UPDATE_SIZE if ".post_" in name else 1.0)


class Layer(nn.Module):
    def __init__(self, spec: ModelSpec, layer: LayerSpec) -> None:
        super().__init__()
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.self_attn = Attention(layer, hidden, eps)
        self.mlp = MLP(hidden, layer.mlp_width)
        self.input_layernorm = Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.pre_feedforward_layernorm = Norm(hidden, eps)
        self.post_feedforward_layernorm = Norm(hidden, eps)
        self.layer_scalar = nn.Parameter(torch.ones(1), requires_grad=False)  # as in `model.Layer`

    def forward(self, x: Tensor, angles: Tensor, stored: KeysAndValues, attend: Attend) -> Tensor:
        attended, _ = self.self_attn(self.input_layernorm(x), angles, stored, attend)
        x = x + self.post_attention_layernorm(attended)
        update: Tensor = self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return (x + update) * self.layer_scalar


def attend_from(places: Tensor, length: int) -> Attend:
    """Attention of queries at `places` [B, Q] to the keys of documents of `length` tokens, as the model sees them."""
    distance = places[:, :, None] - torch.arange(length, device=places.device)
    masks: dict[int | None, Tensor] = {}

    def attend(queries: Tensor, keys: Tensor, values: Tensor, layer: LayerSpec) -> Tensor:
        if layer.window not in masks:
            is_near = distance >= 0 if layer.window is None else (distance >= 0) & (distance < layer.window)
            masks[layer.window] = is_near[:, None]
        group = layer.num_heads // layer.num_kv_heads
        return scaled_dot_product_attention(
            queries,
            keys.repeat_interleave(group, dim=1),
            values.repeat_interleave(group, dim=1),
            attn_mask=masks[layer.window],
            scale=layer.attention_scale,
        )

    return attend
