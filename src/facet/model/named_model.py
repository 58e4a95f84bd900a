"""Reads the spec of the model that a config names. Torch is not needed: what is wrong with either is said at once."""

from pathlib import Path

from facet.config import ModelConfig
from facet.model.config_fields import read_config_file
from facet.model.families import read_model_spec
from facet.model.hub import folder_of
from facet.model_spec import ModelSpec


def read_spec(config: ModelConfig, *, config_only: bool = False) -> tuple[ModelSpec, Path]:
    """The spec and folder of the model named, downloading the config alone where that is enough."""
    folder = folder_of(config, config_only=config_only)
    return read_model_spec(read_config_file(folder / "config.json", config.hf_overrides)), folder
