"""Finds the weight files of a checkpoint, lists their tensors, and reads them one at a time.

Files are memory-mapped; a tensor is read when it is copied to its place.
"""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from facet.errors import CheckpointError
from facet.model.config_fields import shown
from facet.model.gguf.folder import SUFFIX as GGUF_SUFFIX
from facet.model.gguf.scheme import GgufTensors
from facet.model.quantized.matching import cut_values
from facet.model.shard import Cut
from facet.model.stored_tensor import StoredTensor

INDEX_FILE = "model.safetensors.index.json"
_FILE_NAME = re.compile(r"[^/\\\0]{1,200}\.safetensors")  # a plain name: an index must not point out of its folder


def find_weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint: those its index names, or the single one, or all there are; or GGUF."""
    index_path = folder / INDEX_FILE
    if index_path.exists():
        try:
            names = sorted(set(json.loads(index_path.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{index_path} is not a safetensors index ({shown(error)}).") from None
        if not names:
            raise CheckpointError(f"{index_path} names no file. Download it again.")
        for name in names:
            if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
                raise CheckpointError(
                    f"{index_path} names {shown(name)}, but may name .safetensors files beside it only."
                )
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            raise CheckpointError(
                f"{folder} lacks {some_of(missing)} of the {len(names)} files its index names. Download it again."
            )
        return tuple(folder / name for name in names)
    single = folder / "model.safetensors"
    files = (single,) if single.exists() else tuple(sorted(folder.glob("*.safetensors")))
    files = files or tuple(sorted(folder.glob(f"*{GGUF_SUFFIX}")))
    pickled = sorted(path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth"))
    if not files and pickled:
        raise CheckpointError(
            f"{folder} holds pickled weights ({some_of(pickled, 3)}), which are programs and are not run. Use a "
            "checkpoint in safetensors; torchao's files have none."
        )
    if not files:
        raise CheckpointError(f"{folder} holds no .safetensors file.")
    return files


def has_weights(folder: Path) -> bool:
    """Whether any are there: a config may have been downloaded alone."""
    return any(path.suffix in (".safetensors", GGUF_SUFFIX) for path in folder.iterdir())


def read_headers(files: tuple[Path, ...]) -> dict[str, StoredTensor]:
    """Every tensor in the files, by name."""
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        if file.suffix == GGUF_SUFFIX:
            tensors |= {header.name: header for header in GgufTensors(file).headers()}
            continue
        with _opened(file) as handle:
            for name in handle.keys():  # noqa: SIM118 - a file handle, not a mapping
                header = handle.get_slice(name)
                tensors[name] = StoredTensor(
                    file=file, name=name, shape=tuple(header.get_shape()), dtype=header.get_dtype()
                )
    return tensors


class WeightFiles(ExitStack):
    """Files of weights, each opened when a tensor of it is first read, and closed together."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[Path, Any] = {}

    def read(self, tensor: StoredTensor, index: int | None = None, cut: Cut | None = None) -> Tensor:
        """A tensor, or one entry along its first axis, or what a rank holds of it: only that is read."""
        if tensor.file not in self._opened:
            is_gguf = tensor.file.suffix == GGUF_SUFFIX
            self._opened[tensor.file] = (
                GgufTensors(tensor.file) if is_gguf else self.enter_context(_opened(tensor.file))
            )
        file = self._opened[tensor.file]
        found: Tensor
        if isinstance(file, GgufTensors):
            found = cut_values(file.read(tensor.name, index), cut)
        elif cut is not None:
            before = (slice(None),) * (len(tensor.shape) + cut.axis)
            found = torch.cat([file.get_slice(tensor.name)[*before, part] for part in cut.slices], dim=cut.axis)
        elif index is None:
            found = file.get_tensor(tensor.name)
        else:
            found = file.get_slice(tensor.name)[index : index + 1][0]
        return found


def some_of(names: list[str], limit: int = 10) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is broken or cut short ({error}). Download it again.") from error
