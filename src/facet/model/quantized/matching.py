"""Finds, for a matrix that the model needs, the tensors of a quantized checkpoint that hold it.

Checkpoints keep experts in three ways: as in the unquantized file, each projection in one stack with the names of the
parts behind an underscore (`experts.down_proj_packed`); split, every matrix of every expert by itself
(`experts.7.up_proj.weight_packed`); and split under `moe.experts`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, overload

import torch
from torch import Tensor

from facet.errors import CheckpointError
from facet.kernels.quantized import QuantizedMatrix, join_rows, stack
from facet.matrix_format import MatrixFormat
from facet.model.quantized.scheme import Scheme
from facet.model.shard import Cut
from facet.model.stored_tensor import StoredTensor
from facet.model.weight_map import TensorTarget

FLOATS = ("F32", "F16", "BF16")

# A tensor of a file, or one entry along its first axis.
Read: TypeAlias = Callable[[StoredTensor, int | None], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """A matrix [outputs, inputs] as a checkpoint keeps it."""

    module: str
    format: MatrixFormat
    parts: Mapping[str, StoredTensor]
    expert: int | None = None  # the entry of every part that is meant, where they hold those of all experts

    def read(self, scheme: Scheme, read: Read) -> QuantizedMatrix:
        tensors = {suffix: read(tensor, self.expert) for suffix, tensor in self.parts.items()}
        matrix = scheme.read(self.module, tensors, self.format)
        if matrix.format.codes == "fp8" and bool(matrix.codes.isnan().any()):
            raise CheckpointError(f"{self.module} has weights that are no numbers: the file is damaged.")
        return matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExperts:
    """The matrices of experts, each in one or two parts that lie one below the other."""

    experts: tuple[tuple[StoredMatrix | StoredTensor, ...], ...]
    format: MatrixFormat | None

    def read(self, scheme: Scheme, read: Read) -> QuantizedMatrix | Tensor:
        if self.format is None:
            return torch.stack(
                [
                    torch.cat([read(part, None) for part in parts if isinstance(part, StoredTensor)])
                    for parts in self.experts
                ]
            )
        return stack([join_rows(_read_all(parts, scheme, read)) for parts in self.experts])


Source: TypeAlias = StoredTensor | StoredMatrix | StoredExperts


def _read_all(parts: Sequence[StoredMatrix | StoredTensor], scheme: Scheme, read: Read) -> list[QuantizedMatrix]:
    found = [part.read(scheme, read) for part in parts if isinstance(part, StoredMatrix)]
    first = found[0].input_scale
    if first is not None and any(
        not torch.equal(each.input_scale, first) for each in found if each.input_scale is not None
    ):
        module = parts[0].module if isinstance(parts[0], StoredMatrix) else ""
        raise CheckpointError(f"{module}: gate and up of one expert round the same inputs with different scales.")
    return found


def read_share(
    source: StoredMatrix | StoredExperts, scheme: Scheme, read: Read, cut: Cut | None
) -> QuantizedMatrix | Tensor:
    """What a rank holds of a matrix: some experts are read alone; of a single matrix the rest is dropped again."""
    if cut is not None and cut.is_of_experts and isinstance(source, StoredExperts):
        (held,) = cut.slices
        return replace(source, experts=source.experts[held]).read(scheme, read)
    return cut_values(source.read(scheme, read), cut)


@overload
def cut_values(values: Tensor, cut: Cut | None) -> Tensor: ...
@overload
def cut_values(values: QuantizedMatrix | Tensor, cut: Cut | None) -> QuantizedMatrix | Tensor: ...
def cut_values(values: QuantizedMatrix | Tensor, cut: Cut | None) -> QuantizedMatrix | Tensor:
    """What a rank holds of them; None: all."""
    if cut is None:
        return values
    if isinstance(values, Tensor):
        return torch.cat([values.narrow(cut.axis, part.start, part.stop - part.start) for part in cut.slices], cut.axis)
    assert not cut.is_of_experts, "quantized experts are read one by one"
    if cut.is_of_inputs:
        (held,) = cut.slices
        return values.columns(held)
    return join_rows([values.rows(part) for part in cut.slices])


def format_of(source: Source) -> MatrixFormat | None:
    return None if isinstance(source, StoredTensor) else source.format


def tensors_of(source: Source) -> Iterator[StoredTensor]:
    """Everything that a source is read from."""
    if isinstance(source, StoredTensor):
        yield source
    elif isinstance(source, StoredMatrix):
        yield from source.parts.values()
    else:
        for parts in source.experts:
            for part in parts:
                yield from tensors_of(part)


def find_source(target: TensorTarget, inside: Mapping[str, StoredTensor], scheme: Scheme) -> Source | None:
    """What `target` is read from; None: nothing of it is there. `inside`: tensors by their names in the decoder."""
    if len(target.shape) == 3:
        return (
            inside.get(target.name) or _fused_experts(target, inside, scheme) or _split_experts(target, inside, scheme)
        )
    if len(target.shape) == 1:
        return inside.get(target.name)
    return _find_matrix(target.name.removesuffix(".weight"), target.shape, inside, scheme)


def _find_matrix(
    module: str, shape: Sequence[int], inside: Mapping[str, StoredTensor], scheme: Scheme
) -> StoredTensor | StoredMatrix | None:
    names = {suffix: f"{module}.{suffix}" for suffix in scheme.suffixes | {"weight"}}
    parts = {suffix: inside[name] for suffix, name in names.items() if name in inside}
    plain = parts.get("weight")
    if plain is not None and plain.dtype in FLOATS:
        others = sorted(set(parts) - {"weight"})
        if others:
            raise CheckpointError(
                f"{plain.name} is unquantized ({plain.dtype}), but {', '.join(others)} are there too."
            )
        return plain
    if not parts:
        return None
    some = next(iter(parts.items()))
    full_name = some[1].name.removesuffix(f".{some[0]}")
    return StoredMatrix(module=full_name, format=scheme.describe(full_name, parts, shape), parts=parts)


def _fused_experts(target: TensorTarget, inside: Mapping[str, StoredTensor], scheme: Scheme) -> StoredExperts | None:
    num_experts, *shape = target.shape
    names = {suffix: f"{target.name}_{suffix.removeprefix('weight_')}" for suffix in scheme.suffixes}
    parts = {suffix: inside[name] for suffix, name in names.items() if name in inside}
    if not parts:
        return None
    for tensor in parts.values():
        if not tensor.shape or tensor.shape[0] != num_experts:
            raise CheckpointError(f"{tensor.name} is {list(tensor.shape)}, but there are {num_experts} experts.")
    one = {suffix: replace(tensor, shape=tensor.shape[1:]) for suffix, tensor in parts.items()}
    format = scheme.describe(target.name, one, shape)
    experts = tuple(
        (StoredMatrix(module=target.name, format=format, parts=parts, expert=index),) for index in range(num_experts)
    )
    return StoredExperts(experts=experts, format=format)


def _split_experts(target: TensorTarget, inside: Mapping[str, StoredTensor], scheme: Scheme) -> StoredExperts | None:
    num_experts, num_rows, num_inputs = target.shape
    parent, _, projection = target.name.rpartition(".")
    pieces = ("gate_proj", "up_proj") if projection == "gate_up_proj" else (projection,)
    shape = (num_rows // len(pieces), num_inputs)
    for folder in (parent, parent.removesuffix("experts") + "moe.experts"):
        found = [
            [_find_matrix(f"{folder}.{index}.{piece}", shape, inside, scheme) for piece in pieces]
            for index in range(num_experts)
        ]
        flat = [part for parts in found for part in parts]
        if not any(flat):
            continue
        missing = [
            f"{index}.{piece}"
            for index, parts in enumerate(found)
            for piece, part in zip(pieces, parts, strict=True)
            if part is None
        ]
        if missing:
            raise CheckpointError(
                f"{folder} lacks {len(missing)} of {len(flat)} matrices, among them {', '.join(missing[:3])}."
            )
        formats = {format_of(part) for part in flat if part is not None}
        if len(formats) > 1:
            raise CheckpointError(f"{folder}: the experts' {projection} are not all quantized in the same way.")
        for part in flat:
            if isinstance(part, StoredTensor) and part.shape != shape:
                raise CheckpointError(f"{part.name} is {list(part.shape)} instead of {list(shape)}.")
        experts = tuple(tuple(part for part in parts if part is not None) for parts in found)
        return StoredExperts(experts=experts, format=formats.pop())
    return None
