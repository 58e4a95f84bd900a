"""`facet serve MODEL`: the HTTP server."""

import argparse

from facet.cli.flags import add_common_flags, add_config_flags
from facet.config import ModelConfig
from facet.errors import UserError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("serve", help="serve a model over HTTP")
    add_config_flags(parser, ModelConfig)
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    raise UserError(
        "This version of Facet loads and computes models but has no HTTP server yet. "
        "`facet inspect MODEL --load` checks that your checkpoint will run."
    )
