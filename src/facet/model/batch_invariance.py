"""Decides whether answers are batch-invariant, where the flags leave it open: on a GPU, if it costs little."""

from dataclasses import replace
from typing import TypeVar

import torch

from facet.config import ModelConfig
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.matrix_format import MatrixFormat
from facet.model.inspection import inspect_checkpoint
from facet.model.named_model import read_spec
from facet.model.weight_formats import HEADS, Formats

Config = TypeVar("Config", bound=ModelConfig)


def is_batch_invariant(asked: bool | None, device: torch.device, formats: Formats) -> bool:
    """Whether answers are batch-invariant where `asked` leaves it open: on a GPU, if it costs little. On a CPU it costs
    too much to be the default. `formats`: of the quantized matrices."""
    if asked is not None:
        return asked
    return device.type == "cuda" and all(costs_little(name, format) for name, format in formats.items())


def costs_little(name: str, format: MatrixFormat) -> bool:
    """Whether batch-invariance costs little with a quantized matrix, on a GPU. Sums of integers are exact in any order;
    outputs of a head are enough to occupy a GPU without cutting sums into parts. What others cost is in
    docs/batch-invariant.md."""
    if not format.has_row_scales or format.code_bits != 8:
        return False
    return format.rounding == "int8_token" or (format.rounding is None and name in HEADS)


def with_batch_invariance(config: Config, device: torch.device) -> Config:
    """The config, with an answer to the question. Files are read only where it depends on them."""
    if config.batch_invariant is not None:
        return config
    formats: Formats = {}
    if device.type == "cuda":
        formats = inspect_checkpoint(config, *read_spec(config), must_have_files=True).formats
    return replace(config, batch_invariant=is_batch_invariant(None, device, formats))


def arithmetic_of(config: ModelConfig) -> Arithmetic:
    assert config.batch_invariant is not None, "the config has been through `with_batch_invariance`"
    return BATCH_INVARIANT if config.batch_invariant else USUAL
