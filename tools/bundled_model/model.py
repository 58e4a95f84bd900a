"""The trainable decoder: the computation of a Gemma 4 E model, written so that gradients flow through it.

Parameters are float32 and carry their checkpoint names. They are rounded to the type of the activations where they
are used, so a model trained in bfloat16 computes with exactly the weights that its checkpoint will hold. It knows no
cache: a whole row of documents goes through at once.

Shape letters: B rows, T tokens of a row, L layers, P width of a per-layer input.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, gelu
from torch.utils.checkpoint import checkpoint

from facet.kernels.rotary import apply_rotary, rotary_table
from facet.model_spec import AttentionKind, LayerSpec, ModelSpec
from facet.vision_spec import PatchTowerSpec
from tools.bundled_model.attention import Attend
from tools.bundled_model.modules import MLP, Matrix, Norm, rms_norm
from tools.bundled_model.tower import PictureTensors, VisionEmbedder, VisionTower

KeysAndValues = tuple[Tensor, Tensor]
FIRST_UPDATE_SIZE = 0.5  # of what a sublayer adds to the stream, beside the embedding's 1


class Decoder(nn.Module):
    """Token ids, and pictures if it has a tower, to logits. `dtype` is that of the activations."""

    def __init__(
        self,
        spec: ModelSpec,
        seed: int,
        dtype: torch.dtype = torch.float32,
        *,
        vision: PatchTowerSpec | None = None,
    ) -> None:
        super().__init__()
        assert spec.per_layer_input is not None, "the bundled model is of the E kind"
        self.spec = spec
        self.dtype = dtype
        hidden, width = spec.hidden_size, spec.per_layer_input.width
        self.per_layer_width = width
        self.embed_tokens = Matrix(spec.vocab_size, hidden)
        self.embed_tokens_per_layer = Matrix(spec.vocab_size, spec.num_layers * width)
        self.per_layer_model_projection = Matrix(spec.num_layers * width, hidden)
        self.per_layer_projection_norm = Norm(width, spec.norm_eps)
        self.layers = nn.ModuleList(Layer(spec, layer) for layer in spec.layers)
        self.norm = Norm(hidden, spec.norm_eps)
        self.sees = vision is not None
        if vision is not None:
            self.vision_tower = VisionTower(vision)
            self.embed_vision = VisionEmbedder(vision)
        self._initialise(seed)
        for layer in {layer.attention: layer for layer in spec.layers}.values():
            table = rotary_table(
                spec.max_positions,
                head_dim=layer.head_dim,
                num_pairs=layer.rotary.num_rotated_pairs(layer.head_dim),
                theta=layer.rotary.theta,
                factor=layer.rotary.factor,
                dtype=dtype,
            )
            self.register_buffer(f"angles_{layer.attention}", table, persistent=False)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attend: Attend,
        pictures: PictureTensors | None = None,
        *,
        recompute: bool = False,
    ) -> Tensor:
        """Capped logits [B, T, vocab] in float32. `positions` begin at 0 in each document.

        `recompute`: keep no layer's insides for the way back. Much less memory, a third more work.
        """
        state, _ = self.states(token_ids, positions, attend, pictures, recompute=recompute)
        return self.logits(state)

    def states(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attend: Attend,
        pictures: PictureTensors | None = None,
        *,
        recompute: bool = False,
    ) -> tuple[Tensor, list[KeysAndValues | None]]:
        """What logits are made of, [B, T, hidden], and by layer the keys and values that it owns."""
        x = self.embed(token_ids)
        if pictures is not None:
            rows = self.embed_vision(self.vision_tower(pictures, self.dtype))
            is_soft = pictures.row_of_token > 0
            x = torch.where(is_soft[..., None], rows[(pictures.row_of_token.long() - 1).clamp(min=0)], x)
            token_ids = torch.where(is_soft, 0, token_ids)  # as Gemma 4 looks up their per-layer inputs
        inputs = self._per_layer_inputs(token_ids, x)
        angles = {kind: self.angles(kind)[positions] for kind in self._kinds()}
        stored: list[KeysAndValues | None] = []
        for layer, module in zip(self.spec.layers, self.layers, strict=True):
            shared = None if layer.kv_from_layer is None else stored[layer.kv_from_layer]
            given = (x, inputs[:, :, layer.index], angles[layer.attention], shared, attend)
            x, own = checkpoint(module, *given, use_reentrant=False) if recompute else module(*given)
            stored.append(own)
        return self.norm(x), stored

    def embed(self, token_ids: Tensor) -> Tensor:
        rows: Tensor = embedding(token_ids, self.embed_tokens.weight).to(self.dtype) * self.spec.hidden_size**0.5
        return rows

    def logits(self, state: Tensor) -> Tensor:
        logits: Tensor = self.embed_tokens(state).float()
        cap = self.spec.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _per_layer_inputs(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """[B, T, L, P]: half from the token itself, half from the embedding that all layers share."""
        shape = (*token_ids.shape, self.spec.num_layers, self.per_layer_width)
        looked_up = embedding(token_ids, self.embed_tokens_per_layer.weight).to(self.dtype).view(shape)
        context = self.per_layer_model_projection(x) * self.spec.hidden_size**-0.5
        mixed: Tensor = self.per_layer_projection_norm(context.view(shape)) + looked_up * self.per_layer_width**0.5
        return mixed * 2**-0.5

    def angles(self, kind: AttentionKind) -> Tensor:
        """Of every position."""
        return self.get_buffer(f"angles_{kind}")

    def _kinds(self) -> set[AttentionKind]:
        return {layer.attention for layer in self.spec.layers}

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """Every matrix keeps the size of what it is given; updates begin small beside the embedding."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            elif name.endswith(("q_norm.weight", "k_norm.weight")):
                # Scores are not divided by the root of the head's width; their norms' weights do it instead.
                parameter.fill_(parameter.shape[0] ** -0.25)
            elif parameter.dim() == 3:
                parameter.zero_()  # a table of places: those that no picture of the training has stay neutral
            elif ".post_" in name:
                parameter.fill_(FIRST_UPDATE_SIZE)
            else:
                parameter.fill_(1.0)
        self.embed_tokens_per_layer.weight.normal_(0.0, self.per_layer_width**-0.5, generator=generator)


class Layer(nn.Module):
    """One decoder layer; returns its keys and values too, where it owns some."""

    def __init__(self, spec: ModelSpec, layer: LayerSpec) -> None:
        super().__init__()
        assert spec.per_layer_input is not None
        hidden, eps, width = spec.hidden_size, spec.norm_eps, spec.per_layer_input.width
        self.self_attn = Attention(layer, hidden, eps)
        self.mlp = MLP(hidden, layer.mlp_width)
        self.input_layernorm = Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.pre_feedforward_layernorm = Norm(hidden, eps)
        self.post_feedforward_layernorm = Norm(hidden, eps)
        self.per_layer_input_gate = Matrix(width, hidden)
        self.per_layer_projection = Matrix(hidden, width)
        self.post_per_layer_input_norm = Norm(hidden, eps)
        # Not trained: norms undo a factor of the whole stream, so its gradient is little more than noise, and noise
        # would carry it anywhere.
        self.layer_scalar = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(
        self, x: Tensor, per_layer_input: Tensor, angles: Tensor, shared: KeysAndValues | None, attend: Attend
    ) -> tuple[Tensor, KeysAndValues | None]:
        attended, own = self.self_attn(self.input_layernorm(x), angles, shared, attend)
        x = x + self.post_attention_layernorm(attended)
        x = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        gated = gelu(self.per_layer_input_gate(x), approximate="tanh") * per_layer_input
        x = x + self.post_per_layer_input_norm(self.per_layer_projection(gated))
        return x * self.layer_scalar.to(x.dtype), own


class Attention(nn.Module):
    """Queries always; keys and values only where the layer owns them."""

    def __init__(self, layer: LayerSpec, hidden: int, eps: float) -> None:
        super().__init__()
        self.layer = layer
        self.eps = eps
        self.q_proj = Matrix(layer.query_width, hidden)
        self.q_norm = Norm(layer.head_dim, eps)
        if layer.owns_kv:
            self.k_proj = Matrix(layer.kv_width, hidden)
            self.v_proj = Matrix(layer.kv_width, hidden)
            self.k_norm = Norm(layer.head_dim, eps)
        self.o_proj = Matrix(hidden, layer.query_width)

    def forward(
        self, x: Tensor, angles: Tensor, shared: KeysAndValues | None, attend: Attend
    ) -> tuple[Tensor, KeysAndValues | None]:
        queries = _rotated_heads(self.q_norm(self._heads(self.q_proj(x))), angles)
        own = None if shared is not None else self._keys_and_values(x, angles)
        keys, values = shared if own is None else own  # type: ignore[misc]  # one of the two is there
        attended = attend(queries, keys, values, self.layer)
        out: Tensor = self.o_proj(attended.transpose(1, 2).flatten(-2))
        return out, own

    def _keys_and_values(self, x: Tensor, angles: Tensor) -> KeysAndValues:
        keys = _rotated_heads(self.k_norm(self._heads(self.k_proj(x))), angles)
        values = rms_norm(self._heads(self.v_proj(x)), self.eps)
        return keys, values.to(x.dtype).transpose(1, 2)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.layer.head_dim)


def _rotated_heads(x: Tensor, angles: Tensor) -> Tensor:
    """[B, T, heads, dim] -> [B, heads, T, dim], turned by the angles of each position."""
    return apply_rotary(x, angles).transpose(1, 2)
