"""One engine for all threads of a program: their calls wait for each other. Knows no prompts."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from facet.adapter import AdapterSource
from facet.engine.client import EngineClient
from facet.engine.messages import AdapterState, FromEngine, NewTokens, Refused, SleepState, Stats
from facet.errors import ConfigError, EngineError, UserError
from facet.offline.collector import Collector
from facet.offline.loaded_adapters import LoadedAdapters
from facet.progress import Progress
from facet.request import Request

Result = TypeVar("Result")


class SharedEngine:
    """Whoever receives takes all that the engine says, so that one call at a time may listen to it."""

    def __init__(self, engine: EngineClient) -> None:
        self.info = engine.info
        self._engine: EngineClient | None = engine  # None: closed
        # A signal is handled in the middle of a call and in its thread. That may close; a call in a call is refused.
        self._turn = threading.RLock()
        self._is_taken = False
        self._adapters = LoadedAdapters(engine.info.adapters, engine.info.num_adapter_places)

    def answer(self, requests: Sequence[Request], collector: Collector, progress: Progress) -> None:
        """Submits all requests and collects tokens until they have ended. A refused request ends the whole call."""
        self._call(lambda engine: self._serve(engine, requests, collector, progress))

    def stats(self) -> Stats:
        return self._call(lambda engine: engine.stats())

    def reset_prefix_cache(self) -> None:
        self._call(lambda engine: engine.reset_prefix_cache())

    def sleep(self, level: int) -> None:
        def ask_and_wait(engine: EngineClient) -> None:
            engine.sleep(level)
            self._hear_of_sleep(engine)

        self._call(ask_and_wait)

    def wake_up(self) -> None:
        def ask_and_wait(engine: EngineClient) -> None:
            engine.wake_up()
            self._hear_of_sleep(engine)

        self._call(ask_and_wait)

    def load_adapters(self, sources: Sequence[AdapterSource]) -> None:
        """Loads those that are not loaded."""
        if sources:
            self._call(lambda engine: self._adapters.require(engine, sources))

    def close(self) -> None:
        """Waits for the call of another thread. What is closed stays so."""
        with self._turn:
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    def require_open(self) -> EngineClient:
        if self._engine is None:
            raise UserError("This LLM is closed. Make another one.")
        return self._engine

    def _call(self, do: Callable[[EngineClient], Result]) -> Result:
        with self._turn:
            engine = self.require_open()
            if self._is_taken:
                raise UserError("This LLM is in the middle of a call of the same thread. Call it when that has ended.")
            try:
                self._is_taken = True
                return do(engine)
            finally:
                self._is_taken = False

    def _receive(self, engine: EngineClient) -> Sequence[FromEngine]:
        messages = engine.receive()
        for message in messages:
            if isinstance(message, AdapterState):  # of a load that was interrupted
                self._adapters.take(message)
        return messages

    def _hear_of_sleep(self, engine: EngineClient) -> None:
        while True:
            for message in self._receive(engine):
                if isinstance(message, SleepState):
                    self._adapters.know(message.adapters)
                    if message.error is not None:
                        raise ConfigError(message.error)
                    return

    def _serve(
        self, engine: EngineClient, requests: Sequence[Request], collector: Collector, progress: Progress
    ) -> None:
        with progress.task("Generating", len(requests)) as advance:
            try:
                for request in requests:
                    engine.submit(request)
                while num_pending := collector.num_pending:
                    for message in self._receive(engine):
                        # Others are of requests that an earlier call cancelled.
                        if isinstance(message, Refused) and collector.awaits(message.request_id):
                            raise message.as_error()
                        if isinstance(message, NewTokens) and collector.feed(message):
                            engine.cancel(message.request_id)
                    advance(num_pending - collector.num_pending)
            except EngineError:
                raise
            except BaseException:
                for request_id in collector.pending_ids if self._engine is engine else ():
                    engine.cancel(request_id)
                raise
