"""Gemma 3n's tower: a convolutional network (MobileNet-v5) over square pictures, and the embedding of its rows.

Maps lie in memory as [pictures, height, width, channels], so that convolutions of one pixel are products of rows.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from facet.layers.linear import Linear
from facet.layers.media_embedder import MediaEmbedder
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm
from facet.vision_spec import AttentionBlockSpec, EdgeBlockSpec, InvertedBlockSpec, MobileNetSpec

# The side of pictures whose pass can be captured: all published checkpoints have them prepared so.
PADDED_SIDE = 768


class MobileNet(nn.Module):
    """Takes `pixels` [3, side, side] of bytes."""

    def __init__(self, spec: MobileNetSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.placement = placement
        self.stem = Convolution(3, spec.stem_width, 3, 2, placement)
        self.stem_bias = placement.values(spec.stem_width)
        self.stem_norm = RMSNorm(spec.stem_width, spec.block_norm_eps, placement)
        self.stages = nn.ModuleList(
            nn.ModuleList(_block(block, spec.block_norm_eps, placement) for block in stage) for stage in spec.stages
        )
        self.fusion = InvertedBlock(spec.fusion, spec.block_norm_eps, placement)
        self.fusion_norm = RMSNorm(spec.fusion.num_outputs, spec.block_norm_eps, placement)
        self.embedder = MediaEmbedder(
            spec.fusion.num_outputs, len(spec.table_ids), spec.output_size, spec.norm_eps, placement
        )

    def forward(self, pictures: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """The rows of each picture."""
        pixels = torch.stack([picture["pixels"] for picture in pictures]).permute(0, 2, 3, 1)
        maps = self.stem((pixels.float() / 255).to(self.placement.dtype)) + self.stem_bias
        maps = functional.gelu(self.stem_norm(maps), approximate="tanh")
        by_stage = []
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for block in stage:
                maps = block(maps)
            by_stage.append(maps)
        features = self.fusion_norm(self._averages(self.fusion(_stacked(*by_stage[-2:])))).flatten(0, 2)
        rows = self.embedder(features * self.spec.fusion.num_outputs**0.5)
        return list(torch.split(rows, self.spec.rows_per_side**2))

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """The sizes of `forward_padded`: pictures of the usual side have this size."""
        return (1,)

    @property
    def num_padded_rows(self) -> int:
        return self.spec.rows_per_side**2

    def size_of(self, picture: Mapping[str, Tensor]) -> int:
        """Pictures of another side count as too large: filled up, they would be other pictures."""
        return 1 if picture["pixels"].shape[-1] == PADDED_SIDE else 2

    def padded_inputs(self, size: int) -> dict[str, Tensor]:
        return {"pixels": torch.zeros(3, PADDED_SIDE, PADDED_SIDE, dtype=torch.uint8, device=self.placement.device)}

    def forward_padded(self, picture: Mapping[str, Tensor], count: Tensor) -> Tensor:
        """The rows of a picture, which needs no filling up."""
        return self.forward([picture])[0]

    def _averages(self, maps: Tensor) -> Tensor:
        side, count = maps.shape[1], self.spec.rows_per_side
        assert side % count == 0, f"{side} places on a side cannot be averaged to {count}"
        cells = maps.view(len(maps), count, side // count, count, side // count, maps.shape[-1])
        return cells.float().mean(dim=(2, 4)).to(maps.dtype)


class Convolution(nn.Module):
    """A convolution without bias of maps [pictures, height, width, channels], padded so that `stride` alone decides the
    size of the result; where the padding is odd, there is more of it at the end. Depthwise: each channel by itself."""

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        size: int,
        stride: int,
        placement: Placement,
        *,
        is_depthwise: bool = False,
    ) -> None:
        super().__init__()
        self.kernel = placement.values(num_outputs, 1 if is_depthwise else num_inputs, size, size)
        self.size = size
        self.stride = stride
        self.num_groups = num_inputs if is_depthwise else 1

    def forward(self, maps: Tensor) -> Tensor:
        rows, columns = (self._padding(length) for length in maps.shape[1:3])
        padded = functional.pad(maps, (0, 0, *columns, *rows)).permute(0, 3, 1, 2)
        return functional.conv2d(padded, self.kernel, stride=self.stride, groups=self.num_groups).permute(0, 2, 3, 1)

    def _padding(self, length: int) -> tuple[int, int]:
        num_outputs = -(-length // self.stride)
        total = max((num_outputs - 1) * self.stride + self.size - length, 0)
        return total // 2, total - total // 2


class EdgeBlock(nn.Module):
    """A full convolution that widens, then a product that narrows."""

    def __init__(self, spec: EdgeBlockSpec, eps: float, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.widen = Convolution(spec.num_inputs, spec.width, spec.kernel_size, spec.stride, placement)
        self.widen_norm = RMSNorm(spec.width, eps, placement)
        self.narrow = Linear(spec.width, spec.num_outputs, placement)
        self.narrow_norm = RMSNorm(spec.num_outputs, eps, placement)

    def forward(self, maps: Tensor) -> Tensor:
        widened = functional.gelu(self.widen_norm(self.widen(maps)), approximate="tanh")
        update: Tensor = self.narrow_norm(_products(self.narrow, widened))
        return maps + update if self.spec.has_skip else update


class InvertedBlock(nn.Module):
    """Products that widen and narrow, with convolutions of single channels before them or between them."""

    def __init__(self, spec: InvertedBlockSpec, eps: float, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        inputs, width, outputs = spec.num_inputs, spec.width, spec.num_outputs
        if spec.start_kernel_size:
            stride = 1 if spec.middle_kernel_size else spec.stride
            self.start = Convolution(inputs, inputs, spec.start_kernel_size, stride, placement, is_depthwise=True)
            self.start_norm = RMSNorm(inputs, eps, placement)
        self.widen = Linear(inputs, width, placement)
        self.widen_norm = RMSNorm(width, eps, placement)
        if spec.middle_kernel_size:
            self.middle = Convolution(width, width, spec.middle_kernel_size, spec.stride, placement, is_depthwise=True)
            self.middle_norm = RMSNorm(width, eps, placement)
        self.narrow = Linear(width, outputs, placement)
        self.narrow_norm = RMSNorm(outputs, eps, placement)
        if spec.is_scaled:
            self.scale = placement.values(outputs)

    def forward(self, maps: Tensor) -> Tensor:
        hidden = maps
        if self.spec.start_kernel_size:
            hidden = self.start_norm(self.start(hidden))
        hidden = functional.gelu(self.widen_norm(_products(self.widen, hidden)), approximate="tanh")
        if self.spec.middle_kernel_size:
            hidden = functional.gelu(self.middle_norm(self.middle(hidden)), approximate="tanh")
        update: Tensor = self.narrow_norm(_products(self.narrow, hidden))
        if self.spec.is_scaled:
            update = update * self.scale
        return maps + update if self.spec.has_skip else update


class AttentionBlock(nn.Module):
    """Every place sees every place, or every place of a smaller map. All heads share keys and values."""

    def __init__(self, spec: AttentionBlockSpec, eps: float, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        channels, width = spec.num_channels, spec.num_heads * spec.head_dim
        self.norm = RMSNorm(channels, eps, placement)
        self.query = Linear(channels, width, placement)
        self.key = _KeysOrValues(spec, eps, placement)
        self.value = _KeysOrValues(spec, eps, placement)
        self.output = Linear(width, channels, placement)
        self.scale = placement.values(channels)

    def forward(self, maps: Tensor) -> Tensor:
        normed = self.norm(maps)
        queries = _products(self.query, normed).view(len(maps), -1, self.spec.num_heads, self.spec.head_dim)
        keys, values = (
            made.flatten(1, 2).unsqueeze(1).expand(-1, self.spec.num_heads, -1, -1)
            for made in (self.key(normed), self.value(normed))
        )
        attended = functional.scaled_dot_product_attention(queries.transpose(1, 2), keys, values)
        update = _products(self.output, attended.transpose(1, 2).flatten(2)).view_as(maps)
        return maps + update * self.scale


class _KeysOrValues(nn.Module):
    def __init__(self, spec: AttentionBlockSpec, eps: float, placement: Placement) -> None:
        super().__init__()
        channels = spec.num_channels
        self.is_smaller = spec.key_stride > 1
        if self.is_smaller:
            self.shrink = Convolution(
                channels, channels, spec.kernel_size, spec.key_stride, placement, is_depthwise=True
            )
            self.norm = RMSNorm(channels, eps, placement)
        self.projection = Linear(channels, spec.head_dim, placement)

    def forward(self, maps: Tensor) -> Tensor:
        return _products(self.projection, self.norm(self.shrink(maps)) if self.is_smaller else maps)


def _block(spec: EdgeBlockSpec | InvertedBlockSpec | AttentionBlockSpec, eps: float, placement: Placement) -> nn.Module:
    if isinstance(spec, EdgeBlockSpec):
        return EdgeBlock(spec, eps, placement)
    if isinstance(spec, InvertedBlockSpec):
        return InvertedBlock(spec, eps, placement)
    return AttentionBlock(spec, eps, placement)


def _products(linear: Linear, maps: Tensor) -> Tensor:
    """The products of every row of the maps."""
    rows: Tensor = linear(maps.reshape(-1, maps.shape[-1]))
    return rows.view(*maps.shape[:-1], -1)


def _stacked(larger: Tensor, smaller: Tensor) -> Tensor:
    """The channels of both, the places of the smaller map repeated."""
    times = larger.shape[1] // smaller.shape[1]
    repeated = smaller.repeat_interleave(times, dim=1).repeat_interleave(times, dim=2)
    return torch.cat((larger, repeated), dim=-1)
