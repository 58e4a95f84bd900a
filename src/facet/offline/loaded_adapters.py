"""Loads the adapters that calls name, and keeps what the engine says of them. Where there is no place left, the one
that was not named for the longest time goes."""

import os
from collections.abc import Collection, Sequence

from facet.adapter import AdapterInfo, AdapterSource
from facet.engine.client import EngineClient
from facet.engine.messages import AdapterState
from facet.errors import RequestError

_FIELD = "lora_request"


class LoadedAdapters:
    def __init__(self, adapters: Sequence[AdapterInfo], num_places: int = 0) -> None:
        """`num_places`: for how many there is room; 0: nobody knows."""
        self._state = AdapterState(tuple(adapters))
        self._num_places = num_places
        self._last_named = [adapter.name for adapter in adapters]  # the latest last
        self._num_unheard = 0  # loads whose outcome has not come; they are left over where a call was interrupted

    def require(self, engine: EngineClient, sources: Sequence[AdapterSource]) -> None:
        """Loads those that are not loaded. Those that are may be named without their path."""
        self._hear(engine)
        named = {source.name for source in sources}
        self._last_named = [*(name for name in self._last_named if name not in named), *named]
        for source in dict.fromkeys(sources):
            paths = {adapter.name: adapter.path for adapter in self._state.adapters}
            if source.name not in paths:
                self._make_place(engine, named)
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

    def know(self, adapters: Sequence[AdapterInfo]) -> None:
        """Takes what the engine says of adapters beside something else: some may be lost while a model sleeps."""
        self._state = AdapterState(tuple(adapters))

    def _make_place(self, engine: EngineClient, named: Collection[str]) -> None:
        loaded = {adapter.name for adapter in self._state.adapters}
        if not self._num_places or len(loaded) < self._num_places:
            return
        others = [name for name in self._last_named if name in loaded and name not in named]
        if others:
            self._num_unheard += 1
            engine.unload_adapter(others[0])
            self._hear(engine)

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
