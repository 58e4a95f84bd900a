"""Presents a GGUF file to the loader: headers and tensors like those of any file, and a scheme that reads blocks.

Matrices of towers are presented as the numbers that their blocks stand for: towers are a small part of a model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from facet.errors import CheckpointError
from facet.kernels.quantized import QuantizedMatrix
from facet.matrix_format import MatrixFormat
from facet.model.config_fields import ConfigFields
from facet.model.gguf.blocks import read_blocks
from facet.model.gguf.container import Gguf
from facet.model.gguf.layouts import IN_FLOAT32
from facet.model.gguf.names import NamedTensor, named_tensors
from facet.model.gguf.tower_names import is_tower_file, tower_tensors
from facet.model.gguf.tower_values import as_in_checkpoint
from facet.model.gguf.types import BY_NAME
from facet.model.stored_tensor import StoredTensor

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GgufTensors:
    """The tensors of an open file, by the names of an unquantized checkpoint. Quantized ones are bytes."""

    def __init__(self, path: Path) -> None:
        self._file = Gguf(path)
        self._holds_towers = is_tower_file(self._file)
        if self._holds_towers:
            self._named = {named.name: named for named in tower_tensors(self._file)}
        else:
            self._named = {named.name: named for info in self._file.tensors.values() for named in named_tensors(info)}

    def headers(self) -> list[StoredTensor]:
        return [
            StoredTensor(file=self._file.path, name=name, shape=named.shape, dtype=self._type_name(named))
            for name, named in self._named.items()
        ]

    def _type_name(self, named: NamedTensor) -> str:
        is_computed = named.layout in IN_FLOAT32
        becomes_dense = self._holds_towers and named.info.type.name not in _PLAIN
        return "F32" if is_computed or becomes_dense else named.info.type.name

    def read(self, name: str, index: int | None) -> Tensor:
        """A tensor or one entry of it: numbers in its shape, or the bytes of each row of a matrix."""
        named = self._named[name]
        entries = [entry for entry in (named.index, index) if entry is not None]
        return self._read(named, entries)

    def _read(self, named: NamedTensor, entries: Sequence[int]) -> Tensor:
        values = torch.from_numpy(self._file.bytes_of(named.info))
        type_name = named.info.type.name
        if type_name in _PLAIN:
            values = values.view(_PLAIN[type_name]).view(named.info.shape)
        else:
            values = values.view(*named.info.shape[:-1], -1)
            if self._holds_towers:
                matrix = read_blocks(named.info.type, values.flatten(0, -2))
                values = matrix.values().view(named.info.shape)
        for entry in entries:
            values = values[entry]
        return values if named.layout is None else as_in_checkpoint(named.layout, values)


class GgufScheme:
    """How the blocks of a file are read."""

    name = "gguf"
    suffixes = frozenset({"weight"})
    notes: tuple[str, ...] = ()

    def __init__(self, fields: ConfigFields) -> None:
        self._types = fields.section("types").values()

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        found = next((self._types[name] for name in names if name in self._types), None)
        return BY_NAME[found].format if found in BY_NAME else None

    def describe(self, module: str, parts: Mapping[str, StoredTensor], shape: Sequence[int]) -> MatrixFormat:
        stored = parts["weight"]
        type = BY_NAME[stored.dtype]
        assert type.format is not None, "plain tensors are not described"
        if stored.shape != tuple(shape):
            raise CheckpointError(
                f"{stored.name} is {list(stored.shape)}, but by the metadata it would be {list(shape)}: the file is "
                "damaged."
            )
        return type.format

    def read(self, module: str, tensors: Mapping[str, Tensor], format: MatrixFormat) -> QuantizedMatrix:
        (rows,) = tensors.values()
        # A format belongs to one type of block.
        (type,) = (each for each in BY_NAME.values() if each.format == format)
        matrix = read_blocks(type, rows)
        widest = matrix.scales if matrix.coarse_scales is None else matrix.coarse_scales
        if not bool(widest.isfinite().all()):
            raise CheckpointError(f"{module} has scales that are no numbers: the file is damaged.")
        return matrix
