"""Reads the container of a GGUF file: metadata, and the place, type and shape of every tensor.

The file is mapped into memory. Metadata is read once; a tensor's bytes are read when somebody looks at them. Every
count and length in the file is compared with the bytes that are left before anything is done with it.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from facet.errors import CheckpointError
from facet.model.config_fields import shown
from facet.model.gguf.types import OTHER_TYPES, TYPES, BlockType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
# Numbers, by the type that stands before them. bool is a byte.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}

# Vocabularies and their merges have less than a million entries; tensors of split experts are counted in thousands.
_MOST_ITEMS = 1 << 24
_MOST_TENSORS = 1 << 20
_MOST_DIMENSIONS = 4
_DEEPEST_ARRAY = 4
_ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies. The shape is as torch has it: rows before columns."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    start: int  # in the file
    num_bytes: int


class Gguf:
    """An open file. Its tensors are views of it: they are valid as long as they are referred to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                # A private mapping: torch takes writable memory only, and nobody writes.
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise CheckpointError(f"{path} cannot be read ({error}).") from None
        reader = _Reader(self._bytes, path)
        self.metadata: Mapping[str, Any] = reader.metadata
        self.tensors: Mapping[str, TensorInfo] = reader.tensors

    def bytes_of(self, tensor: TensorInfo) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of a tensor: a view."""
        return np.frombuffer(self._bytes, np.uint8, tensor.num_bytes, tensor.start)


class _Reader:
    """Walks through the head of a file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data, self._path, self._at = data, path, 0
        if data[:4] != _MAGIC:
            raise CheckpointError(f"{path} is no GGUF file: it begins with {shown(data[:4])}, not with {_MAGIC!r}.")
        self._at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            order = " in the other byte order" if version and version % (1 << 24) == 0 else ""
            raise CheckpointError(f"{path} is a GGUF file of version {version}{order}; Facet reads versions 2 and 3.")
        num_tensors, num_fields = self._number("Q"), self._number("Q")
        self._check_count(num_tensors, least_bytes=24, most=_MOST_TENSORS, what="tensors")
        self._check_count(num_fields, least_bytes=13, most=_MOST_ITEMS, what="metadata fields")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = self._string()
            self.metadata[key] = self._value(self._number("I"), key)
        found = [self._tensor() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment % 8:
            raise self._damaged(f"general.alignment is {shown(alignment)}")
        first = -(-self._at // alignment) * alignment
        self.tensors: dict[str, TensorInfo] = {}
        for name, type, shape, offset in found:
            num_bytes = type.num_bytes(shape)
            if offset % alignment:
                raise self._damaged(f"tensor {shown(name)} is not aligned to {alignment} bytes")
            if first + offset + num_bytes > len(data):
                raise CheckpointError(
                    f"{path} is cut short: tensor {shown(name)} ends at byte {first + offset + num_bytes:,} of "
                    f"{len(data):,}. Download it again."
                )
            if name in self.tensors:
                raise self._damaged(f"tensor {shown(name)} is there twice")
            self.tensors[name] = TensorInfo(
                name=name, type=type, shape=shape, start=first + offset, num_bytes=num_bytes
            )

    def _tensor(self) -> tuple[str, BlockType, tuple[int, ...], int]:
        name = self._string()
        num_dimensions = self._number("I")
        if not 1 <= num_dimensions <= _MOST_DIMENSIONS:
            raise self._damaged(f"tensor {shown(name)} has {num_dimensions} dimensions")
        # Stored innermost first.
        shape = tuple(reversed([self._number("Q") for _ in range(num_dimensions)]))
        number = self._number("I")
        offset = self._number("Q")
        type = TYPES.get(number)
        if type is None:
            known = ", ".join(each.name for each in TYPES.values())
            called = f"{OTHER_TYPES[number]} (type {number})" if number in OTHER_TYPES else f"type {number}"
            raise CheckpointError(
                f"{self._path}: tensor {shown(name)} is of {called}, which Facet does not read. It reads {known}."
            )
        if not all(shape) or shape[-1] % type.num_values:
            raise self._damaged(
                f"tensor {shown(name)} is {list(shape)}, but rows of {type.name} have whole blocks of {type.num_values}"
            )
        return name, type, shape, offset

    def _value(self, type: int, key: str, depth: int = 0) -> Any:
        if type == _STRING:
            return self._string()
        if type == _ARRAY and depth < _DEEPEST_ARRAY:
            return self._array(key, depth)
        if type not in _NUMBERS:
            raise self._damaged(f"metadata field {shown(key)} is of type {type}, which is not known")
        number = self._number(_NUMBERS[type])
        return bool(number) if type == _BOOL else number

    def _array(self, key: str, depth: int) -> list[Any]:
        type, count = self._number("I"), self._number("Q")
        if type not in _NUMBERS:
            self._check_count(count, least_bytes=8, most=_MOST_ITEMS, what=f"entries of {shown(key)}")
            return [self._value(type, key, depth + 1) for _ in range(count)]
        size = struct.calcsize(_NUMBERS[type])
        self._check_count(count, least_bytes=size, most=_MOST_ITEMS, what=f"entries of {shown(key)}")
        numbers = np.frombuffer(self._data, f"<{_NUMBERS[type]}", count, self._at)
        self._at += count * size
        values: list[Any] = (numbers != 0).tolist() if type == _BOOL else numbers.tolist()
        return values

    def _number(self, format: str) -> Any:
        size = struct.calcsize(format)
        if self._at + size > len(self._data):
            raise self._cut_short()
        (number,) = struct.unpack_from(f"<{format}", self._data, self._at)
        self._at += size
        return number

    def _string(self) -> str:
        length = self._number("Q")
        if length > len(self._data) - self._at:
            raise self._cut_short()
        text = self._data[self._at : self._at + length]
        self._at += length
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self._damaged(f"{shown(text)} is not UTF-8") from None

    def _check_count(self, count: int, *, least_bytes: int, most: int, what: str) -> None:
        if count > most or count * least_bytes > len(self._data) - self._at:
            raise CheckpointError(
                f"{self._path} has {len(self._data):,} bytes, but says that {count:,} {what} follow: it is damaged or "
                "cut short. Download it again."
            )

    def _cut_short(self) -> CheckpointError:
        return CheckpointError(
            f"{self._path} is cut short: it ends at byte {len(self._data):,}, inside its metadata. Download it again."
        )

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} is damaged: {what}. Download it again.")
