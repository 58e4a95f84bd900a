"""Adapters of all replicas: what a request loads or unloads, every replica does, and those that start later do it
again.

An adapter that only some replicas could load is unloaded from the others, so that a name means the same on all.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from facet.errors import RequestError
from facet.replicas.connection import ReplicaAddress, ReplicaClient, ReplicaLostError
from facet.replicas.replica_set import ReplicaSet
from facet.server.adapter_loading import ADAPTER_PATHS
from facet.server.body import BodyDecoder
from facet.server.dialect import OPENAI
from facet.server.errors import HttpError
from facet.server.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from facet.server.protocol.tokenizing import ModelList

logger = logging.getLogger(__name__)

Wire = TypeVar("Wire", LoadAdapterRequest, UnloadAdapterRequest)
LOAD, UNLOAD = ADAPTER_PATHS
# A replica that says nothing for so long is not waited for: others could not change or start meanwhile.
_MOST_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a replica answered."""

    status: int
    body: bytes
    content_type: str = "application/json"
    is_late: bool = False  # it is not known what the replica did or will do

    @property
    def is_done(self) -> bool:
        return self.status == 200


class SharedAdapters:
    """Loads and unloads, one after the other."""

    def __init__(self, replicas: ReplicaSet, *, key: str | None = None, at_start: Collection[str] = ()) -> None:
        """`key`: with which replicas are asked for what no client asks for. `at_start`: the names of adapters that
        every replica has from its start."""
        self._replicas = replicas
        self._key = key
        self._at_start = frozenset(at_start)
        self._turn = asyncio.Lock()
        # What a replica that starts has to do, by the adapters' names: load one from its path, or, None, unload it.
        self._changes: dict[str, str | None] = {}

    async def load(self, message: bytes, body: bytes) -> Reply:
        """`message`: the client's request, as replicas get it; `body`: what it holds."""
        asked = _decoded(body, LoadAdapterRequest)
        name = asked.lora_name
        async with self._turn:
            replies = await self._pass_on(message)
            refused = next((reply for reply in replies.values() if not reply.is_done), None)
            if refused is None:
                self._note(name, asked.lora_path)
                return next(iter(replies.values()))
            done = [replica for replica, reply in replies.items() if reply.is_done or reply.is_late]
            if asked.load_inplace and (done or await self._is_lost(name)):
                logger.error("The adapter %s could not be replaced on all replicas: it is unloaded.", name)
                await self._unload(name, list(self._replicas.clients))
                self._note(name, None)
            elif done:  # what others have stays: one of that name was there before
                logger.error("The adapter %s could not be loaded by all replicas: the others unload it.", name)
                await self._unload(name, done)
            return refused

    async def unload(self, message: bytes, body: bytes) -> Reply:
        """Where a replica cannot do it, it is to be asked again: those that could have nothing to do then."""
        asked = _decoded(body, UnloadAdapterRequest)
        async with self._turn:
            replies = list((await self._pass_on(message)).values())
            if any(reply.is_done for reply in replies):
                self._note(asked.lora_name, None)
            failed = [reply for reply in replies if not reply.is_done and reply.status != 404]
            return next(iter(failed or [reply for reply in replies if reply.is_done] or replies))

    @contextlib.asynccontextmanager
    async def joining(self, name: str, address: ReplicaAddress) -> AsyncIterator[None]:
        """Brings a replica that has just started to what the others have. Inside, nothing changes."""
        async with self._turn:
            client = ReplicaClient(address)
            # What went makes room for what came.
            for adapter, path in sorted(self._changes.items(), key=lambda change: change[1] is not None):
                reply = await self._repeat(client, adapter, path)
                if reply is None:
                    logger.error("Replica %s ended while it loaded its adapters.", name)
                    break
                if path is not None and not reply.is_done:
                    said = reply.body.decode(errors="replace")
                    logger.error("Replica %s cannot load the adapter %s again: %s", name, adapter, said)
            client.close()
            yield

    async def _repeat(self, client: ReplicaClient, adapter: str, path: str | None) -> Reply | None:
        if path is None:
            return await self._ask(client, UNLOAD, UnloadAdapterRequest(lora_name=adapter))
        return await self._ask(client, LOAD, LoadAdapterRequest(lora_name=adapter, lora_path=path, load_inplace=True))

    async def _unload(self, adapter: str, replicas: Collection[str]) -> None:
        clients = [client for name, client in self._replicas.clients.items() if name in replicas]
        await asyncio.gather(*(self._repeat(client, adapter, None) for client in clients))

    async def _is_lost(self, adapter: str) -> bool:
        """Whether one that was to be replaced has lost its place on a replica."""
        if adapter not in self._changes and adapter not in self._at_start:
            return False
        clients = list(self._replicas.clients.values())
        for reply in await asyncio.gather(*(self._ask(client, "/v1/models") for client in clients)):
            if reply is not None and reply.is_done:
                listed = msgspec.json.decode(reply.body, type=ModelList)
                if adapter not in {card.id for card in listed.data}:
                    return True
        return False

    def _note(self, adapter: str, path: str | None) -> None:
        self._changes.pop(adapter, None)  # the order is that of the last changes
        if path is not None or adapter in self._at_start:
            self._changes[adapter] = path

    async def _pass_on(self, message: bytes) -> Mapping[str, Reply]:
        """The replies of all replicas; of those that ended meanwhile there is none."""
        asked = dict(self._replicas.clients)
        replies = await asyncio.gather(*(_send(client, message) for client in asked.values()))
        found = {name: reply for name, reply in zip(asked, replies, strict=True) if reply is not None}
        if not found:
            raise HttpError(503, "No replica is running now. Try again later.")
        return found

    async def _ask(self, client: ReplicaClient, path: str, request: msgspec.Struct | None = None) -> Reply | None:
        """A request of our own."""
        method, body = ("GET", b"") if request is None else ("POST", msgspec.json.encode(request))
        return await _send(client, client.message(path, method=method, key=self._key, body=body))


async def _send(client: ReplicaClient, message: bytes) -> Reply | None:
    """None: the replica has ended."""
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            response = await client.send(message)
            try:
                content_type = response.headers.get(b"content-type", b"application/json").decode()
                return Reply(response.status, await response.read_all(), content_type)
            finally:
                response.close()
    except ReplicaLostError:
        return None
    except TimeoutError:
        silent = HttpError(503, f"A replica has not answered within {_MOST_SECONDS:g} seconds. Try again later.")
        return Reply(silent.status, bytes(OPENAI.error_response(silent).body), is_late=True)


def _decoded(body: bytes, wire_type: type[Wire]) -> Wire:
    """Without names where it cannot be read: replicas refuse it in their words."""
    try:
        decoded = BodyDecoder(wire_type).decode(body)
    except (HttpError, RequestError):
        return wire_type()
    assert isinstance(decoded, wire_type)
    return decoded
