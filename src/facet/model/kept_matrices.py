"""Says which tensors of a checkpoint are kept as one matrix, in which format, and how many bytes that is.

A pure function of a spec and of formats: a loader builds what it says, and a plan counts it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from facet.layers.gpu_weights import Int4Weight
from facet.layers.quantized_weight import QuantizedWeight
from facet.layers.weight_kinds import kind_with_kernels
from facet.matrix_format import MatrixFormat
from facet.model.weight_map import PER_LAYER_TABLE, TensorTarget, tensor_targets
from facet.model_spec import ModelSpec

_TABLE = "embedding"  # of the tokens; makes logits too where the head is tied to it
_GATE_UP, _DOWN = ".experts.gate_up", ".experts.down"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptMatrix:
    """One matrix of a product, or one for each expert. Some products have several, one below the other."""

    place: str  # of the `Linear` that has it
    shape: tuple[int, ...]
    format: MatrixFormat | None  # None: not quantized
    # Multiplied by whatever serves all formats: kernels for most take two matrices of one format from experts.
    is_of_any_kind: bool = False
    is_multiplied: bool = True  # not only looked up
    is_table: bool = False

    @property
    def num_bytes(self) -> int:
        """The bytes of a quantized matrix until it is prepared."""
        assert self.format is not None, "it is quantized"
        return self.format.num_bytes(self.shape)

    def prepared_bytes(self, dtype: torch.dtype, device_type: str) -> int:
        """The bytes of a quantized matrix on a device that has all kernels, beside activations of this type."""
        if self.format is None or self.is_of_any_kind or not self.is_multiplied:
            return self.num_bytes
        kind: type[QuantizedWeight] = kind_with_kernels(self.format, self.shape, dtype=dtype, device_type=device_type)
        count = kind.prepared_table_bytes if self.is_table else kind.prepared_bytes
        return count(self.format, self.shape)


def kept_matrices(spec: ModelSpec, formats: Mapping[str, MatrixFormat]) -> dict[str, list[KeptMatrix]]:
    """The matrices of every `Linear`, by its name."""
    by_place: dict[str, list[TensorTarget]] = {}
    for target in tensor_targets(spec):
        if len(target.shape) > 1:
            by_place.setdefault(target.place, []).append(target)

    def format_of(place: str) -> MatrixFormat | None:
        return formats.get(by_place[place][0].name)

    kept: dict[str, list[KeptMatrix]] = {}
    for place, targets in by_place.items():
        differs = False
        if place.endswith((_GATE_UP, _DOWN)):
            layer = place.removesuffix(_GATE_UP).removesuffix(_DOWN)
            differs = format_of(layer + _GATE_UP) != format_of(layer + _DOWN)
        kept[place] = [
            KeptMatrix(
                place=place,
                shape=shape,
                format=format,
                is_of_any_kind=differs and not (place.endswith(_GATE_UP) and _can_be_before_another(format, shape)),
                is_multiplied=place != PER_LAYER_TABLE and (place != _TABLE or spec.tied_embeddings),
                is_table=place in (_TABLE, PER_LAYER_TABLE),
            )
            for format, shape in _stacked(targets, formats)
        ]
    return kept


def _can_be_before_another(format: MatrixFormat | None, shape: Sequence[int]) -> bool:
    """Whether kernels for such first matrices of experts take a second one of any format."""
    if format is None:
        return False
    return kind_with_kernels(format, shape, dtype=torch.bfloat16, device_type="cuda") is Int4Weight


def _stacked(
    targets: Sequence[TensorTarget], formats: Mapping[str, MatrixFormat]
) -> list[tuple[MatrixFormat | None, tuple[int, ...]]]:
    """(Format, shape) of the matrices of a product with these parts: one where their rows can be stacked, else one for
    each part."""
    *stack, _, num_inputs = targets[0].shape
    found = [formats.get(target.name) for target in targets]
    first = found[0]
    if first is None:
        is_one = not any(found)
    else:
        is_one = len(found) == 1 or all(format is not None and first.joins(format) for format in found)
    if is_one:
        return [(first, (*stack, sum(target.shape[-2] for target in targets), num_inputs))]
    return [(format, target.shape) for format, target in zip(found, targets, strict=True)]
