"""Finds the safetensors files of a checkpoint, checks every name and shape, and only then loads the weights.

Files are memory-mapped; a tensor is read when it is copied to its place. Checking reads only headers, so a checkpoint
that does not fit its config is refused before any memory is spent on it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from facet.errors import CheckpointError
from facet.layers.linear import Linear
from facet.model.config_fields import shown
from facet.model.gemma import Gemma
from facet.model.weight_map import TensorTarget, is_unused, tensor_targets
from facet.model_spec import ModelSpec
from facet.progress import Progress

INDEX_FILE = "model.safetensors.index.json"
_FILE_NAME = re.compile(r"[^/\\\0]{1,200}\.safetensors")  # a plain name: an index must not point out of its folder

# The types weights may be stored in. Anything else is quantized or an accident, and bytes taken for numbers would load.
_STORED_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# What stands in front of a decoder's names, most specific first: published Gemma 4 and 3n; published Gemma 3 with
# vision; text-only exports.
_DECODER_PREFIXES = ("model.language_model.", "language_model.model.", "model.")

# Parts of multimodal checkpoints that the text decoder leaves alone.
_OTHER_PARTS = (
    "vision_tower.",
    "audio_tower.",
    "embed_vision.",
    "embed_audio.",
    "vision_embedder.",
    "multi_modal_projector.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies and what the file's header says of it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str


def find_weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint: those its index names, or the single one, or all there are."""
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
                f"{folder} lacks {_some(missing)} of the {len(names)} files its index names. Download it again."
            )
        return tuple(folder / name for name in names)
    single = folder / "model.safetensors"
    files = (single,) if single.exists() else tuple(sorted(folder.glob("*.safetensors")))
    if not files:
        raise CheckpointError(f"{folder} holds no .safetensors file.")
    return files


def read_headers(files: tuple[Path, ...]) -> dict[str, StoredTensor]:
    """Every tensor in the files, by name."""
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        with _opened(file) as handle:
            for name in handle.keys():  # noqa: SIM118 - a file handle, not a mapping
                header = handle.get_slice(name)
                tensors[name] = StoredTensor(
                    file=file, name=name, shape=tuple(header.get_shape()), dtype=header.get_dtype()
                )
    return tensors


def match_tensors(spec: ModelSpec, stored: Mapping[str, StoredTensor]) -> dict[TensorTarget, StoredTensor]:
    """For every tensor the decoder needs, the one that is stored. Missing, unexpected or mis-shaped: an error."""
    prefix = next((p for p in _DECODER_PREFIXES if f"{p}embed_tokens.weight" in stored), None)
    if prefix is None:
        raise CheckpointError(
            f"None of the {len(stored)} tensors is a token embedding; looked for "
            + ", ".join(f"{p}embed_tokens.weight" for p in _DECODER_PREFIXES)
            + "."
        )
    inside = {_name_inside(name, prefix): tensor for name, tensor in stored.items()}
    targets = {target.name: target for target in tensor_targets(spec)}
    missing = [name for name in targets if name not in inside]
    unexpected = [
        tensor.name
        for name, tensor in inside.items()
        if name not in targets and not is_unused(spec, name) and not _is_other_part(tensor.name)
    ]
    misshapen = [
        f"{name} {list(inside[name].shape)} instead of {list(target.shape)}"
        for name, target in targets.items()
        if name in inside and inside[name].shape != target.shape
    ]
    mistyped = [
        f"{name} {inside[name].dtype} instead of {', '.join(_STORED_DTYPES)}"
        for name in targets
        if name in inside and inside[name].dtype not in _STORED_DTYPES
    ]
    if missing or unexpected or misshapen or mistyped:
        findings = (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshapen),
            ("of another type", mistyped),
        )
        raise CheckpointError(
            "The weights do not fit config.json: "
            + "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in findings if names)
            + ". Nothing was loaded."
        )
    return {target: inside[name] for name, target in targets.items()}


def load_weights(model: Gemma, matched: Mapping[TensorTarget, StoredTensor], progress: Progress) -> None:
    """Copy every tensor to its place, converting to the type it has there."""
    parameters = dict(model.named_parameters())
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    by_file: dict[Path, list[tuple[TensorTarget, StoredTensor]]] = {}
    for target, tensor in matched.items():
        by_file.setdefault(tensor.file, []).append((target, tensor))
    total = sum(target.num_values for target in matched)
    with progress.task("Loading weights", total) as advance:
        for file, pairs in by_file.items():
            with _opened(file) as handle:
                for target, tensor in pairs:
                    values = handle.get_tensor(tensor.name)
                    if target.offset:
                        values = values.float() + target.offset
                    if target.place in linears:
                        linears[target.place].fill(values, target.part)
                    else:
                        parameters[target.place].data.copy_(values)
                    advance(target.num_values)


def common_dtype(matched: Mapping[TensorTarget, StoredTensor]) -> torch.dtype:
    """The type most of the weights are stored in."""
    sizes: dict[str, int] = {}
    for target, tensor in matched.items():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + target.num_values
    return _STORED_DTYPES[max(sizes, key=lambda name: sizes[name])]


def _name_inside(name: str, prefix: str) -> str:
    if name.removeprefix("language_model.") == "lm_head.weight":
        return "lm_head.weight"
    return name.removeprefix(prefix) if name.startswith(prefix) else f"/{name}"


def _is_other_part(name: str) -> bool:
    return name.removeprefix("model.").startswith(_OTHER_PARTS)


def _some(names: list[str], limit: int = 10) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as handle:
            yield handle
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is broken or cut short ({error}). Download it again.") from error
