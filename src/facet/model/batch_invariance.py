"""Decides whether answers are batch-invariant, where the flags leave it open: on a GPU they are."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch

from facet.config import ModelConfig
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.matrix_format import CodeKind, MatrixFormat
from facet.model.inspection import inspect_checkpoint
from facet.model.named_model import read_spec

Config = TypeVar("Config", bound=ModelConfig)

# Whether it is the default with quantized weights, by their codes: what it costs differs with the kernels of each.
BY_DEFAULT: Mapping[CodeKind, bool] = {"int4": False, "uint4": False, "fp4": False, "int8": False, "fp8": False}


def is_batch_invariant(asked: bool | None, device: torch.device, formats: Iterable[MatrixFormat]) -> bool:
    """`formats`: of the quantized matrices. On a CPU it costs too much to be the default."""
    if asked is not None:
        return asked
    return device.type == "cuda" and all(BY_DEFAULT[format.codes] for format in formats)


def with_batch_invariance(config: Config, device: torch.device) -> Config:
    """The config, with an answer to the question. Files are read only where it depends on them."""
    if config.batch_invariant is not None:
        return config
    formats: Iterable[MatrixFormat] = ()
    if device.type == "cuda":
        formats = inspect_checkpoint(config, *read_spec(config), must_have_files=True).formats.values()
    return replace(config, batch_invariant=is_batch_invariant(None, device, formats))


def arithmetic_of(config: ModelConfig) -> Arithmetic:
    assert config.batch_invariant is not None, "the config has been through `with_batch_invariance`"
    return BATCH_INVARIANT if config.batch_invariant else USUAL
