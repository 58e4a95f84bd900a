"""Says in which formats a model's matrices will be kept, and counts their bytes, before any weight is read.

Formats follow from the headers of a quantized checkpoint's files where they are at hand (`checkpoint.py`), else from
its config or from a flag. Everything else (embeddings, routers, norms, whatever a checkpoint leaves alone) stays in the
model's dtype.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch

from facet.config import QUANTIZED_BY
from facet.errors import ConfigError
from facet.matrix_format import MatrixFormat, ScaleFormat
from facet.model.kept_matrices import kept_matrices
from facet.model.quantized.choose import read_scheme
from facet.model.weight_map import PER_LAYER_TABLE, tensor_targets
from facet.model_spec import ModelSpec
from facet.quantity import shown_bytes

# Formats of quantized matrices, by the names of their tensors in an unquantized checkpoint.
Formats = Mapping[str, MatrixFormat]

# The matrices that are always quantized where any are.
_MAIN_PARTS = (".self_attn.", ".mlp.", ".experts.")
# Parts that a flag for four bits quantizes too, as llama.cpp does: two in every layer that has a per-layer input.
# In eight bits their inputs would have to be rounded by kernels of their own, which costs more than their bytes save.
_PER_LAYER_PARTS = (".per_layer_input_gate.", ".per_layer_projection.")
# Prefixes that checkpoints put before the names of the decoder's tensors.
_PREFIXES = ("", "model.", "model.language_model.", "language_model.model.")

# Matrices that make logits: the first if it is tied to the embeddings.
_TIED_HEAD, _HEAD = HEADS = ("embed_tokens.weight", "lm_head.weight")

_ROW = ScaleFormat(dtype="float32", group=None)
# Products with eight-bit weights round their inputs too, token by token: prompts then run on eight-bit units. What that
# costs is in docs/quantization.md.
FLAGS: Mapping[str, MatrixFormat] = {
    "int4": MatrixFormat(codes="int4", scales=ScaleFormat(dtype="float16", group=32)),
    "int8": MatrixFormat(codes="int8", scales=_ROW, rounding="int8_token"),
    "fp8": MatrixFormat(codes="fp8", scales=_ROW, rounding="fp8_token"),
    "nvfp4": MatrixFormat(codes="fp4", scales=ScaleFormat(dtype="float8_e4m3fn", group=16), coarse_scales=_ROW),
}


class FormatSource(Protocol):
    """A scheme of a checkpoint, or a flag."""

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        """The format of a matrix [outputs, inputs] of a module that may have any of these names. None: not
        quantized."""


@dataclass(frozen=True, slots=True)
class OneFormat:
    """The matrices of attention, MLPs, experts and, in four bits, of per-layer inputs in one format."""

    format: MatrixFormat

    def format_of(self, names: Sequence[str], shape: Sequence[int]) -> MatrixFormat | None:
        parts = _MAIN_PARTS + (_PER_LAYER_PARTS if self.format.code_bits == 4 else ())
        return self.format if any(_has_part(name, parts) for name in names) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Where the bytes of a model's weights go."""

    by_format: Mapping[MatrixFormat, int]
    num_quantized: int  # values
    unquantized: int
    on_host: int = 0  # in the host's memory; counted nowhere else
    fill: int = 0  # of the quantized: what kernels of a GPU have matrices filled up with

    @property
    def quantized(self) -> int:
        return sum(self.by_format.values())

    @property
    def total(self) -> int:
        return self.quantized + self.unquantized

    @property
    def main_format(self) -> MatrixFormat | None:
        """The format that takes the most bytes."""
        return max(self.by_format, key=lambda format: self.by_format[format]) if self.by_format else None

    @property
    def line(self) -> str:
        """A line for people; empty where nothing is quantized."""
        if not self.by_format:
            return ""
        formats = "; ".join(
            f"{format.line} ({shown_bytes(num_bytes)})"
            for format, num_bytes in sorted(self.by_format.items(), key=lambda pair: -pair[1])
        )
        bits = 8 * self.quantized / self.num_quantized
        fill = f"; {shown_bytes(self.fill)} fill matrices up for the kernels" if self.fill else ""
        return f"{formats}; {bits:.2f} bits per quantized weight, {shown_bytes(self.unquantized)} unquantized{fill}"


def expected_formats(spec: ModelSpec, source: FormatSource | None) -> dict[str, MatrixFormat]:
    """The formats of the matrices that a config or a flag says are quantized."""
    formats: dict[str, MatrixFormat] = {}
    for target in tensor_targets(spec):
        if source is None or len(target.shape) < 2:
            continue
        format = source.format_of(_possible_names(target.name), target.shape[-2:])
        if format is None:
            continue
        group = format.scales.group
        if group is not None and format.code_bits == 4 and target.shape[-1] % group:
            if not _has_part(target.name, _MAIN_PARTS):
                continue  # coefficients of a few inputs: "all matrices" does not mean them
            raise ConfigError(f"{target.name} has {target.shape[-1]} inputs, which groups of {group} do not divide.")
        formats[target.name] = format
    return formats


def quantization_while_loading(asked: str | None, scheme: str | None) -> str | None:
    """What is left of --quantization: nothing, where it names the method by which the checkpoint is quantized."""
    if asked is None or (scheme is not None and scheme in QUANTIZED_BY.get(asked, ())):
        return None
    if asked not in FLAGS:
        found = "is not quantized" if scheme is None else f"is quantized by {scheme}"
        raise ConfigError(f"--quantization {asked}: the checkpoint {found}. Leave the flag out.")
    return asked


def online_formats(spec: ModelSpec, stored: Formats, quantization: str | None, quantize_head: bool) -> Formats:
    """The formats of a model whose checkpoint has `stored` ones, after what the flags ask for."""
    if quantization is not None and stored:
        raise ConfigError(
            f"--quantization {quantization}: the checkpoint is quantized already, and its weights are not rounded "
            "again. Leave the flag out."
        )
    formats = dict(stored)
    if quantization is not None:
        formats = expected_formats(spec, OneFormat(FLAGS[quantization]))
    head = _TIED_HEAD if spec.tied_embeddings else _HEAD
    if quantize_head and head not in formats:
        # Logits come of it directly, and few rows are multiplied by it: their inputs are not rounded.
        formats[head] = MatrixFormat(codes="fp8" if quantization == "fp8" else "int8", scales=_ROW)
    return formats


def weight_bytes(
    spec: ModelSpec,
    formats: Formats,
    *,
    dtype: torch.dtype,
    tables_on_host: bool = False,
    prepared_on: str | None = None,
) -> WeightBytes:
    """The bytes of all tensors; `dtype` is that of unquantized values, but for norms. `prepared_on`: a type of device;
    where its kernels want quantized matrices in an order of their own, they are counted in it."""
    by_format: dict[MatrixFormat, int] = {}
    num_quantized = unquantized = on_host = fill = 0
    for target in tensor_targets(spec):
        if len(target.shape) < 2:
            unquantized += target.num_values * (4 if target.is_norm else dtype.itemsize)
    for kept in chain.from_iterable(kept_matrices(spec, formats).values()):
        num_values = math.prod(kept.shape)
        num_bytes = num_values * dtype.itemsize if kept.format is None else kept.num_bytes
        if tables_on_host and kept.place == PER_LAYER_TABLE:
            on_host += num_bytes
        elif kept.format is None:
            unquantized += num_bytes
        else:
            prepared = num_bytes if prepared_on is None else kept.prepared_bytes(dtype, prepared_on)
            by_format[kept.format] = by_format.get(kept.format, 0) + prepared
            fill += prepared - num_bytes
            num_quantized += num_values
    return WeightBytes(
        by_format=by_format, num_quantized=num_quantized, unquantized=unquantized, on_host=on_host, fill=fill
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixKind:
    """Matrices that differ in nothing but their layer."""

    name: str  # without the layer: `self_attn.q_proj`
    format: MatrixFormat | None  # None: not quantized
    num_matrices: int
    num_values: int
    num_bytes: int


def matrix_kinds(spec: ModelSpec, formats: Formats, *, value_bytes: int) -> list[MatrixKind]:
    """Where the bytes of a model's matrices go, the largest first."""
    found: dict[tuple[str, MatrixFormat | None], MatrixKind] = {}
    for target in tensor_targets(spec):
        if len(target.shape) < 2:
            continue
        name = re.sub(r"^layers\.\d+\.|\.weight$", "", target.name)
        format = formats.get(target.name)
        num_bytes = target.num_values * value_bytes if format is None else format.num_bytes(target.shape)
        so_far = found.get((name, format))
        counts = (0, 0, 0) if so_far is None else (so_far.num_matrices, so_far.num_values, so_far.num_bytes)
        found[name, format] = MatrixKind(
            name=name,
            format=format,
            num_matrices=counts[0] + 1,
            num_values=counts[1] + target.num_values,
            num_bytes=counts[2] + num_bytes,
        )
    return sorted(found.values(), key=lambda kind: -kind.num_bytes)


def choose_weight_format(
    asked: str, group_size: int | None, config: Mapping[str, Any], folder: Path | None = None
) -> FormatSource | None:
    """What --weight-format says, or, where it says auto, what the checkpoint's config does. None: unquantized."""
    if asked == "auto":
        if group_size is None:
            return read_scheme(config, folder)
    elif asked != "none":
        format = FLAGS[asked]
        if group_size is None:
            return OneFormat(format)
        if group_size >= 1:
            return OneFormat(replace(format, scales=replace(format.scales, group=group_size)))
    elif group_size is None:
        return None
    raise ConfigError(
        f"--weight-group-size is {group_size}, but must be 1 or more, beside a --weight-format that has groups: "
        f"{', '.join(FLAGS)}."
    )


def _has_part(name: str, parts: Sequence[str]) -> bool:
    return any(part in f".{name}." for part in parts)


def _possible_names(name: str) -> list[str]:
    """The names that a module may have in checkpoints. Experts are named one by one in some."""
    module = name.removesuffix(".weight")
    return [prefix + each for prefix in _PREFIXES for each in (module, *_names_of_experts(module))]


def _names_of_experts(module: str) -> Iterator[str]:
    parent, _, projection = module.rpartition(".")
    if parent.endswith(".experts"):
        single = "gate_proj" if projection == "gate_up_proj" else projection
        yield f"{parent}.0.{single}"
        yield f"{parent.removesuffix('experts')}moe.experts.0.{single}"
