"""The HTTP app: its routes and middleware, and what starts and stops with it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from facet.config import ServerConfig
from facet.prompts.media_reading import make_media_reader
from facet.server.adapter_loading import ADAPTER_PATHS, AdapterEndpoints
from facet.server.anthropic.dialect import ANTHROPIC
from facet.server.anthropic.routes import MessagesEndpoint, TokenCountEndpoint
from facet.server.chat_route import ChatEndpoint
from facet.server.completions_route import CompletionsEndpoint
from facet.server.dialect import OPENAI, Dialect
from facet.server.engine_bridge import EngineBridge
from facet.server.engine_process import ServedEngine
from facet.server.errors import HttpError
from facet.server.frontend import Frontend, guarded
from facet.server.info_routes import InfoEndpoints
from facet.server.invocations_route import InvocationsEndpoint
from facet.server.live_route import LiveEndpoint
from facet.server.media_desk import MediaDesk
from facet.server.metrics import Metrics
from facet.server.middleware import ApiKeyMiddleware, HttpMetricsMiddleware, RequestIdMiddleware, path_of
from facet.server.ollama.dialect import OLLAMA
from facet.server.ollama.routes import OllamaEndpoints
from facet.server.operations_routes import OperationsEndpoints
from facet.server.page_routes import page_files, page_routes
from facet.server.responses.dialect import RESPONSES
from facet.server.responses.routes import ResponsesEndpoints
from facet.server.served_model import ServedModel
from facet.server.sleep_mode import SLEEP_PATHS, SleepEndpoints
from facet.server.stats_log import log_stats
from facet.server.token_routes import DetokenizeEndpoint, ModelsEndpoint, TokenizeEndpoint
from facet.server.traces import Traces
from facet.server.transcriptions.routes import TranscriptionEndpoint

_DOCS = "/docs"


def make_app(config: ServerConfig, engine: ServedEngine, model: ServedModel) -> Starlette:
    """An app that owns `engine` from its start-up to its shutdown."""
    bridge = EngineBridge(engine, max_pending=config.max_num_seqs + config.max_waiting_requests)
    pool = ThreadPoolExecutor(config.num_tokenizer_threads, thread_name_prefix="facet-tokens")
    metrics = Metrics(bridge, config, model.name)
    media = MediaDesk(make_media_reader(config, model.asked.media), metrics.media.observe)
    traces = None if config.otlp_traces_endpoint is None else Traces(config.otlp_traces_endpoint, model.name)
    frontend = Frontend(config, bridge, model, metrics, pool, media, traces)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        bridge.start()
        logging_task = None if config.disable_log_stats else asyncio.create_task(log_stats(bridge))
        try:
            yield
        finally:
            if logging_task is not None:
                logging_task.cancel()
            await bridge.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            media.close()
            if traces is not None:
                await asyncio.to_thread(traces.close)

    return Starlette(
        routes=_routes(frontend),
        middleware=[Middleware(HttpMetricsMiddleware, metrics=metrics.http), *middleware_of(config)],
        exception_handlers={HTTPException: _not_found},
        lifespan=lifespan,
    )


def _routes(frontend: Frontend) -> list[Route]:
    operations, models, info = OperationsEndpoints(frontend), ModelsEndpoint(frontend), InfoEndpoints(frontend)
    chat, completions = ChatEndpoint(frontend), CompletionsEndpoint(frontend)
    responses, ollama = ResponsesEndpoints(frontend), OllamaEndpoints(frontend)
    return [
        *page_routes(),
        Route("/engine/live", guarded(LiveEndpoint(frontend)), methods=["GET"]),
        Route("/v1/chat/completions", guarded(chat), methods=["POST"]),
        Route("/v1/completions", guarded(completions), methods=["POST"]),
        Route("/invocations", guarded(InvocationsEndpoint(frontend, chat, completions)), methods=["POST"]),
        Route("/v1/messages", guarded(MessagesEndpoint(frontend), ANTHROPIC), methods=["POST"]),
        Route("/v1/messages/count_tokens", guarded(TokenCountEndpoint(frontend), ANTHROPIC), methods=["POST"]),
        Route("/v1/responses", guarded(responses.create, RESPONSES), methods=["POST"]),
        Route("/v1/responses/input_tokens", guarded(responses.count, RESPONSES), methods=["POST"]),
        Route("/v1/responses/{response_id}", guarded(responses.retrieve, RESPONSES), methods=["GET"]),
        Route("/v1/responses/{response_id}", guarded(responses.delete, RESPONSES), methods=["DELETE"]),
        Route("/v1/responses/{response_id}/cancel", guarded(responses.cancel, RESPONSES), methods=["POST"]),
        Route("/v1/audio/transcriptions", guarded(TranscriptionEndpoint(frontend, "transcribe")), methods=["POST"]),
        Route("/v1/audio/translations", guarded(TranscriptionEndpoint(frontend, "translate")), methods=["POST"]),
        Route("/api/chat", guarded(ollama.chat, OLLAMA), methods=["POST"]),
        Route("/api/generate", guarded(ollama.generate, OLLAMA), methods=["POST"]),
        Route("/api/tags", guarded(ollama.tags, OLLAMA), methods=["GET"]),
        Route("/api/ps", guarded(ollama.running, OLLAMA), methods=["GET"]),
        Route("/api/show", guarded(ollama.show, OLLAMA), methods=["POST"]),
        Route("/api/version", guarded(ollama.version, OLLAMA), methods=["GET"]),
        Route("/v1/models", guarded(models), methods=["GET"]),
        Route("/v1/models/{name:path}", guarded(models), methods=["GET"]),
        Route("/tokenize", guarded(TokenizeEndpoint(frontend)), methods=["POST"]),
        Route("/detokenize", guarded(DetokenizeEndpoint(frontend)), methods=["POST"]),
        Route("/tokenizer_info", guarded(info.tokenizer), methods=["GET"]),
        Route("/server_info", guarded(info.server), methods=["GET"]),
        Route("/health", guarded(operations.health), methods=["GET"]),
        Route("/ping", guarded(operations.health), methods=["GET", "POST"]),
        Route("/version", guarded(operations.version), methods=["GET"]),
        Route("/load", guarded(operations.load), methods=["GET"]),
        Route("/metrics", guarded(operations.metrics), methods=["GET"]),
        Route("/reset_prefix_cache", guarded(operations.reset_prefix_cache), methods=["POST"]),
        *(_documents(operations) if not frontend.config.disable_fastapi_docs else []),
        *(_sleep_routes(frontend) if frontend.config.enable_sleep_mode else []),
        *(_adapter_routes(frontend) if frontend.config.allowed_lora_path else []),
    ]


def _documents(operations: OperationsEndpoints) -> list[Route]:
    return [
        Route("/openapi.json", guarded(operations.openapi), methods=["GET"]),
        Route(_DOCS, guarded(operations.docs), methods=["GET"]),
    ]


def _sleep_routes(frontend: Frontend) -> list[Route]:
    sleeping = SleepEndpoints(frontend)
    return [
        Route("/sleep", guarded(sleeping.sleep), methods=["POST"]),
        Route("/wake_up", guarded(sleeping.wake_up), methods=["POST"]),
        Route("/is_sleeping", guarded(sleeping.is_sleeping), methods=["GET"]),
    ]


def _adapter_routes(frontend: Frontend) -> list[Route]:
    adapters = AdapterEndpoints(frontend)
    return [
        Route("/v1/load_lora_adapter", guarded(adapters.load), methods=["POST"]),
        Route("/v1/unload_lora_adapter", guarded(adapters.unload), methods=["POST"]),
    ]


def middleware_of(config: ServerConfig) -> list[Middleware]:
    """The middleware from the outside in, so that a response without a key also carries an id and CORS headers."""
    stack = [
        Middleware(RequestIdMiddleware),
        Middleware(
            CORSMiddleware,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
        ),
    ]
    if config.api_key:
        # The page itself reveals nothing, and asks the user for a key.
        page_paths = [file.path for file in page_files()]
        stack.append(
            Middleware(ApiKeyMiddleware, keys=config.api_key, dialect_of=dialect_of, more_public_paths=page_paths)
        )
    return stack


def dialect_of(path: str) -> Dialect:
    """How errors are written of paths that lead to no endpoint, or not without a key."""
    if path.startswith("/v1/messages"):
        return ANTHROPIC
    return OLLAMA if path.startswith("/api/") else OPENAI


def _meant(request: Request, path: str) -> str:
    """A hint for clients whose base URL lacks /v1, or has it twice, and for what a flag adds."""
    if path in SLEEP_PATHS:
        return " Start it with --enable-sleep-mode."
    if path in ADAPTER_PATHS:
        return " Start it with --allowed-lora-path, or name adapters with --lora-modules."
    for other in (f"/v1{path}", path.removeprefix("/v1")):
        scope = {**request.scope, "path": f"{request.scope.get('root_path', '')}{other}"}
        if other != path and any(route.matches(scope)[0] is not Match.NONE for route in request.app.routes):
            end = "with" if len(other) > len(path) else "before"
            return f" Did you mean {other}? Then the client's base URL must end {end} /v1."
    return ""


async def _not_found(request: Request, error: Exception) -> Response:
    """Answers unknown paths and methods, with the same error format as everything else."""
    assert isinstance(error, HTTPException), "registered for these alone"
    path, message = path_of(request.scope), error.detail
    has_docs = any(route.path == _DOCS for route in request.app.routes)
    hint = f" {_DOCS} lists the paths." if has_docs else ""
    if error.status_code == 404:
        message = f"There is no {path} on this server.{_meant(request, path)}{hint}"
    elif error.status_code == 405:
        message = f"{path} does not support {request.method}.{hint}"
    return dialect_of(path).error_response(HttpError(error.status_code, message), error.headers)
