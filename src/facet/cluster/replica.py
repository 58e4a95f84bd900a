"""A replica as Ray Serve runs it: a server on a port of its node, which takes requests from proxies only."""

import os
import secrets
import threading
from dataclasses import dataclass, replace

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from facet.config import ServerConfig
from facet.engine.ray_cluster import NodeFacts, check_alike, facts_of
from facet.errors import EngineError
from facet.replicas.connection import SECRET_HEADER, ReplicaAddress
from facet.server.certificates import without_tls
from facet.server.draining import DrainingServer
from facet.server.run import bind, start_app, uvicorn_config, with_key_of_environment

DEPLOYMENT = "Replica"  # its name in an application
REQUESTS = "requests"  # the name of the number by which Serve scales


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What a proxy has to know of a replica."""

    name: str
    address: ReplicaAddress
    num_requests: int  # that it has not finished


class Gate:
    """Lets requests with the secret through, and counts those that are inside."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self.num_requests = 0
        self._app = app
        self._secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == SECRET_HEADER), b"")
        if not secrets.compare_digest(given, self._secret):
            refusal = PlainTextResponse("Replicas take requests from their proxy only.\n", status_code=403)
            return await refusal(scope, receive, send)
        self.num_requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self.num_requests -= 1


class ServerThread:
    """A server that listens, in a thread of its own, until it is told to stop."""

    def __init__(self, config: ServerConfig, app: ASGIApp) -> None:
        self._listener = bind(config)
        self.port: int = self._listener.getsockname()[1]
        is_listening = threading.Event()
        self._server = DrainingServer(uvicorn_config(config, app), on_listening=is_listening.set)
        self._thread = threading.Thread(target=self._run, name="facet-server", daemon=True)
        self._thread.start()
        while not is_listening.wait(0.1):
            if not self.is_running:
                raise EngineError("The server ended before it could take requests.")

    def _run(self) -> None:
        with self._listener:
            self._server.run(sockets=[self._listener])

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Take nothing new, and return once running requests are finished."""
        self._server.should_exit = True
        self._thread.join()


class Replica:
    """Serve calls its methods by name: it scales by `record_autoscaling_stats`, replaces a replica whose `check_health`
    fails, and calls `__del__` before it ends one."""

    _server: ServerThread | None = None  # until it has started

    def __init__(self, config: ServerConfig, expected: NodeFacts) -> None:
        import ray
        from ray import serve

        host = ray.util.get_node_ip_address()
        check_alike(expected, [facts_of(config.model, host)])
        own = replace(
            without_tls(with_key_of_environment(config, os.environ)),
            host=host,
            port=0,
            uds=None,
            root_path=None,
            data_parallel_size=1,
        )
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._engine, _, app = start_app(own, show_progress=False)
        secret = secrets.token_hex(32)
        self._gate = Gate(app, secret)
        self._server = ServerThread(own, self._gate)
        self._address = ReplicaAddress(host=host, port=self._server.port, secret=secret)

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(self._name, self._address, self._gate.num_requests)

    def check_health(self) -> None:
        if self._engine.is_dead or self._server is None or not self._server.is_running:
            raise RuntimeError("The engine of this replica has ended.")

    def record_autoscaling_stats(self) -> dict[str, float]:
        return {REQUESTS: float(self._gate.num_requests)}

    def __del__(self) -> None:
        if self._server is not None:
            self._server.stop()
