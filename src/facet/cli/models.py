"""Decides which model a command uses: the one named, or the bundled one."""

import argparse
import dataclasses
import logging
from typing import TypeVar

from facet.bundled_model import NAME, find_bundled_model
from facet.cli.flags import BY_FLAG, config_from
from facet.config import ModelConfig, ServerConfig
from facet.errors import ConfigError
from facet.idle_settings import note_of

logger = logging.getLogger(__name__)

ModelConfigType = TypeVar("ModelConfigType", bound=ModelConfig)


def model_config_from(options: argparse.Namespace, config_type: type[ModelConfigType]) -> ModelConfigType:
    """The config of a command, with the bundled model if none was named.

    An empty name is not taken for none: `facet serve "$MODEL"` with a variable that is not set is a mistake.
    """
    name_model(options)
    for name, value in getattr(options, "idle", {}).items():
        logger.info("%s", note_of(name, value, is_flag=True))
    if options.model is not None:
        return config_from(options, config_type)
    options.model = str(find_bundled_model())
    config = config_from(options, config_type)
    if isinstance(config, ServerConfig) and not config.served_model_name:
        config = dataclasses.replace(config, served_model_name=(NAME,))
    return config


def name_model(options: argparse.Namespace) -> None:
    """Finds the model, which may stand alone, behind --model or in a file of settings."""
    by_flag = getattr(options, "model_by_flag", None)
    if None not in (options.model, by_flag):
        raise ConfigError(f"Two models are named, {options.model} and {BY_FLAG} {by_flag}; give one.")
    named = (options.model, by_flag, getattr(options, "model_in_file", None))
    options.model = next((name for name in named if name is not None), None)
