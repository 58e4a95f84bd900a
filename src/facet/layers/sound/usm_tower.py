"""Gemma 3n's tower: convolutions shorten log-mel frames, a conformer mixes them, and some become rows."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from facet.layers.linear import Linear
from facet.layers.media_embedder import MediaEmbedder
from facet.layers.placement import Placement
from facet.layers.sound.clip_tower import ClipTower
from facet.layers.sound.clips import as_frames, halve_frames
from facet.layers.sound.conformer import Conformer
from facet.sound_spec import UsmTowerSpec


class UsmTower(ClipTower):
    """Every clip has the same number of rows."""

    spec: UsmTowerSpec

    def __init__(self, spec: UsmTowerSpec, placement: Placement) -> None:
        super().__init__(spec, placement)
        first, second = spec.num_channels
        hidden = spec.conformer.hidden_size
        self.first = HalvingLayer(1, first, spec.group_norm_eps, placement)
        self.second = HalvingLayer(first, second, spec.group_norm_eps, placement)
        self.input = Linear(second * (spec.num_bins // 4), hidden, placement)
        self.conformer = Conformer(spec.conformer, placement)
        self.embedder = MediaEmbedder(hidden, spec.table_size, spec.output_size, spec.norm_eps, placement)

    def num_rows(self, num_frames: int) -> int:
        return self.spec.num_rows

    def rows(self, features: Tensor, lengths: Tensor) -> Tensor:
        x, lengths = self.first(features.unsqueeze(1), lengths)
        x, lengths = self.second(x, lengths)
        stream = self.conformer(self.input(as_frames(x)), len(features))
        every = self.spec.reduction
        kept = stream.view(len(features), -1, stream.shape[-1])[:, ::every][:, : self.spec.num_rows]
        heard = self.embedder(kept.flatten(0, 1)).view(*kept.shape[:2], -1)
        places = torch.arange(self.spec.num_rows, device=features.device)
        is_heard = places < (lengths[:, None] + every - 1) // every
        # Its number is made on the device: a captured pass could not copy it from the host again.
        padding = self.embedder.look_up(torch.full((1,), self.spec.padding_row, device=features.device))
        filled = functional.pad(heard, (0, 0, 0, self.spec.num_rows - heard.shape[1]))
        return torch.where(is_heard[:, :, None], filled, padding)


class HalvingLayer(nn.Module):
    """A convolution that leaves half of the frames and bins, and a norm by all that has been heard so far."""

    def __init__(self, num_inputs: int, num_outputs: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.kernel = placement.values(num_outputs, num_inputs, 3, 3)
        self.norm_weight = placement.norm_weight(num_outputs)
        self.eps = eps

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mixed, lengths = halve_frames(x, lengths, self.kernel, frames_before=0)
        return functional.relu(self._norm(mixed.float())).to(x.dtype), lengths

    def _norm(self, x: Tensor) -> Tensor:
        """Normalises by the mean and deviation of all values of [clips, channels, frames, bins] up to a frame."""
        num_values = x.shape[1] * x.shape[3]
        counts = num_values * torch.arange(1, x.shape[2] + 1, device=x.device)
        centered = x - (x.sum(dim=(1, 3)).cumsum(dim=1) / counts)[:, None, :, None]
        # Every frame's distance from the mean of its own time, as the model was trained.
        variance = centered.square().sum(dim=(1, 3)).cumsum(dim=1) / counts
        return centered * torch.rsqrt(variance + self.eps)[:, None, :, None] * self.norm_weight[:, None, None]
