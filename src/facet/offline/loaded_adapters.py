"""Loads the adapters that calls name, each once, and keeps what the engine says of them."""

import os
from collections.abc import Sequence

from facet.adapter import AdapterInfo, AdapterSource
from facet.engine.client import EngineClient
from facet.engine.messages import AdapterState
from facet.errors import RequestError

_FIELD = "lora_request"


class LoadedAdapters:
    def __init__(self, adapters: Sequence[AdapterInfo]) -> None:
        self._state = AdapterState(tuple(adapters))
        self._num_unheard = 0  # loads whose outcome has not come; they are left over where a call was interrupted

    def require(self, engine: EngineClient, sources: Sequence[AdapterSource]) -> None:
        """Loads those that are not loaded. Those that are may be named without their path."""
        self._hear(engine)
        for source in dict.fromkeys(sources):
            paths = {adapter.name: adapter.path for adapter in self._state.adapters}
            if source.name not in paths:
                self._load(engine, source)
            elif source.path and os.path.realpath(source.path) != os.path.realpath(paths[source.name]):
                raise RequestError(
                    f"{_FIELD} names {source.path} as {source.name!r}, but that is the name of the adapter in "
                    f"{paths[source.name]}. Give each one a name of its own.",
                    field=_FIELD,
                )

    def take(self, state: AdapterState) -> None:
        """Takes what the engine says. Calls that were interrupted leave it to the next one."""
        self._state = state
        self._num_unheard -= 1

    def _load(self, engine: EngineClient, source: AdapterSource) -> None:
        if not source.path:
            raise RequestError(
                f"{_FIELD} names {source.name!r}, which is not loaded, without a path. Give its lora_path.",
                field=_FIELD,
            )
        self._num_unheard += 1
        engine.load_adapter(source)
        self._hear(engine)
        if self._state.error is not None:
            raise RequestError(self._state.error, field=_FIELD)

    def _hear(self, engine: EngineClient) -> None:
        while self._num_unheard:
            for message in engine.receive():
                if isinstance(message, AdapterState):
                    self.take(message)
