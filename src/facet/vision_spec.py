"""Describes what turns pictures into rows of a decoder, as data: one class for each kind there is.

Every kind ends in rows as wide as the decoder's stream (`output_size`), one for each placeholder of a picture.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTowerSpec:
    """Gemma 4: a transformer over the patches of a picture of any shape. Cells of the grid are averaged at the end."""

    hidden_size: int
    num_layers: int
    mlp_width: int
    num_heads: int
    head_dim: int
    patch_size: int  # pixels on a side
    cell_size: int  # patches on a side of a cell, which becomes one row
    num_positions: int  # the most patches on a side of a picture
    rotary_theta: float
    norm_eps: float
    is_clipped: bool  # products bound what goes in and out
    is_standardized: bool  # averages are shifted and scaled by stored vectors
    output_size: int

    @property
    def patch_width(self) -> int:
        return 3 * self.patch_size**2

    @property
    def values_per_row(self) -> int:
        """How many numbers a pass holds at once for every row it makes, about: patches, or the widest part of a
        layer."""
        return self.cell_size**2 * (max(3 * self.mlp_width, 4 * self.patch_width) + 6 * self.hidden_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchEmbedderSpec:
    """Gemma 4 12B: no tower. A large patch is projected and becomes a row."""

    patch_size: int  # pixels on a side
    hidden_size: int
    num_positions: int  # the most patches on a side of a picture
    norm_eps: float
    output_size: int

    @property
    def patch_width(self) -> int:
        return 3 * self.patch_size**2

    @property
    def values_per_row(self) -> int:
        """How many numbers a pass holds at once for every row it makes, about."""
        return 6 * self.patch_width + 6 * self.hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareTowerSpec:
    """Gemma 3: a transformer (SigLIP) over the patches of a square picture of one size."""

    hidden_size: int
    num_layers: int
    mlp_width: int
    num_heads: int
    image_size: int  # pixels on a side
    patch_size: int  # pixels on a side
    rows_per_side: int  # patches are averaged to so many rows on a side
    norm_eps: float
    output_size: int

    @property
    def patches_per_side(self) -> int:
        return self.image_size // self.patch_size

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def values_per_row(self) -> int:
        """How many numbers a pass holds at once for every row it makes, about."""
        return (self.patches_per_side // self.rows_per_side) ** 2 * (3 * self.mlp_width + 8 * self.hidden_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeBlockSpec:
    """A full convolution that widens, then a product that narrows."""

    num_inputs: int
    num_outputs: int
    width: int
    kernel_size: int
    stride: int

    @property
    def has_skip(self) -> bool:
        return self.stride == 1 and self.num_inputs == self.num_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertedBlockSpec:
    """Products that widen and narrow, with convolutions of single channels before or between them."""

    num_inputs: int
    num_outputs: int
    width: int
    start_kernel_size: int = 0  # 0: no such convolution
    middle_kernel_size: int = 0
    stride: int = 1
    is_scaled: bool = True  # what is added is scaled by channel
    may_skip: bool = True

    @property
    def has_skip(self) -> bool:
        return self.may_skip and self.stride == 1 and self.num_inputs == self.num_outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlockSpec:
    """Attention of every place to every place. All heads share keys and values, which may be those of a smaller map."""

    num_channels: int
    num_heads: int
    head_dim: int
    key_stride: int
    kernel_size: int = 3  # of the convolution that makes the map smaller


BlockSpec: TypeAlias = EdgeBlockSpec | InvertedBlockSpec | AttentionBlockSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileNetSpec:
    """Gemma 3n: a convolutional network (MobileNet-v5) over square pictures. The maps of its last two stages become
    rows. Some ids of the vocabulary have their embeddings here, too."""

    stem_width: int
    stages: tuple[tuple[BlockSpec, ...], ...]
    fusion: InvertedBlockSpec  # of the channels of the last two stages
    rows_per_side: int
    norm_eps: float  # of the embedder; blocks have their own
    table_ids: range  # of the vocabulary, whose embeddings are here
    output_size: int
    block_norm_eps: float = 1e-6

    @property
    def side_multiple(self) -> int:
        """What the side of a picture, in pixels, must be a multiple of: of the stage before the last, whose places are
        averaged to rows, one has 16 pixels on a side."""
        return 16 * self.rows_per_side

    @property
    def values_per_row(self) -> int:
        """How many numbers a pass holds at once for every row it makes, about: the first maps are the largest."""
        first = self.stages[0][0]
        assert isinstance(first, EdgeBlockSpec)
        # Twelve places on a side of the largest published picture become one row of the first stage's maps.
        return 12**2 * 3 * first.width + 24**2 * 3 * self.stem_width


VisionSpec: TypeAlias = PatchTowerSpec | PatchEmbedderSpec | SquareTowerSpec | MobileNetSpec
