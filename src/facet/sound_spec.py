"""Describes what turns sound into rows of a decoder, as data: one class for each kind there is.

Every kind ends in rows as wide as the decoder's stream (`output_size`), one for each placeholder of a clip.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerSpec:
    """The layers of both towers: attention and a convolution, both to the near past alone, between two MLPs."""

    hidden_size: int
    num_layers: int
    num_heads: int
    window: int  # how many frames a frame attends to, itself included
    kernel_size: int  # how many frames the convolution spans, the last of them its own
    logit_cap: float
    key_scale: float  # of scores by content, which are added to scores by distance
    mlp_scale: float  # of what an MLP adds to the stream
    norm_eps: float
    is_clipped: bool  # products bound what goes in and out

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerTowerSpec:
    """Gemma 4: log-mel frames, four of which become a row."""

    conformer: ConformerSpec
    num_bins: int
    num_channels: tuple[int, int]  # of the two convolutions that halve the number of frames, each
    norm_eps: float
    projected_size: int
    output_size: int

    @property
    def values_per_row(self) -> int:
        """How many numbers a pass holds at once for every row it makes, about: behind the first convolution, or in the
        widest part of a layer. Twice that, since half of it may be padding."""
        convolved = 2 * (self.num_bins // 2) * self.num_channels[0]
        return 2 * max(4 * convolved, 16 * self.conformer.hidden_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsmTowerSpec:
    """Gemma 3n: log-mel frames, sixteen of which become a row. Every clip has the same number of rows, and those that
    it does not fill are of a row of a small table."""

    conformer: ConformerSpec
    num_bins: int
    num_channels: tuple[int, int]  # of the two convolutions that halve the number of frames, each
    group_norm_eps: float
    reduction: int  # one of so many frames becomes a row in the end
    num_rows: int
    table_size: int  # rows of the table, which also has the tokens around a clip
    padding_row: int  # of the table
    table_ids: range  # of the vocabulary, which the table's rows are of
    norm_eps: float
    output_size: int

    @property
    def values_per_row(self) -> int:
        """How many numbers a pass holds at once for every row it makes, as `ConformerTowerSpec` counts them; behind the
        convolutions, numbers are float32."""
        convolved = 2 * self.reduction * (self.num_bins // 2) * self.num_channels[0]
        return 2 * max(8 * convolved, 16 * self.reduction * self.conformer.hidden_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleEmbedderSpec:
    """Gemma 4 12B: no tower. A frame of samples is projected and becomes a row."""

    frame_size: int
    norm_eps: float
    output_size: int

    @property
    def values_per_row(self) -> int:
        """How many numbers a pass holds at once for every row it makes, about."""
        return 4 * self.frame_size + self.output_size


SoundSpec: TypeAlias = ConformerTowerSpec | UsmTowerSpec | SampleEmbedderSpec
