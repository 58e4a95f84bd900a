"""Refuses media that no tower could take: what towers are given is checked here, once, before a request is queued."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from facet.errors import RequestError
from facet.media_span import MediaKind
from facet.prepared_media import PreparedMedia
from facet.sound_spec import ConformerTowerSpec, SampleEmbedderSpec, UsmTowerSpec
from facet.vision_spec import MobileNetSpec, PatchEmbedderSpec, PatchTowerSpec, SquareTowerSpec


def check_media(contents: tuple[PreparedMedia, ...], towers: Mapping[MediaKind, nn.Module]) -> None:
    """`towers`: those of the model."""
    for content in contents:
        if content.kind not in towers:
            known = ", ".join(("text", *towers))
            raise _refused(f"This model takes no {content.kind}. It takes {known}.")
        spec = towers[content.kind].spec
        if isinstance(spec, PatchTowerSpec):
            _check_patches(content, spec.patch_width, spec.num_positions, side=spec.cell_size)
        elif isinstance(spec, PatchEmbedderSpec):
            _check_patches(content, spec.patch_width, spec.num_positions, side=1)
        elif isinstance(spec, ConformerTowerSpec | SampleEmbedderSpec):
            _check_frames(content, spec)
        elif isinstance(spec, UsmTowerSpec):
            features = content.arrays.get("features")
            _array(content, "features", (0 if features is None else features.shape[0], spec.num_bins))
            if content.num_tokens != spec.num_rows:
                raise _refused(f"The {content.kind} has {content.num_tokens} tokens instead of {spec.num_rows}.")
        elif isinstance(spec, SquareTowerSpec | MobileNetSpec):
            _check_square(content, spec)
            if content.num_tokens != spec.rows_per_side**2:
                raise _refused(
                    f"The {content.kind} has {content.num_tokens} tokens instead of {spec.rows_per_side**2}."
                )


def _check_square(content: PreparedMedia, spec: SquareTowerSpec | MobileNetSpec) -> None:
    if isinstance(spec, SquareTowerSpec):
        side = spec.image_size
    else:
        side = content.arrays["pixels"].shape[-1] if "pixels" in content.arrays else 0
        if side % spec.side_multiple:
            raise _refused(f"The {content.kind} is {side} pixels wide, but must be a multiple of {spec.side_multiple}.")
    _array(content, "pixels", (3, side, side))


def _check_frames(content: PreparedMedia, spec: ConformerTowerSpec | SampleEmbedderSpec) -> None:
    """Four frames of a spectrum become a token, the last few of them too; or one frame of samples."""
    features = content.arrays.get("features")
    num_frames = 0 if features is None else features.shape[0]
    if isinstance(spec, ConformerTowerSpec):
        width, num_tokens = spec.num_bins, -(-num_frames // 4)
    else:
        width, num_tokens = spec.frame_size, num_frames
    _array(content, "features", (num_frames, width))
    if content.num_tokens != num_tokens:
        raise _refused(f"The {content.kind} has {content.num_tokens} tokens, but {num_frames} frames are {num_tokens}.")


def _check_patches(content: PreparedMedia, width: int, num_positions: int, *, side: int) -> None:
    """Patches of a whole grid, in the order of its rows; `side` patches on a side become one token."""
    count = content.num_tokens * side**2
    _array(content, "patches", (count, width))
    positions = _array(content, "positions", (count, 2))
    num_columns = int(positions[:, 0].max()) + 1
    expected = np.stack((np.arange(count) % num_columns, np.arange(count) // num_columns), axis=1)
    num_rows = count // num_columns
    if not np.array_equal(positions, expected) or num_columns % side or num_rows % side:
        raise _refused(f"The positions of the {content.kind}'s patches are not those of a grid.")
    if max(num_columns, num_rows) > num_positions:
        raise _refused(
            f"The {content.kind} has {num_rows} by {num_columns} patches, but a side may have {num_positions}."
        )


def _array(content: PreparedMedia, name: str, shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    array = content.arrays.get(name)
    if array is None:
        raise _refused(f"The {content.kind} lacks its {name}.")
    size = {"uint8": 1, "bool": 1}.get(array.dtype, 4)
    if array.shape != shape or len(array.data) != size * int(np.prod(shape)):
        raise _refused(f"The {name} of the {content.kind} are {list(array.shape)} instead of {list(shape)}.")
    return array.numpy()


def _refused(message: str) -> RequestError:
    return RequestError(message, field="media")
