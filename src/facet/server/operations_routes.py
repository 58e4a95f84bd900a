"""Endpoints for operators and their tools: health, load, version, metrics, documents."""

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from facet.server.frontend import Frontend
from facet.server.openapi import DOCS_PAGE, openapi_document
from facet.version import __version__


class OperationsEndpoints:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    async def health(self, request: Request) -> Response:
        """Answers 200 with nothing in it, or 503 with an error once the engine is dead."""
        if self._frontend.bridge.death is not None:
            raise self._frontend.bridge.death
        return Response()

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def load(self, request: Request) -> Response:
        """The number of answers running or waiting."""
        return JSONResponse({"server_load": self._frontend.bridge.num_pending})

    async def metrics(self, request: Request) -> Response:
        await self._frontend.bridge.stats()  # so that the figures are current
        return Response(self._frontend.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def reset_prefix_cache(self, request: Request) -> Response:
        self._frontend.bridge.reset_prefix_cache()
        return Response()

    async def openapi(self, request: Request) -> Response:
        config = self._frontend.config
        document = openapi_document(sleeps=config.enable_sleep_mode, loads_adapters=bool(config.allowed_lora_path))
        return Response(msgspec.json.encode(document), media_type="application/json")

    async def docs(self, request: Request) -> Response:
        return HTMLResponse(DOCS_PAGE)
