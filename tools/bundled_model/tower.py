"""The trainable tower: Gemma 4's transformer over the patches of pictures, written so that gradients flow through it.

Its parameters carry their checkpoint names below `vision_tower` and `embed_vision`. All pictures of a batch go through
at once, padded to the same number of patches. A patch becomes a row of the decoder: cells of several patches, which
large models average, are not implemented.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from facet.vision_spec import PatchTowerSpec
from tools.bundled_model.modules import MLP, Matrix, Norm, rms_norm


class PictureTensors(NamedTuple):
    """The pictures of a batch: N of them, each with room for P patches."""

    patches: Tensor  # [N, P, patch width] uint8
    places: Tensor  # [N, P, 2] int: column and row
    is_patch: Tensor  # [N, P] bool: the rest is padding
    row_of_token: Tensor  # [rows, row length] int: 1 + N * P index of the row that stands there; 0: a token of text


class VisionTower(nn.Module):
    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__()
        assert spec.cell_size == 1, "a patch is a row"
        assert not spec.is_clipped, "what is trained here needs no bounds"
        assert not spec.is_standardized, "nor other scales than those it learns"
        self.spec = spec
        self.patch_embedder = PatchEmbedder(spec)
        self.encoder = Encoder(spec)

    def forward(self, pictures: PictureTensors, dtype: torch.dtype) -> Tensor:
        """[N * P, hidden], normed; padding too."""
        places = pictures.places.long()
        stream = self.patch_embedder(pictures.patches, places, dtype)
        # Padding may be seen by pictures without patches, whose rows nobody uses: a row of scores needs one number.
        sees = pictures.is_patch.clone()
        sees[:, 0] = True
        angles = self._angles(places, dtype)
        for layer in self.encoder.layers:
            stream = layer(stream, angles, sees[:, None, None])
        pooled = stream.float() * self.spec.hidden_size**0.5
        return rms_norm(pooled.to(dtype), self.spec.norm_eps).to(dtype).flatten(0, 1)

    def _angles(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, 1, P, head_dim]: a head's first half turns by the column, its second by the row."""
        quarter = self.spec.head_dim // 4
        exponents = torch.arange(quarter, dtype=torch.float32, device=places.device) / quarter
        turns = places.float()[..., None] * self.spec.rotary_theta**-exponents
        angles = torch.cat((turns, turns), dim=-1).flatten(-2).unsqueeze(1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class PatchEmbedder(nn.Module):
    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__()
        self.input_proj = Matrix(spec.hidden_size, spec.patch_width)
        self.position_embedding_table = nn.Parameter(torch.empty(2, spec.num_positions, spec.hidden_size))

    def forward(self, patches: Tensor, places: Tensor, dtype: torch.dtype) -> Tensor:
        table = self.position_embedding_table.to(dtype)
        embedded: Tensor = self.input_proj((patches.float() * (2 / 255) - 1).to(dtype))
        return embedded + (table[0][places[..., 0]] + table[1][places[..., 1]])


class Encoder(nn.Module):
    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TowerLayer(spec) for _ in range(spec.num_layers))


class TowerLayer(nn.Module):
    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__()
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.self_attn = TowerAttention(spec)
        self.mlp = MLP(hidden, spec.mlp_width, Product)
        self.input_layernorm = Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.pre_feedforward_layernorm = Norm(hidden, eps)
        self.post_feedforward_layernorm = Norm(hidden, eps)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], sees: Tensor) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), angles, sees))
        out: Tensor = x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        return out


class TowerAttention(nn.Module):
    """Every patch sees every patch of its picture."""

    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.num_heads * spec.head_dim
        self.q_proj, self.k_proj, self.v_proj = (Product(width, spec.hidden_size) for _ in range(3))
        self.o_proj = Product(spec.hidden_size, width)
        self.q_norm = Norm(spec.head_dim, spec.norm_eps)
        self.k_norm = Norm(spec.head_dim, spec.norm_eps)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], sees: Tensor) -> Tensor:
        queries, keys, values = (self._heads(product(x)) for product in (self.q_proj, self.k_proj, self.v_proj))
        queries = _rotated(self.q_norm(queries), angles)
        keys = _rotated(self.k_norm(keys), angles)
        values = rms_norm(values, self.spec.norm_eps).to(x.dtype)
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=sees, scale=1.0)
        out: Tensor = self.o_proj(attended.transpose(1, 2).flatten(-2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        """[N, heads, P, head_dim]"""
        return x.view(*x.shape[:-1], self.spec.num_heads, self.spec.head_dim).transpose(1, 2)


class Product(nn.Module):
    """A matrix under the name that Gemma 4's towers give it."""

    def __init__(self, num_outputs: int, num_inputs: int) -> None:
        super().__init__()
        self.linear = Matrix(num_outputs, num_inputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


class VisionEmbedder(nn.Module):
    """The projection to the decoder's width."""

    def __init__(self, spec: PatchTowerSpec) -> None:
        super().__init__()
        self.embedding_projection = Matrix(spec.output_size, spec.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.embedding_projection(x)
        return out


def _rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Each half of a head by itself: (a, b) to (a cos - b sin, b cos + a sin)."""
    cos, sin = angles
    first, second, third, fourth = x.chunk(4, dim=-1)
    return x * cos + torch.cat((-second, first, -fourth, third), dim=-1) * sin
