"""Gemma 4's tower: convolutions shorten log-mel frames to a quarter, a conformer mixes them, and a product projects."""

from torch import Tensor, nn
from torch.nn import functional

from facet.layers.linear import Linear
from facet.layers.placement import Placement
from facet.layers.sound.clip_tower import ClipTower
from facet.layers.sound.clips import as_frames, halve_frames, num_quarters
from facet.layers.sound.conformer import Conformer
from facet.layers.tower_products import BiasedLinear
from facet.sound_spec import ConformerTowerSpec


class ConformerTower(ClipTower):
    spec: ConformerTowerSpec

    def __init__(self, spec: ConformerTowerSpec, placement: Placement) -> None:
        super().__init__(spec, placement)
        first, second = spec.num_channels
        self.first = HalvingLayer(1, first, spec.norm_eps, placement)
        self.second = HalvingLayer(first, second, spec.norm_eps, placement)
        self.input = Linear(second * (spec.num_bins // 4), spec.conformer.hidden_size, placement)
        self.conformer = Conformer(spec.conformer, placement)
        self.projection = BiasedLinear(spec.conformer.hidden_size, spec.projected_size, placement)
        self.output = Linear(spec.projected_size, spec.output_size, placement)

    def num_rows(self, num_frames: int) -> int:
        return num_quarters(num_frames)

    def rows(self, features: Tensor, lengths: Tensor) -> Tensor:
        x, lengths = self.first(features.unsqueeze(1), lengths)
        x, lengths = self.second(x, lengths)
        stream = self.projection(self.conformer(self.input(as_frames(x)), len(features)))
        normed = self.placement.arithmetic.rms_norm(stream, None, self.spec.norm_eps)
        rows: Tensor = self.output(normed)
        return rows.view(len(features), -1, self.spec.output_size)


class HalvingLayer(nn.Module):
    """A convolution that leaves half of the frames and bins, and a norm over the channels."""

    def __init__(self, num_inputs: int, num_outputs: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.kernel = placement.values(num_outputs, num_inputs, 3, 3)
        self.norm_weight = placement.norm_weight(num_outputs)
        self.eps = eps

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mixed, lengths = halve_frames(x, lengths, self.kernel, frames_before=1)
        # A norm of the type of its inputs is computed in float32 too, and holds half as much.
        weight = self.norm_weight.to(x.dtype)
        normed = functional.layer_norm(mixed.permute(0, 2, 3, 1), weight.shape, weight, None, self.eps)
        return functional.relu_(normed).permute(0, 3, 1, 2), lengths
