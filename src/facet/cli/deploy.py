"""`facet deploy [MODEL]`: gives replicas of a model to a Ray cluster, which serves them until they are removed."""

import argparse

from facet.cli.config_file import CONFIG_FLAG
from facet.cli.flags import add_common_flags, add_config_flags, add_idle_flags
from facet.cli.models import model_config_from
from facet.config import DeployConfig


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("deploy", help="serve a model on a Ray cluster")
    add_config_flags(parser, DeployConfig)
    add_idle_flags(parser)
    parser.add_argument(
        CONFIG_FLAG, metavar="FILE", help="YAML file that maps names of flags to values; flags given here override it"
    )
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here: other commands need no HTTP library.
    from facet.cluster.deploying import deploy

    return deploy(model_config_from(options, DeployConfig))
