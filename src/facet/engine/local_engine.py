"""The engine as callers use it, in this process: `receive` runs it."""

from collections.abc import Sequence

from facet.config import EngineConfig
from facet.engine.engine import make_engine
from facet.engine.messages import Cancel, FromEngine, Sleep, Stats, Submit, WakeUp
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
        self._service.handle(Submit(request), self._messages.append)

    def cancel(self, request_id: str) -> None:
        self._service.handle(Cancel(request_id), self._messages.append)

    def receive(self, timeout: float | None = None) -> Sequence[FromEngine]:
        while not self._messages and self._service.has_work:
            self._messages += self._service.step()
        messages, self._messages = self._messages, []
        return messages

    def stats(self) -> Stats:
        return self._service.stats()

    def sleep(self, level: int) -> None:
        self._service.handle(Sleep(level), self._messages.append)

    def wake_up(self) -> None:
        self._service.handle(WakeUp(), self._messages.append)

    def close(self) -> None:
        """Nothing to end; memory goes with the object."""
