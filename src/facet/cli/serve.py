"""`facet serve [MODEL]`: runs the HTTP server."""

import argparse

from facet.cli.flags import add_server_flags
from facet.cli.models import model_config_from
from facet.config import ServerConfig


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("serve", help="serve a model over HTTP")
    add_server_flags(parser, ServerConfig)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    config = model_config_from(options, ServerConfig)
    # Imported here and below: other commands need no HTTP library, and most servers no Ray.
    if config.data_parallel_backend == "ray":
        from facet.cluster.deploying import serve_on_ray

        return serve_on_ray(config)
    if config.data_parallel_size != 1:
        from facet.replicas.run import serve_replicas

        return serve_replicas(config)
    from facet.engine.rank_processes import begun_early

    with begun_early(config) as ranks:
        from facet.server.run import serve

        return serve(config, ranks=ranks)
