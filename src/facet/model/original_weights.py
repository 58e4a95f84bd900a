"""Lets a quantized model compute without its quantization, one matrix at a time, to compare it with itself.

Where weights were quantized while they were loaded, products take the numbers that the checkpoint has; elsewhere they
take the numbers that the codes stand for, in float32. In both cases inputs are not rounded. A matrix, or a tile of one,
is there only while it is multiplied: a model that fits can be compared, whatever room is left beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from facet.kernels.arithmetic import Arithmetic
from facet.kernels.quantized import reference
from facet.layers.linear import Linear
from facet.layers.quantized_weight import PartsWeight, ProductWeight, QuantizedWeight
from facet.layers.weight import Values, Weight
from facet.model.checkpoint import match_tensors
from facet.model.config_fields import read_config_file
from facet.model.gemma import Gemma
from facet.model.quantized.choose import read_scheme
from facet.model.quantized.matching import Source, StoredExperts, format_of
from facet.model.stored_tensor import StoredTensor
from facet.model.weight_files import WeightFiles, find_weight_files, read_headers
from facet.model.weight_map import TensorTarget


class _Read(Protocol):
    def __call__(self, expert: int | None) -> Tensor:
        """A matrix [outputs, inputs]; `expert`: of those of all experts."""


class _Unfilled(ProductWeight):
    """A weight for comparison, which reads elsewhere what it stands for."""

    has_kernels = False

    def fill(self, values: Values, rows: slice) -> None:
        raise AssertionError("weights for comparison are not filled")


class StoredWeight(_Unfilled):
    """Numbers that stay in a file, and are read for every product."""

    def __init__(self, read: _Read, dtype: torch.dtype, arithmetic: Arithmetic) -> None:
        super().__init__()
        self._read = read
        self._dtype = dtype
        self.arithmetic = arithmetic

    def product(self, x: Tensor, rows: slice | None = None, expert: int | None = None) -> Tensor:
        values = self._read(expert)
        values = values if rows is None else values[rows]
        return self.arithmetic.linear(x, values.to(x.device, x.dtype))

    def look_up(self, ids: Tensor) -> Tensor:
        table = self._read(None)
        known = torch.where(ids < len(table), ids, 0)
        return table[known.cpu()].to(ids.device, self._dtype)


class DequantizedWeight(_Unfilled):
    """The numbers that the codes of a weight stand for."""

    def __init__(self, weight: QuantizedWeight) -> None:
        super().__init__()
        self._weight = weight
        self.arithmetic = weight.arithmetic

    def product(self, x: Tensor, rows: slice | None = None, expert: int | None = None) -> Tensor:
        matrix = self._weight.matrix if expert is None else self._weight.matrix.expert(expert)
        unrounded = replace(matrix.format, rounding=None, rounds_outputs=False)
        matrix = replace(matrix, format=unrounded, input_scale=None, output_scale=None)
        return reference.linear(x, matrix if rows is None else matrix.rows(rows))

    def look_up(self, ids: Tensor) -> Tensor:
        return self._weight.look_up(ids)


class OriginalWeights:
    """What a model would compute with if it were not quantized."""

    def __init__(self, model: Gemma, weights: Mapping[Linear, Weight], *, are_stored: bool) -> None:
        self._model = model
        self._weights = weights
        self.are_stored = are_stored  # the checkpoint has them unquantized; else they are what codes stand for

    @contextmanager
    def in_place(self) -> Iterator[Gemma]:
        """The model without its quantization, until it is given back."""
        quantized = {linear: linear.weight for linear in self._weights}
        try:
            for linear, weight in self._weights.items():
                linear.weight = weight
            yield self._model
        finally:
            for linear, weight in quantized.items():
                linear.weight = weight


@contextmanager
def original_weights(model: Gemma, folder: Path | None) -> Iterator[OriginalWeights]:
    """The original weights of a model whose checkpoint is in `folder`; None: its weights were drawn."""
    sources: dict[str, list[tuple[TensorTarget, Source]]] = {}
    if folder is not None:
        scheme = read_scheme(read_config_file(folder / "config.json"), folder)
        for target, source in match_tensors(model.spec, read_headers(find_weight_files(folder)), scheme).items():
            sources.setdefault(target.place, []).append((target, source))
    weights: dict[Linear, Weight] = {}
    are_stored = False
    with WeightFiles() as files:
        for place, module in model.named_modules():
            if not isinstance(module, Linear) or not is_quantized(module.weight):
                continue
            found = sources.get(place, ())
            if found and all(format_of(source) is None for _, source in found):
                weights[module] = _stored(found, files, model)
                are_stored = True
            else:
                weights[module] = _dequantized(module.weight)
        yield OriginalWeights(model, weights, are_stored=are_stored)


def is_quantized(weight: Weight) -> bool:
    return any(isinstance(part, QuantizedWeight) for part in weight.modules())


def _stored(found: Sequence[tuple[TensorTarget, Source]], files: WeightFiles, model: Gemma) -> Weight:
    placement = model.placement

    def made(source: Source) -> Weight:
        return StoredWeight(partial(_read, files, source), placement.dtype, placement.arithmetic)

    if len(found) == 1:
        return made(found[0][1])
    sizes = [target.shape[-2] for target, _ in found]
    return PartsWeight([made(source) for _, source in found], sizes, placement.arithmetic)


def _read(files: WeightFiles, source: Source, expert: int | None) -> Tensor:
    if isinstance(source, StoredTensor):
        return files.read(source, expert)
    assert isinstance(source, StoredExperts), "quantized matrices are dequantized"
    assert expert is not None, "experts are multiplied one by one"
    return torch.cat([files.read(part) for part in source.experts[expert] if isinstance(part, StoredTensor)])


def _dequantized(weight: Weight) -> Weight:
    if isinstance(weight, QuantizedWeight):
        return DequantizedWeight(weight)
    if isinstance(weight, PartsWeight):
        parts = [_dequantized(part) for part in weight.parts if isinstance(part, Weight)]
        return PartsWeight(parts, weight.sizes, weight.arithmetic)
    return weight
