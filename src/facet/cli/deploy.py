"""`facet deploy [MODEL]`: gives replicas of a model to a Ray cluster, which serves them until they are removed."""

import argparse

from facet.cli.flags import add_server_flags
from facet.cli.models import model_config_from
from facet.cluster.config import DeployConfig


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("deploy", help="serve a model on a Ray cluster")
    add_server_flags(parser, DeployConfig)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here: other commands need no HTTP library.
    from facet.cluster.deploying import deploy

    return deploy(model_config_from(options, DeployConfig))
