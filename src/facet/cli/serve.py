"""`facet serve [MODEL]`: runs the HTTP server."""

import argparse

from facet.cli.config_file import CONFIG_FLAG
from facet.cli.flags import add_common_flags, add_config_flags, add_idle_flags
from facet.cli.models import model_config_from
from facet.config import ServerConfig


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("serve", help="serve a model over HTTP")
    add_config_flags(parser, ServerConfig)
    add_idle_flags(parser)
    parser.add_argument(
        CONFIG_FLAG, metavar="FILE", help="YAML file that maps names of flags to values; flags given here override it"
    )
    add_common_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    # Imported here: other commands need no HTTP library.
    config = model_config_from(options, ServerConfig)
    if config.data_parallel_backend == "ray":
        from facet.cluster.deploying import serve_on_ray

        return serve_on_ray(config)
    if config.data_parallel_size != 1:
        from facet.replicas.run import serve_replicas

        return serve_replicas(config)
    from facet.server.run import serve

    return serve(config)
