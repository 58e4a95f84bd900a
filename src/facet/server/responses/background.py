"""Goes on with responses that nobody waits for, until they end or are cancelled."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request as HttpRequest

from facet.request import Request
from facet.server.call_timer import CallTimer
from facet.server.engine_bridge import EngineCall
from facet.server.exchange import collect, make_timer
from facet.server.frontend import Frontend
from facet.server.responses.answers import ResponseExchange
from facet.server.responses.wire import ResponseObject


@dataclass(frozen=True, slots=True)
class _Running:
    exchange: ResponseExchange
    call: EngineCall
    timer: CallTimer
    task: asyncio.Task[None]


class BackgroundResponses:
    """Responses in the background, as many as the engine takes: each is a request of it."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}

    def start(
        self, exchange: ResponseExchange, requests: Sequence[Request], frontend: Frontend, http_request: HttpRequest
    ) -> ResponseObject:
        timer = make_timer(exchange, requests, frontend, http_request, n=1)
        call = frontend.bridge.submit(requests)
        task = asyncio.create_task(self._go_on(exchange, call, timer))
        self._running[exchange.response_id] = _Running(exchange, call, timer, task)
        return exchange.snapshot("in_progress")

    def cancel(self, response_id: str) -> ResponseObject | None:
        """Ends a response now. None: it has ended already."""
        running = self._running.pop(response_id, None)
        if running is None:
            return None
        running.task.cancel()
        running.timer.on_gone(1)
        return running.exchange.snapshot("cancelled")

    async def _go_on(self, exchange: ResponseExchange, call: EngineCall, timer: CallTimer) -> None:
        try:
            await collect(exchange, call, timer)
            exchange.response()
        except Exception as error:
            exchange.failed(exchange.dialect.fault(error))
        finally:
            call.close()
            self._running.pop(exchange.response_id, None)
