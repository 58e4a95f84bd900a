"""The proxy as Ray Serve runs it, on the port where clients connect."""

import os

from starlette.applications import Starlette

from facet.cluster.config import DeployConfig
from facet.cluster.following import Following
from facet.cluster.replica import DEPLOYMENT, ServerThread
from facet.config import ServerConfig
from facet.replicas.proxy_app import make_proxy_app
from facet.replicas.replica_set import ReplicaSet
from facet.server.run import with_key_of_environment


class ProxyServer:
    """Serve calls its methods by name, as those of `Replica`."""

    _server: ServerThread | None = None  # until it has started

    def __init__(self, config: DeployConfig) -> None:
        self._config = config
        own = with_key_of_environment(config, os.environ)
        self._server = ServerThread(own, make_proxy_for(own, config.name))

    def config(self) -> DeployConfig:
        return self._config

    def check_health(self) -> None:
        if self._server is None or not self._server.is_running:
            raise RuntimeError("The proxy has ended.")

    def __del__(self) -> None:
        if self._server is not None:
            self._server.stop()


def make_proxy_for(config: ServerConfig, name: str) -> Starlette:
    """The proxy, with the replicas that Serve runs under that name."""
    from ray import serve

    replicas = ReplicaSet()
    handle = serve.get_deployment_handle(DEPLOYMENT, name)
    return make_proxy_app(config, replicas, lambda: Following(replicas).follow(handle))
