"""`facet deploy`, and `facet serve --data-parallel-backend ray`: gives replicas to Ray Serve, and takes them back."""

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

from facet.cluster.application import PROXY, proxy, proxy_config, read_deploy_config, replicas
from facet.cluster.config import DeployConfig
from facet.cluster.proxy import make_proxy_for
from facet.config import ServerConfig
from facet.engine.ray_cluster import connect
from facet.engine.ray_ranks import bundle_of, check_resources, ranks_device
from facet.errors import ConfigError
from facet.server.certificates import keeper_of
from facet.server.draining import DrainingServer
from facet.server.run import (
    check_accepted_flags,
    greeting,
    listening,
    uvicorn_config,
    warn_of_strangers,
    with_key_of_environment,
)

logger = logging.getLogger(__name__)

_OUR_ERROR = re.compile(r"facet\.errors\.\w+: (.+)")


def deploy(config: DeployConfig) -> int:
    """Start an application that outlives this process, update it, or remove it."""
    config = with_key_of_environment(config, os.environ)
    check_accepted_flags(replace(config, data_parallel_backend="ray"))
    serve = start_serve()
    proxy_name = f"{config.name}-proxy"
    if config.delete:
        for name in (proxy_name, config.name):
            serve.delete(name)
        return 0
    start_replicas(serve, config)
    if _running_proxy(serve, proxy_name) != proxy_config(config):
        serve.delete(proxy_name)  # the port is free for another only once it is gone
        with _failures_in_words():
            serve.run(proxy(config), name=proxy_name, route_prefix=None)
    warn_of_strangers(config)
    logger.info(
        "%s is deployed, on port %d of the head node. `facet deploy --delete` removes it.", config.name, config.port
    )
    return 0


def serve_on_ray(config: ServerConfig) -> int:
    """Serve until told to stop: replicas on the cluster, the proxy in this process."""
    config = with_key_of_environment(config, os.environ)
    check_accepted_flags(config)
    name = f"facet-{secrets.token_hex(4)}"
    settings = {field.name: getattr(config, field.name) for field in fields(ServerConfig)}
    signal.signal(signal.SIGTERM, _leave)  # while loading; the server has its own way once it listens
    with listening(config) as listener:
        serve = start_serve()
        try:
            start_replicas(serve, DeployConfig(**settings, name=name))
            uvicorn = uvicorn_config(config, make_proxy_for(config, name))
            names = config.served_model_name or (config.model,)
            words = f"{greeting(config, names, listener)} with {config.data_parallel_size} replicas on Ray"
            warn_of_strangers(config)
            server = DrainingServer(
                uvicorn, on_listening=partial(logger.info, "%s", words), keep_fresh=keeper_of(config)
            )
            with asyncio.Runner(loop_factory=uvicorn.get_loop_factory()) as runner:
                runner.run(server.serve(sockets=[listener]))
        finally:
            serve.delete(name)
    return 0 if server.started else 1


def start_serve() -> Any:
    """The module `ray.serve`, on a cluster that runs it. Its own proxies are not needed."""
    connect()
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
    return serve


def start_replicas(serve: Any, config: DeployConfig) -> None:
    """Start the replicas and wait for them. Those of an older deployment of that name are replaced one by one."""
    read = read_deploy_config(config)
    size = read.data_parallel_size * read.tensor_parallel_size
    check_resources(bundle_of(ranks_device(read.device)), size, f"{read.data_parallel_size} replicas")
    is_update = config.name in serve.status().applications
    try:
        with _failures_in_words():
            serve.run(replicas(read), name=config.name, route_prefix=None)
    except ConfigError:
        if not is_update:
            serve.delete(config.name)
        raise


def _running_proxy(serve: Any, name: str) -> DeployConfig | None:
    """The settings of the proxy that runs; None if there is none."""
    if name not in serve.status().applications:
        return None
    found: DeployConfig = serve.get_deployment_handle(PROXY, name).config.remote().result()
    return found


@contextlib.contextmanager
def _failures_in_words() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        ours = _OUR_ERROR.findall(str(error))
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(ours[-1] if ours else f"Ray Serve could not start the replicas: {lines[-1]}") from None


def _leave(number: int, frame: object) -> None:
    """Leaves by an exception, so that replicas are ended on the way out."""
    raise SystemExit(128 + number)
