"""What every scheme of quantized checkpoints answers, and the checks that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from facet.errors import CheckpointError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import MatrixFormat
from facet.model.config_fields import ConfigFields
from facet.model.stored_tensor import StoredTensor

# Types of scales, as safetensors and torch name them.
SCALE_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}

BLOCK_ROWS = 128  # outputs that share scales, where those are of blocks


CACHE_SCALES = (
    "The checkpoint has scales for a KV cache of eight bits, which are not used: --kv-cache-dtype makes its own where "
    "it needs them."
)


class Scheme(Protocol):
    """How a checkpoint keeps its matrices. A module is what a matrix belongs to: its name without `.weight`."""

    name: str
    suffixes: frozenset[str]  # of the tensors that make up a matrix, behind the name of its module
    notes: tuple[str, ...]  # what the checkpoint asks for and does not get

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        """The format of a module that may have any of these names, from the config alone. None: not quantized."""

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        """The format of the matrix [outputs, inputs] that these tensors hold. Raises where they do not fit it or the
        config."""

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        """What `describe` has described."""


@dataclass(frozen=True, slots=True)
class Part:
    """How one tensor of a matrix must look."""

    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # any of them
    is_needed: bool = True


def check_parts(module: str, parts: Mapping[str, StoredTensor], layout: Mapping[str, Part]) -> None:
    """Raises if tensors are missing, are too many, or look different."""
    missing = [name for name, part in layout.items() if part.is_needed and name not in parts]
    if missing:
        raise CheckpointError(
            f"{module} is quantized, but lacks {', '.join(missing)}; it has {', '.join(sorted(parts))}."
        )
    unexpected = sorted(set(parts) - set(layout))
    if unexpected:
        raise CheckpointError(
            f"{module} has {', '.join(unexpected)} beside {', '.join(sorted(set(parts) & set(layout)))}, which do not "
            "belong together."
        )
    for name, part in layout.items():
        if name not in parts:
            continue
        found = parts[name]
        if found.dtype not in part.dtypes or found.shape not in part.shapes:
            shapes = " or ".join(str(list(shape)) for shape in dict.fromkeys(part.shapes))
            raise CheckpointError(
                f"{found.name} is {found.dtype} {list(found.shape)}, but by quantization_config and the model's shape "
                f"it would be {' or '.join(part.dtypes)} {shapes}."
            )


def check_group(module: str, num_inputs: int, group: int | None) -> None:
    if group is not None and num_inputs % group:
        raise CheckpointError(
            f"{module} has {num_inputs} inputs, which groups of {group} do not divide: the weights are damaged, or "
            "quantization_config belongs to another model."
        )


def check_scales(module: str, scales: Tensor) -> Tensor:
    """Scales that are finite and not negative, or an error."""
    wide = scales.float()
    if not bool((wide.isfinite() & (wide >= 0)).all()):
        raise CheckpointError(f"{module} has scales that are negative or no numbers: the weights are damaged.")
    return scales


def spread_scales(scales: Tensor, shape: Sequence[int], format: MatrixFormat) -> Tensor:
    """A scale for every row and group of a matrix: those of a tensor or of a block are repeated."""
    num_rows, count = shape[0], format.scales.count(shape[1])
    if scales.ndim < 2:
        scales = scales.reshape(-1, 1)
    if len(scales) not in (1, num_rows):
        scales = scales.repeat_interleave(BLOCK_ROWS, 0)[:num_rows]
    return scales.expand(num_rows, count)


def unpack_words(words: Tensor, bits: int) -> Tensor:
    """int32 words along the last axis to codes, one to a byte, lowest bits first. `bits`: 4 or 8."""
    octets = words.contiguous().view(torch.uint8)
    return octets if bits == 8 else torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def pack_codes(codes: Tensor) -> Tensor:
    """Codes of four bits, one to a byte, as a matrix keeps them: two to a byte, the even column in the lower half."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def centred(codes: Tensor) -> Tensor:
    """Unsigned bytes, 128 above the numbers meant, as signed ones."""
    return (codes ^ 128).view(torch.int8)


def sort_inputs(module: str, codes: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Codes [outputs, inputs] with the columns of a group beside each other, and which input each column takes.

    `groups` [inputs] says to which group of scales a column belongs."""
    counts = torch.bincount(groups.clamp(min=0).long(), minlength=num_groups)
    if bool((groups < 0).any()) or len(counts) != num_groups or not bool((counts == counts[0]).all()):
        raise CheckpointError(f"{module}: g_idx does not divide {len(groups)} inputs into {num_groups} equal groups.")
    order = groups.argsort(stable=True)
    return codes[:, order], order.int()


def is_natural_order(groups: Tensor, num_groups: int) -> bool:
    """Whether every column belongs to the group of its neighbours, which some files say in so many numbers."""
    natural = torch.arange(len(groups), device=groups.device) // (len(groups) // num_groups)
    return bool((groups == natural).all() or (groups == -1).all())


def names_in(fields: ConfigFields, name: str) -> tuple[str, ...]:
    """A list of names; nothing where the field is absent."""
    value = fields.raw(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise fields.wrong(name, "a list of names")
    return tuple(value)
