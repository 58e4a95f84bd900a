"""Decides which model a command uses: the one named, or the bundled one."""

import argparse
import dataclasses
from typing import TypeVar

from facet.bundled_model import NAME, find_bundled_model
from facet.cli.flags import config_from
from facet.config import ModelConfig, ServerConfig

ModelConfigType = TypeVar("ModelConfigType", bound=ModelConfig)


def model_config_from(options: argparse.Namespace, config_type: type[ModelConfigType]) -> ModelConfigType:
    """The config of a command, with the bundled model if none was named.

    An empty name is not taken for none: `facet serve "$MODEL"` with a variable that is not set is a mistake.
    """
    if options.model is not None:
        return config_from(options, config_type)
    options.model = str(find_bundled_model())
    config = config_from(options, config_type)
    if isinstance(config, ServerConfig) and not config.served_model_name:
        config = dataclasses.replace(config, served_model_name=(NAME,))
    return config
