"""The engine process as the server uses it. Nothing here ever waits, because the caller is an event loop."""

from typing import Protocol

import zmq

from facet.engine.client import EngineClient, RemoteEngine
from facet.engine.messages import AskLiveView, AskStats, LoadGrammars, ToEngine
from facet.errors import EngineError


class ServedEngine(EngineClient, Protocol):
    """What the server needs of an engine beyond what every front needs."""

    def ask_stats(self) -> None:
        """Ask without waiting; a `Stats` comes with the other messages."""

    def ask_live_view(self, max_cells: int) -> None:
        """Ask without waiting; a `LiveView` comes with the other messages."""

    def load_grammars(self) -> None: ...


class EngineProcess(RemoteEngine):
    """`RemoteEngine` whose sends fail rather than wait.

    Between an engine's death and the moment it is noticed, a plain send has no receiver and would wait for ever.
    """

    def ask_stats(self) -> None:
        self._send(AskStats())

    def ask_live_view(self, max_cells: int) -> None:
        self._send(AskLiveView(max_cells))

    def load_grammars(self) -> None:
        self._send(LoadGrammars())

    def _send(self, message: ToEngine) -> None:
        if self._death is not None:
            raise self._death
        with self._sending:
            try:
                self._to_engine.send(self._encoder.encode(message), zmq.NOBLOCK)
            except zmq.Again:
                raise EngineError("The engine takes no messages: it is overloaded, or has just ended.") from None
