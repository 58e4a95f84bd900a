"""/sleep, /wake_up and /is_sleeping: the model gives its memory back for a while. Only with --enable-sleep-mode.

As in vLLM: at level 1 weights wait in the host's memory, at level 2 they are dropped and read from files again. Here,
requests that run when the model is told to sleep are finished first, and new ones are refused with status 503.
"""

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from facet.errors import RequestError
from facet.server.engine_bridge import EngineBridge
from facet.server.errors import HttpError
from facet.server.frontend import Frontend

_SECONDS_BETWEEN_LOOKS = 0.02


class SleepMode:
    """Sleeps and wakes up, one after the other."""

    def __init__(self, bridge: EngineBridge) -> None:
        self.is_asleep = False
        self._bridge = bridge
        self._turn = asyncio.Lock()

    async def sleep(self, level: int) -> None:
        async with self._turn:
            if not self.is_asleep:
                self._bridge.takes_requests = False
                try:
                    while self._bridge.num_pending:
                        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
                    self._bridge.sleep(level)
                    await self._hear()
                finally:
                    self._bridge.takes_requests = not self.is_asleep

    async def wake_up(self) -> None:
        async with self._turn:
            if self.is_asleep:
                self._bridge.wake_up()
                await self._hear()
                self._bridge.takes_requests = not self.is_asleep

    async def _hear(self) -> None:
        state = await self._bridge.sleep_states.get()
        if isinstance(state, Exception):
            raise state
        self.is_asleep = state.is_asleep
        if state.error is not None:
            raise HttpError(500, state.error)


class SleepEndpoints:
    def __init__(self, frontend: Frontend) -> None:
        self._mode = SleepMode(frontend.bridge)

    async def sleep(self, request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level not in ("1", "2"):
            raise RequestError(
                f"level is {level!r}, but must be 1 (weights wait in the host's memory) or 2 (they are read from files "
                "again).",
                field="level",
            )
        await self._mode.sleep(int(level))
        return Response()

    async def wake_up(self, request: Request) -> Response:
        if "tags" in request.query_params:
            raise RequestError("Weights and cache wake up together. Leave tags out.", field="tags")
        await self._mode.wake_up()
        return Response()

    async def is_sleeping(self, request: Request) -> Response:
        return JSONResponse({"is_sleeping": self._mode.is_asleep})
