"""The conformer: layers that mix each frame of sound with the frames just before it.

A stream is [clips * frames, hidden]: the clips of a batch one after the other, all padded to the length of the longest.
No frame sees a later one, so padding behind a clip does not reach it.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.layers.tower_products import BoundedLinear
from facet.sound_spec import ConformerSpec


class Conformer(nn.Module):
    def __init__(self, spec: ConformerSpec, placement: Placement) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ConformerLayer(spec, placement) for _ in range(spec.num_layers))

    def forward(self, stream: Tensor, num_clips: int) -> Tensor:
        for layer in self.layers:
            stream = layer(stream, num_clips)
        return stream


class ConformerLayer(nn.Module):
    def __init__(self, spec: ConformerSpec, placement: Placement) -> None:
        super().__init__()
        hidden, eps = spec.hidden_size, spec.norm_eps
        self.first_mlp = ConformerMLP(spec, placement)
        self.attention_norm = RMSNorm(hidden, eps, placement)
        self.attention = NearAttention(spec, placement)
        self.post_attention_norm = RMSNorm(hidden, eps, placement)
        self.convolution = NearConvolution(spec, placement)
        self.second_mlp = ConformerMLP(spec, placement)
        self.output_norm = RMSNorm(hidden, eps, placement)

    def forward(self, stream: Tensor, num_clips: int) -> Tensor:
        stream = self.first_mlp(stream)
        attended = self.attention(self.attention_norm(stream), num_clips)
        stream = self.post_attention_norm.add(stream, attended).stream
        stream = self.second_mlp(self.convolution(stream, num_clips))
        normed: Tensor = self.output_norm(stream)
        return normed


class ConformerMLP(nn.Module):
    """x + scale * norm(narrow(silu(widen(norm(x)))))."""

    def __init__(self, spec: ConformerSpec, placement: Placement) -> None:
        super().__init__()
        hidden, width = spec.hidden_size, 4 * spec.hidden_size
        self.scale = spec.mlp_scale
        self.norm = RMSNorm(hidden, spec.norm_eps, placement)
        self.widen = BoundedLinear(hidden, width, placement, is_clipped=spec.is_clipped)
        self.narrow = BoundedLinear(width, hidden, placement, is_clipped=spec.is_clipped)
        self.output_norm = RMSNorm(hidden, spec.norm_eps, placement)

    def forward(self, stream: Tensor) -> Tensor:
        widened: Tensor = self.widen(self.norm(stream))
        update: Tensor = self.output_norm(self.narrow(functional.silu(widened)))
        return stream + self.scale * update


class NearConvolution(nn.Module):
    """A gated convolution of each channel over a few frames, the last of them its own."""

    def __init__(self, spec: ConformerSpec, placement: Placement) -> None:
        super().__init__()
        hidden = spec.hidden_size
        self.norm = RMSNorm(hidden, spec.norm_eps, placement)
        self.input = BoundedLinear(hidden, 2 * hidden, placement, is_clipped=spec.is_clipped)
        self.kernel = placement.values(hidden, 1, spec.kernel_size)
        self.output_norm = RMSNorm(hidden, spec.norm_eps, placement)
        self.output = BoundedLinear(hidden, hidden, placement, is_clipped=spec.is_clipped)

    def forward(self, stream: Tensor, num_clips: int) -> Tensor:
        gated = functional.glu(self.input(self.norm(stream)), dim=-1)
        by_clip = gated.view(num_clips, -1, gated.shape[-1]).mT
        padded = functional.pad(by_clip, (self.kernel.shape[-1] - 1, 0))
        mixed = functional.conv1d(padded, self.kernel, groups=len(self.kernel)).mT.flatten(0, 1)
        update: Tensor = self.output(functional.silu(self.output_norm(mixed)))
        return stream + update


class NearAttention(nn.Module):
    """Each frame attends to itself and a few before it. Scores are by content and by distance, and capped; float32.

    Frames are cut into blocks, so that all that a frame sees is in its own block and the one before.
    """

    def __init__(self, spec: ConformerSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        hidden = spec.hidden_size
        self.query, self.key, self.value, self.output = (
            BoundedLinear(hidden, hidden, placement, is_clipped=spec.is_clipped) for _ in range(4)
        )
        self.distance_key = Linear(hidden, hidden, placement)
        self.dim_scale = placement.norm_weight(spec.head_dim)
        self.register_buffer(
            "waves", _waves(spec.window, hidden).to(placement.device, placement.dtype), persistent=False
        )
        self.block_size = max(1, spec.window - 1)

    def forward(self, x: Tensor, num_clips: int) -> Tensor:
        queries, keys, values = (self._blocks(of(x), num_clips) for of in (self.query, self.key, self.value))
        scale = functional.softplus(self.dim_scale) * (self.spec.head_dim**-0.5 / math.log(2))  # 1 / sqrt(d) for 0
        scores = self._scores(queries * scale, _with_block_before(keys))
        attended = scores.softmax(dim=-1) @ _with_block_before(values)
        frames = attended.transpose(2, 3).reshape(num_clips, -1, self.spec.hidden_size)[:, : len(x) // num_clips]
        out: Tensor = self.output(frames.flatten(0, 1).to(x.dtype))
        return out

    def _scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[clips, blocks, heads, block, 2 * block]; minus infinity for what a frame does not see."""
        size, window, cap = self.block_size, self.spec.window, self.spec.logit_cap
        places = torch.arange(2 * size, device=queries.device)
        distances = places[size:, None] - places  # how far before a frame another one lies
        distance_keys = self.distance_key(self.waves).float().view(window, self.spec.num_heads, -1).permute(1, 2, 0)
        by_distance = (queries @ distance_keys).gather(
            -1, distances.clamp(0, window - 1).expand(*queries.shape[:-2], -1, -1)
        )
        scores = cap * torch.tanh((self.spec.key_scale * (queries @ keys.mT) + by_distance) / cap)
        is_hidden = ((distances < 0) | (distances >= window)).repeat(queries.shape[1], 1, 1, 1)
        is_hidden[0] |= places < size  # nothing is before the first block
        return scores.masked_fill(is_hidden, float("-inf"))

    def _blocks(self, x: Tensor, num_clips: int) -> Tensor:
        """[clips, blocks, heads, block, head_dim], the last block filled up with zeros."""
        by_clip = x.float().view(num_clips, -1, self.spec.hidden_size)
        padded = functional.pad(by_clip, (0, 0, 0, -by_clip.shape[1] % self.block_size))
        return padded.view(num_clips, -1, self.block_size, self.spec.num_heads, self.spec.head_dim).transpose(2, 3)


def _with_block_before(blocks: Tensor) -> Tensor:
    """Each block behind the one before it; zeros before the first."""
    before = functional.pad(blocks, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1]
    return torch.cat((before, blocks), dim=3)


def _waves(num_distances: int, width: int) -> Tensor:
    """[distances, width]: sines, then cosines of every distance, from fast waves to slow ones."""
    num_waves = width // 2
    exponents = torch.arange(num_waves, dtype=torch.float32) / max(1, num_waves - 1)
    angles = torch.arange(num_distances)[:, None] * 10_000**-exponents
    return torch.cat((angles.sin(), angles.cos()), dim=1)
