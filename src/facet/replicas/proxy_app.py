"""The app in front of replicas: it answers for all of them where it can, and passes on everything else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from facet.config import ServerConfig
from facet.replicas.connection import ReplicaLostError
from facet.replicas.errand import make_errand
from facet.replicas.merging import merge_live_views, merge_metrics
from facet.replicas.proxy import Proxy
from facet.replicas.replica_set import ReplicaSet
from facet.replicas.shared_adapters import LOAD, UNLOAD, Reply, SharedAdapters
from facet.server.app import middleware_of
from facet.server.body import read_body
from facet.server.errors import HttpError
from facet.server.frontend import Endpoint, guarded, json_response
from facet.server.page_routes import page_routes
from facet.server.protocol.live import LiveResponse
from facet.version import __version__

_SECONDS_TO_REPORT = 10.0


def make_proxy_app(
    config: ServerConfig,
    replicas: ReplicaSet,
    follow: Callable[[], Coroutine[None, None, None]] | None = None,
    *,
    adapters: SharedAdapters | None = None,
) -> Starlette:
    """An app that owns `replicas` from its start-up to its shutdown, but not what runs them.

    `follow` runs meanwhile: it learns which replicas there are, where nobody else tells. `adapters`: those of all
    replicas, where requests may change them.
    """
    proxy = Proxy(replicas, config)
    endpoints = _Endpoints(config, replicas, proxy)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        following = None if follow is None else asyncio.create_task(follow())
        try:
            yield
        finally:
            proxy.stop()
            if following is not None:
                following.cancel()
            await replicas.close()

    own = [
        *page_routes(),
        Route("/health", guarded(endpoints.health), methods=["GET"]),
        Route("/ping", guarded(endpoints.health), methods=["GET", "POST"]),
        Route("/version", guarded(endpoints.version), methods=["GET"]),
        Route("/load", guarded(endpoints.load), methods=["GET"]),
        Route("/metrics", guarded(endpoints.metrics), methods=["GET"]),
        Route("/engine/live", guarded(endpoints.live), methods=["GET"]),
        Route("/reset_prefix_cache", guarded(endpoints.reset_prefix_cache), methods=["POST"]),
    ]
    if adapters is not None and config.allowed_lora_path:
        own += [
            Route(path, guarded(endpoints.change_of_adapters(change)), methods=["POST"])
            for path, change in ((LOAD, adapters.load), (UNLOAD, adapters.unload))
        ]
    return Starlette(
        routes=[_EverythingElse(proxy, frozenset(route.path for route in own)), *own],
        middleware=middleware_of(config),
        lifespan=lifespan,
    )


class _EverythingElse(BaseRoute):
    """What the proxy passes on. It comes first, because most requests are that and every route before it takes time."""

    def __init__(self, proxy: Proxy, own_paths: frozenset[str]) -> None:
        self._proxy = proxy
        self._own_paths = own_paths

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return (Match.NONE if path in self._own_paths else Match.FULL), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._proxy(scope, receive, send)


class _Endpoints:
    def __init__(self, config: ServerConfig, replicas: ReplicaSet, proxy: Proxy) -> None:
        self._config = config
        self._replicas = replicas
        self._registry = CollectorRegistry()
        self._registry.register(_RouterMetrics(replicas, proxy))

    async def health(self, request: Request) -> Response:
        """200 while some replica takes requests."""
        if not self._replicas.router.ready:
            raise HttpError(503, "No replica is running.")
        return Response()

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def load(self, request: Request) -> Response:
        router = self._replicas.router
        return JSONResponse({"server_load": sum(router.load_of(name) for name in self._replicas.clients)})

    async def metrics(self, request: Request) -> Response:
        texts = await self._ask_all("/metrics")
        return Response(merge_metrics(texts) + generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def live(self, request: Request) -> Response:
        views = (await self._ask_all("/engine/live")).values()
        if not views:
            raise HttpError(503, "No replica has answered yet. Try again.")
        response = json_response(merge_live_views([msgspec.json.decode(view, type=LiveResponse) for view in views]))
        response.headers["cache-control"] = "no-store"
        return response

    async def reset_prefix_cache(self, request: Request) -> Response:
        await self._ask_all("/reset_prefix_cache", method="POST")
        return Response()

    def change_of_adapters(self, change: Callable[[bytes, bytes], Awaitable[Reply]]) -> Endpoint:
        config = self._config

        async def endpoint(request: Request) -> Response:
            body = await read_body(request, max_bytes=config.max_request_bytes, timeout=config.request_timeout)
            path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
            reply = await change(make_errand(request, path, body).message, bytes(body))
            return Response(reply.body, reply.status, {"content-type": reply.content_type})

        return endpoint

    async def _ask_all(self, path: str, *, method: str = "GET") -> Mapping[str, bytes]:
        """What replicas say, by name; those that say nothing in time are left out."""
        key = self._config.api_key[0] if self._config.api_key else None
        asked = dict(self._replicas.clients)
        said = await asyncio.gather(*(_ask(client.ask(path, method=method, key=key)) for client in asked.values()))
        return {name: body for name, body in zip(asked, said, strict=True) if body is not None}


async def _ask(asking: Awaitable[tuple[int, bytes]]) -> bytes | None:
    try:
        status, body = await asyncio.wait_for(asking, _SECONDS_TO_REPORT)
    except (ReplicaLostError, TimeoutError):
        return None
    return body if status == 200 else None


class _RouterMetrics(Collector):
    """What only the proxy knows."""

    def __init__(self, replicas: ReplicaSet, proxy: Proxy) -> None:
        self._replicas = replicas
        self._proxy = proxy

    def collect(self) -> list[Metric]:
        router, counts = self._replicas.router, self._proxy.counts
        up = GaugeMetricFamily("facet:replica_ready", "Whether a replica takes requests.", labels=["engine"])
        running = GaugeMetricFamily("facet:replica_requests", "Requests sent that have not ended.", labels=["engine"])
        for name in self._replicas.clients:
            up.add_metric([name], router.is_ready(name))
            running.add_metric([name], router.num_running(name))
        answered = CounterMetricFamily("facet:replica_answers", "Requests answered.", labels=["engine"])
        for name, count in counts.num_requests.items():
            answered.add_metric([name], count)
        retries = CounterMetricFamily("facet:router_retries", "Requests sent to a second replica.")
        retries.add_metric([], counts.num_retries)
        broken = CounterMetricFamily("facet:router_broken_streams", "Streams that their replica broke off.")
        broken.add_metric([], counts.num_broken)
        keys = GaugeMetricFamily("facet:router_keys", "Prefixes, sessions and pins remembered.")
        keys.add_metric([], router.num_keys)
        return [up, running, answered, retries, broken, keys]
