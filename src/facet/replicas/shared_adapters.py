"""Adapters of all replicas: what a request loads or unloads, every replica does, and those that start later do it
again.

An adapter that only some replicas could load is unloaded from the others, so that a name means the same on all.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from facet.errors import RequestError
from facet.replicas.connection import ReplicaAddress, ReplicaClient, ReplicaLostError
from facet.replicas.replica_set import ReplicaSet
from facet.server.adapter_loading import ADAPTER_PATHS
from facet.server.body import BodyDecoder
from facet.server.errors import HttpError
from facet.server.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from facet.server.protocol.tokenizing import ModelList

logger = logging.getLogger(__name__)

Wire = TypeVar("Wire", LoadAdapterRequest, UnloadAdapterRequest)
LOAD, UNLOAD = ADAPTER_PATHS
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a replica answered."""

    status: int
    body: bytes
    content_type: str = _JSON

    @property
    def is_done(self) -> bool:
        return self.status == 200


class SharedAdapters:
    """Loads and unloads, one after the other."""

    def __init__(self, replicas: ReplicaSet, *, key: str | None) -> None:
        """`key`: with which replicas are asked for what no client asks for."""
        self._replicas = replicas
        self._key = key
        self._turn = asyncio.Lock()
        # What has changed since the start, by the adapters' names: the path of one that came, None of one that went.
        self._changes: dict[str, str | None] = {}

    async def load(self, message: bytes, body: bytes) -> Reply:
        """`message`: the client's request, as replicas get it; `body`: what it holds."""
        asked = _decoded(body, LoadAdapterRequest)
        async with self._turn:
            replies = await self._pass_on(message)
            refused = next((reply for reply in replies.values() if not reply.is_done), None)
            if refused is None:
                self._note(asked.lora_name, asked.lora_path)
                return next(iter(replies.values()))
            if any(reply.is_done for reply in replies.values()):
                await self._unload_everywhere(asked.lora_name)
                logger.error("The adapter %s could not be loaded by all replicas: it is unloaded.", asked.lora_name)
            elif asked.load_inplace:
                await self._see_whether_it_stayed(asked.lora_name)
            return refused

    async def unload(self, message: bytes, body: bytes) -> Reply:
        asked = _decoded(body, UnloadAdapterRequest)
        async with self._turn:
            replies = await self._pass_on(message)
            done = next((reply for reply in replies.values() if reply.is_done), None)
            if done is not None:
                self._note(asked.lora_name, None)
            return done or next(iter(replies.values()))

    @contextlib.asynccontextmanager
    async def joining(self, name: str, address: ReplicaAddress) -> AsyncIterator[None]:
        """Brings a replica that has just started to what the others have. Inside, nothing changes."""
        async with self._turn:
            client = ReplicaClient(address)
            try:
                # What went makes room for what came.
                for adapter, path in sorted(self._changes.items(), key=lambda change: change[1] is not None):
                    reply = await self._repeat(client, adapter, path)
                    if path is not None and not reply.is_done:
                        said = reply.body.decode(errors="replace")
                        logger.error("Replica %s cannot load the adapter %s again: %s", name, adapter, said)
            except ReplicaLostError:
                logger.error("Replica %s ended while it loaded its adapters.", name)
            finally:
                client.close()
            yield

    async def _repeat(self, client: ReplicaClient, adapter: str, path: str | None) -> Reply:
        if path is None:
            return await self._ask(client, UNLOAD, UnloadAdapterRequest(lora_name=adapter))
        return await self._ask(client, LOAD, LoadAdapterRequest(lora_name=adapter, lora_path=path, load_inplace=True))

    async def _unload_everywhere(self, adapter: str) -> None:
        for client in list(self._replicas.clients.values()):
            with contextlib.suppress(ReplicaLostError):
                await self._repeat(client, adapter, None)
        self._note(adapter, None)

    async def _see_whether_it_stayed(self, adapter: str) -> None:
        """One that was to be replaced may have lost its place."""
        for client in list(self._replicas.clients.values()):
            with contextlib.suppress(ReplicaLostError):
                _, listed = await client.ask("/v1/models", key=self._key)
                if adapter not in {card.id for card in msgspec.json.decode(listed, type=ModelList).data}:
                    await self._unload_everywhere(adapter)
                return

    def _note(self, adapter: str, path: str | None) -> None:
        self._changes.pop(adapter, None)  # the order is that of the last changes
        self._changes[adapter] = path

    async def _pass_on(self, message: bytes) -> Mapping[str, Reply]:
        """The replies of all replicas; of those that ended meanwhile there is none."""
        asked = dict(self._replicas.clients)
        replies = await asyncio.gather(*(_send(client, message) for client in asked.values()))
        found = {name: reply for name, reply in zip(asked, replies, strict=True) if reply is not None}
        if not found:
            raise HttpError(503, "No replica is running now. Try again later.")
        return found

    async def _ask(self, client: ReplicaClient, path: str, request: msgspec.Struct) -> Reply:
        status, body = await client.ask(path, method="POST", key=self._key, body=msgspec.json.encode(request))
        return Reply(status, body)


async def _send(client: ReplicaClient, message: bytes) -> Reply | None:
    try:
        response = await client.send(message)
        try:
            content_type = response.headers.get(b"content-type", _JSON.encode()).decode()
            return Reply(response.status, await response.read_all(), content_type)
        finally:
            response.close()
    except ReplicaLostError:
        return None


def _decoded(body: bytes, wire_type: type[Wire]) -> Wire:
    """Without names where it cannot be read: replicas refuse it in their words."""
    try:
        decoded = BodyDecoder(wire_type).decode(body)
    except (HttpError, RequestError):
        return wire_type()
    assert isinstance(decoded, wire_type)
    return decoded
