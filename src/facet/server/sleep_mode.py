"""/sleep, /wake_up and /is_sleeping: the model gives its memory back for a while. Only with --enable-sleep-mode.

As in vLLM: at level 1 weights wait in the host's memory, at level 2 they are dropped and read from files again. Here,
requests that run when the model is told to sleep are finished first, unless `mode=abort` ends them; new ones are
refused with status 503. A model that sleeps at level 1 can be sent to level 2.
"""

import asyncio
import logging
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from facet.errors import RequestError
from facet.server.body import read_body
from facet.server.engine_bridge import AsleepError, EngineBridge
from facet.server.errors import HttpError
from facet.server.frontend import Frontend

logger = logging.getLogger(__name__)

SLEEP_PATHS = ("/sleep", "/wake_up", "/is_sleeping")

_SECONDS_BETWEEN_LOOKS = 0.02
_TAGS = {"weights", "kv_cache"}


class AwakeError(HttpError):
    """The model is awake, but not all is as it was."""


class SleepMode:
    """Sleeps and wakes up, one after the other."""

    def __init__(self, bridge: EngineBridge) -> None:
        self._bridge = bridge
        self._turn = asyncio.Lock()

    @property
    def level(self) -> int:
        return self._bridge.sleep_level

    async def sleep(self, level: int, *, aborts: bool = False) -> None:
        """Asleep, it can only sleep more deeply. `aborts`: requests that run are ended, also if an earlier call has
        been waiting for them."""
        bridge = self._bridge
        if aborts and not bridge.takes_requests:
            bridge.end_calls(AsleepError())
        async with self._turn:
            if self.level >= level:
                return
            began = time.monotonic()
            bridge.takes_requests = False
            try:
                if bridge.num_pending and not aborts:
                    logger.info("The model will sleep when %d requests are finished.", bridge.num_pending)
                while bridge.num_pending:
                    if aborts:
                        bridge.end_calls(AsleepError())
                    await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
                bridge.sleep(level)
                await self._hear()
                bridge.sleep_level = level
            finally:
                bridge.takes_requests = not self.level
            logger.info("The model is asleep (level %d), after %.1f s.", level, time.monotonic() - began)

    async def wake_up(self) -> None:
        async with self._turn:
            if not self.level:
                return
            began = time.monotonic()
            self._bridge.wake_up()
            try:
                await self._hear()
            except AwakeError:  # with something to say all the same
                self._set_awake()
                raise
            self._set_awake()
            logger.info("The model is awake, after %.1f s.", time.monotonic() - began)

    def _set_awake(self) -> None:
        self._bridge.sleep_level = 0
        self._bridge.takes_requests = True

    async def _hear(self) -> None:
        """Returns once the engine has done as it was told, and raises if it could not."""
        state = await self._bridge.sleep_states.get()
        if isinstance(state, Exception):
            raise state
        if state.error is not None:
            raise HttpError(500, state.error) if state.is_asleep else AwakeError(500, state.error)


class SleepEndpoints:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._mode = SleepMode(frontend.bridge)

    async def sleep(self, request: Request) -> Response:
        level, mode = _given(request, "level", "1"), _given(request, "mode", "wait")
        if level not in ("1", "2"):
            raise RequestError(
                f"level is {level!r}, but must be 1 (weights wait in the host's memory) or 2 (they are read from files "
                "again).",
                field="level",
            )
        if mode not in ("wait", "abort"):
            raise RequestError(
                f"mode is {mode!r}, but must be wait (running requests are finished first) or abort (they get an "
                "error).",
                field="mode",
            )
        await self._check_body(request)
        began = time.monotonic()
        await self._mode.sleep(int(level), aborts=mode == "abort")
        return self._state(began)

    async def wake_up(self, request: Request) -> Response:
        tags = set(request.query_params.getlist("tags"))
        if tags and tags != _TAGS:
            raise RequestError("Weights and cache wake up together. Leave tags out.", field="tags")
        await self._check_body(request)
        began = time.monotonic()
        await self._mode.wake_up()
        return self._state(began)

    async def is_sleeping(self, request: Request) -> Response:
        return JSONResponse({"is_sleeping": self._mode.level > 0})

    def _state(self, began: float) -> Response:
        """The state with vLLM's fields. The level is the one that the model sleeps at, which an earlier call may have
        chosen."""
        elapsed = round(1000 * (time.monotonic() - began), 2)
        if self._mode.level:
            return JSONResponse({"status": "sleeping", "level": self._mode.level, "elapsed_ms": elapsed})
        return JSONResponse({"status": "awake", "elapsed_ms": elapsed})

    async def _check_body(self, request: Request) -> None:
        """Refuses a level in the body, which would be overlooked."""
        config = self._frontend.config
        body = await read_body(request, max_bytes=config.max_request_bytes, timeout=config.request_timeout)
        if bytes(body).strip() not in (b"", b"{}"):
            raise RequestError(
                "There is nothing to say in the body. Settings go into the address: POST /sleep?level=2."
            )


def _given(request: Request, name: str, default: str) -> str:
    return request.query_params.get(name, default)
