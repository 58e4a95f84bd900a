"""Connects the event loop to the engine: one thread receives, and the loop passes each token to its call.

A *call* is everything one HTTP request asked of the engine: a request for each prompt and each of its n answers. It has
one queue, so that nothing has to wait on several. Knows no JSON and no text.
"""

import asyncio
import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from facet.adapter import AdapterInfo, AdapterSource
from facet.engine.messages import (
    AdapterState,
    EngineInfo,
    FromEngine,
    LiveView,
    NewTokens,
    Refused,
    SleepState,
    Stats,
)
from facet.errors import EngineDeadError, EngineError, FacetError
from facet.request import Request
from facet.server.engine_process import ServedEngine
from facet.server.polls import Poll

logger = logging.getLogger(__name__)

# How long the receiving thread waits before it looks whether it should end.
_LOOK_SECONDS = 0.5
# The picture of the arena: enough to see where things are, few enough for a message of a few kilobytes.
_MAX_CELLS = 512
# How old a live view may be: pages that are open at the same time share one.
_LIVE_SECONDS = 0.5
_ANSWER_TIMEOUT_SECONDS = 5.0
# After the start, and then again and again until nobody asks: answers are not to be disturbed, the first one least.
_SECONDS_BEFORE_GRAMMARS = 2.0


class OverloadedError(EngineError):
    """More requests are waiting than the server allows."""

    def __init__(self, num_pending: int, limit: int) -> None:
        super().__init__(f"The server has {num_pending} requests, and its limit is {limit}. Try again later.")


class AsleepError(EngineError):
    """Requests are not taken: the model sleeps, or is about to."""

    def __init__(self) -> None:
        super().__init__("The model is asleep, or about to be. POST /wake_up wakes it up; then send the request again.")


class StoppingError(EngineDeadError):
    """The server stops before the request is finished."""

    def __init__(self) -> None:
        super().__init__("The server is stopping and could not finish this request. Send it again later.")


@dataclass(slots=True)
class Counters:
    """What has passed through, since the start."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_cached_prompt_tokens: int = 0  # of the prompt tokens, those that were cached


@dataclass(eq=False, slots=True)
class EngineCall:
    """What the engine says about the requests of one HTTP request, in the order it came."""

    bridge: "EngineBridge"
    pending: dict[str, int]  # requests that have not ended, and the index of each in the call
    num_prompt_tokens: dict[str, int]
    _messages: deque[NewTokens | Refused] = field(default_factory=deque)
    _error: FacetError | None = None
    _waiter: asyncio.Future[None] | None = None

    async def next(self) -> list[tuple[int, NewTokens]]:
        """What has come since the last time, with the index of the request each message belongs to.

        Raises what went wrong: a refusal of any of the requests, or the engine's death.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        batch: list[tuple[int, NewTokens]] = []
        while self._messages:
            message = self._messages.popleft()
            index = self.pending.get(message.request_id)
            if index is None:
                continue  # cancelled meanwhile
            if isinstance(message, Refused):
                del self.pending[message.request_id]
                self._error = message.as_error()
                self.close()  # if one is refused, the whole call is
                raise self._error
            if message.finish_reason is not None:
                del self.pending[message.request_id]
            batch.append((index, message))
        return batch

    def cancel(self, index: int) -> None:
        """Ends one request early; nothing more of it will arrive."""
        for request_id, its_index in list(self.pending.items()):
            if its_index == index:
                del self.pending[request_id]
                self.bridge.cancel(request_id)

    def close(self) -> None:
        """Ends all requests that have not ended. Harmless if all have."""
        for request_id in self.pending:
            self.bridge.cancel(request_id)
        self.pending.clear()
        self._messages.clear()

    def deliver(self, message: NewTokens | Refused) -> None:
        self._messages.append(message)
        self._wake()

    def fail(self, error: EngineError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineBridge:
    """An engine for asyncio. Everything but the receiving thread runs on the loop it was started on."""

    def __init__(self, engine: ServedEngine, *, max_pending: int) -> None:
        self.counters = Counters()
        self.max_pending = max_pending
        self.death: EngineDeadError | None = None
        self.takes_requests = True  # `sleep_mode.py` decides
        self.sleep_level = 0  # and sets this: 0 is awake
        self.sleep_states: asyncio.Queue[SleepState | EngineDeadError] = asyncio.Queue()  # as they come
        self.adapters = _names(engine.info.adapters)  # that requests may name
        self.adapter_states: asyncio.Queue[AdapterState | EngineDeadError] = asyncio.Queue()  # as they come
        self._engine = engine
        self._stats: Poll[Stats] = Poll(engine.ask_stats)
        self._live_view: Poll[LiveView] = Poll(lambda: engine.ask_live_view(_MAX_CELLS))
        self._calls: dict[str, EngineCall] = {}  # by request id, until the request has ended
        self._call_numbers = itertools.count()
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._receive, name="facet-messages", daemon=True)

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def num_pending(self) -> int:
        return len(self._calls)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._loop.call_later(_SECONDS_BEFORE_GRAMMARS, self._load_grammars)

    def _load_grammars(self) -> None:
        if self.death is not None:  # there is nobody to send to
            return
        if self._calls:
            assert self._loop is not None, "who has calls was started"
            self._loop.call_later(_SECONDS_BEFORE_GRAMMARS, self._load_grammars)
            return
        with contextlib.suppress(EngineError):  # of an engine that has died others will hear
            self._engine.load_grammars()

    async def stop(self) -> None:
        """End the thread and the engine. Calls that are still open fail, and so does whoever comes now."""
        self.death = StoppingError()
        self._fail_all(self.death)
        self._closing.set()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._engine.close)

    def check_room(self, num_requests: int) -> None:
        """Raises if this many requests would be refused now."""
        if self.death is not None:
            raise self.death
        if not self.takes_requests:
            raise AsleepError
        if self.num_pending + num_requests > self.max_pending:
            raise OverloadedError(self.num_pending, self.max_pending)

    def submit(self, requests: Sequence[Request]) -> EngineCall:
        """Sends the requests of one call, or refuses all of them."""
        self.check_room(len(requests))
        call = EngineCall(
            self,
            {request.request_id: index for index, request in enumerate(requests)},
            {request.request_id: len(request.prompt_token_ids) for request in requests},
        )
        try:
            for request in requests:
                self._engine.submit(request)
                self._calls[request.request_id] = call
        except EngineError:
            call.close()
            raise
        return call

    def cancel(self, request_id: str) -> None:
        if self._calls.pop(request_id, None) is None:
            return
        try:
            self._engine.cancel(request_id)
        except EngineError as error:
            logger.debug("Request %s was not cancelled: %s", request_id, error)

    def end_calls(self, error: EngineError) -> None:
        """Ends the calls that are open: they fail, and the engine stops working on them."""
        for call in set(self._calls.values()):
            call.close()
            call.fail(error)

    def new_ids(self, base: str, count: int) -> list[str]:
        """Ids that no other request has, even if a client sends the same id twice."""
        number = next(self._call_numbers)
        return [f"{base}-{number}-{index}" for index in range(count)]

    @property
    def last_stats(self) -> Stats | None:
        return self._stats.last

    async def stats(self) -> Stats | None:
        """The engine's counters now, or the last known ones if it does not answer in time or is dead."""
        return self.last_stats if self.death is not None else await self._stats.ask(timeout=_ANSWER_TIMEOUT_SECONDS)

    async def live_view(self) -> LiveView | None:
        """The engine's state now or a moment ago. The engine computes it only when asked."""
        if self.death is not None:
            raise self.death
        return await self._live_view.ask(timeout=_ANSWER_TIMEOUT_SECONDS, max_age=_LIVE_SECONDS)

    def reset_prefix_cache(self) -> None:
        self._engine.reset_prefix_cache()

    def sleep(self, level: int) -> None:
        self._engine.sleep(level)

    def wake_up(self) -> None:
        self._engine.wake_up()

    def load_adapter(self, source: AdapterSource) -> None:
        self._engine.load_adapter(source)

    def unload_adapter(self, name: str) -> None:
        self._engine.unload_adapter(name)

    def _receive(self) -> None:
        """The receiving thread: passes each message to the loop in one call."""
        assert self._loop is not None, "start() before the thread"
        while not self._closing.is_set():
            try:
                messages = self._engine.receive(timeout=_LOOK_SECONDS)
            except EngineDeadError as error:
                self._loop.call_soon_threadsafe(self._die, error)
                return
            except Exception as error:
                logger.exception("The messages of the engine cannot be read")
                self._loop.call_soon_threadsafe(self._die, EngineDeadError(f"{type(error).__name__}: {error}"))
                return
            if messages and not self._closing.is_set():
                self._loop.call_soon_threadsafe(self._distribute, messages)

    def _distribute(self, messages: Sequence[FromEngine]) -> None:
        for message in messages:
            if isinstance(message, NewTokens | Refused):
                self._distribute_one(message)
            elif isinstance(message, Stats):
                self._stats.deliver(message)
            elif isinstance(message, LiveView):
                self._live_view.deliver(message)
            elif isinstance(message, SleepState):
                self.adapters = _names(message.adapters)
                self.sleep_states.put_nowait(message)
            elif isinstance(message, AdapterState):
                self.adapters = _names(message.adapters)
                self.adapter_states.put_nowait(message)

    def _distribute_one(self, message: NewTokens | Refused) -> None:
        call = self._calls.get(message.request_id)
        if call is None:
            return  # cancelled: what was already sent is dropped
        if isinstance(message, NewTokens):
            if message.token_ids:
                self.counters.num_generation_tokens += len(message.token_ids)
                # Counted with the first tokens: until then the prompt was not computed.
                num_prompt_tokens = call.num_prompt_tokens.pop(message.request_id, None)
                if num_prompt_tokens is not None:
                    self.counters.num_prompt_tokens += num_prompt_tokens
                    self.counters.num_cached_prompt_tokens += message.num_cached_tokens
            if message.finish_reason is not None:
                del self._calls[message.request_id]
        else:
            del self._calls[message.request_id]
        call.deliver(message)

    def _die(self, error: EngineDeadError) -> None:
        logger.error("%s", error)
        self.death = error
        self._fail_all(error)

    def _fail_all(self, error: EngineDeadError) -> None:
        calls, self._calls = set(self._calls.values()), {}
        for call in calls:
            call.fail(error)
        self._stats.fail(error)
        self._live_view.fail(error)
        self.sleep_states.put_nowait(error)
        self.adapter_states.put_nowait(error)


def _names(adapters: Sequence[AdapterInfo]) -> tuple[str, ...]:
    return tuple(adapter.name for adapter in adapters)
