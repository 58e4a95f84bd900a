"""What towers for clips of log-mel frames have in common: several clips at once, or one that is filled up to a size."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from facet.layers.placement import Placement
from facet.layers.sound.clips import encode_by_length, stack_clips
from facet.sound_spec import ConformerTowerSpec, UsmTowerSpec

# Frames of clips that are filled up to: of 5, 10, 20 and 30 seconds, as much as the models hear.
PADDED_FRAMES = (500, 1000, 2000, 3000)


class ClipTower(nn.Module, ABC):
    """Takes `features` [frames, bins]."""

    def __init__(self, spec: ConformerTowerSpec | UsmTowerSpec, placement: Placement) -> None:
        super().__init__()
        self.spec = spec
        self.placement = placement

    def forward(self, clips: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
        """The rows of each clip."""
        return encode_by_length(clips, self._encode)

    @property
    def padded_sizes(self) -> tuple[int, ...]:
        """Numbers of frames that `forward_padded` is made for."""
        return PADDED_FRAMES

    @property
    def num_padded_rows(self) -> int:
        return self.num_rows(PADDED_FRAMES[-1])

    def size_of(self, clip: Mapping[str, Tensor]) -> int:
        return len(clip["features"])

    def padded_inputs(self, size: int) -> dict[str, Tensor]:
        return {"features": torch.zeros(size, self.spec.num_bins, device=self.placement.device)}

    def forward_padded(self, clip: Mapping[str, Tensor], num_frames: Tensor) -> Tensor:
        """The rows of a clip that has `num_frames` frames, and behind them, perhaps, others that mean nothing."""
        return self.rows(clip["features"].to(self.placement.dtype).unsqueeze(0), num_frames.view(1))[0]

    @abstractmethod
    def num_rows(self, num_frames: int) -> int:
        """How many rows a clip of so many frames has: the host knows it without asking the device."""

    @abstractmethod
    def rows(self, features: Tensor, lengths: Tensor) -> Tensor:
        """[clips, rows, width] of [clips, frames, bins], of which so many are real."""

    def _encode(self, clips: Sequence[Tensor]) -> list[Tensor]:
        rows = self.rows(*stack_clips(clips, self.placement.dtype))
        return [made[: self.num_rows(len(clip))] for made, clip in zip(rows, clips, strict=True)]
