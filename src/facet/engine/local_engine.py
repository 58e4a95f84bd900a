"""The engine as callers use it, in this process: `receive` runs it."""

import contextlib
import gc
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

import torch

from facet.adapter import AdapterSource
from facet.config import EngineConfig
from facet.engine.engine import make_engine
from facet.engine.messages import (
    Cancel,
    FromEngine,
    LoadAdapter,
    ResetPrefixCache,
    Sleep,
    Stats,
    Submit,
    ToEngine,
    UnloadAdapter,
    WakeUp,
)
from facet.engine.service import EngineService, make_info
from facet.progress import Progress
from facet.request import Request


class LocalEngine:
    """An `EngineClient` without a process."""

    def __init__(self, config: EngineConfig, progress: Progress | None = None) -> None:
        engine, folder = make_engine(config, progress)
        self.engine = engine
        self._service = EngineService(engine, make_info(engine, folder))
        self.info = self._service.info
        self._messages: list[FromEngine] = []

    def submit(self, request: Request) -> None:
        self._handle(Submit(request))

    def cancel(self, request_id: str) -> None:
        self._handle(Cancel(request_id))

    def receive(self, timeout: float | None = None) -> Sequence[FromEngine]:
        while not self._messages and self._service.has_work:
            with _uninterrupted():
                self._messages += self._service.step()
        messages, self._messages = self._messages, []
        return messages

    def stats(self) -> Stats:
        return self._service.stats()

    def reset_prefix_cache(self) -> None:
        self._handle(ResetPrefixCache())

    def sleep(self, level: int) -> None:
        self._handle(Sleep(level))

    def wake_up(self) -> None:
        self._handle(WakeUp())

    def load_adapter(self, source: AdapterSource) -> None:
        self._handle(LoadAdapter(source))

    def unload_adapter(self, name: str) -> None:
        self._handle(UnloadAdapter(name))

    def close(self) -> None:
        """Gives the engine's memory back. There is nothing left to be called afterwards."""
        del self._service, self.engine
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            gc.collect()
            torch.cuda.empty_cache()  # which other processes, and a next engine, would count as used

    def _handle(self, message: ToEngine) -> None:
        with _uninterrupted():
            self._service.handle(message, self._messages.append)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C wait until a step has ended: half a step leaves an engine that no later call could use."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # nothing is raised here
        return
    pressed: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:
            handler(*pressed[-1])
