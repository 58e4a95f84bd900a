"""/v1/load_lora_adapter and /v1/unload_lora_adapter: adapters come and go while the server runs.

Only with --allowed-lora-path: what a request may load is a folder inside that one, and nothing from the hub. Requests
and answers are vLLM's. Requests that run when their adapter is unloaded are finished; new ones are refused with status
404.
"""

import asyncio
import dataclasses
import logging
import os
import time
from functools import partial
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from facet.adapter import AdapterSource, check_adapter_name, read_adapter_sources
from facet.config import ServerConfig
from facet.errors import ConfigError, RequestError
from facet.server.body import BodyDecoder
from facet.server.engine_bridge import AsleepError, EngineBridge
from facet.server.errors import HttpError
from facet.server.frontend import Frontend
from facet.server.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from facet.server.served_model import check_adapter_names, names_of

logger = logging.getLogger(__name__)

ADAPTER_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")

_LONGEST_PATH = 4096  # what Linux opens; every part of a path is looked up


class AdapterLoading:
    """Loads and unloads, one after the other."""

    def __init__(self, bridge: EngineBridge) -> None:
        self._bridge = bridge
        self._turn = asyncio.Lock()

    async def load(self, source: AdapterSource, *, replaces: bool) -> None:
        """`replaces`: an adapter that has the name. It answers until the new one does."""
        async with self._turn:
            self._check_awake()
            is_there = source.name in self._bridge.adapters
            if is_there and not replaces:
                raise RequestError(
                    f"The adapter {source.name!r} is loaded already. Choose another name, unload it first, or set "
                    "load_inplace to true.",
                    field="lora_name",
                )
            began = time.monotonic()
            self._bridge.load_adapter(dataclasses.replace(source, replaces=replaces))
            error = await self._hear()
            if error is not None:
                is_lost = is_there and source.name not in self._bridge.adapters
                gone = f" The one that was loaded as {source.name!r} is gone: its place was needed." * is_lost
                raise HttpError(400, f"{error}{gone}", param="lora_path")
            logger.info("The adapter %s is loaded, after %.1f s.", source.name, time.monotonic() - began)

    async def unload(self, name: str) -> None:
        async with self._turn:
            self._check_awake()
            if name not in self._bridge.adapters:
                loaded = ", ".join(self._bridge.adapters) or "none"
                raise HttpError(404, f"There is no adapter {name!r}. Loaded: {loaded}.", param="lora_name")
            await self._unload(name)
            logger.info("The adapter %s is unloaded.", name)

    async def _unload(self, name: str) -> None:
        self._bridge.unload_adapter(name)
        error = await self._hear()
        if error is not None:
            raise HttpError(400, error, param="lora_name")

    def _check_awake(self) -> None:
        if not self._bridge.takes_requests:
            raise AsleepError

    async def _hear(self) -> str | None:
        """Returns once the engine has done as it was told, or why it could not."""
        state = await self._bridge.adapter_states.get()
        if isinstance(state, Exception):
            raise state
        return state.error


class AdapterEndpoints:
    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._loading = AdapterLoading(frontend.bridge)
        self._load = BodyDecoder(LoadAdapterRequest)
        self._unload = BodyDecoder(UnloadAdapterRequest)

    async def load(self, request: Request) -> Response:
        frontend, root = self._frontend, self._frontend.config.allowed_lora_path
        assert root, "there is no such route without a folder"
        fields: LoadAdapterRequest
        async with frontend.reading(request, self._load) as fields:
            name, path = fields.lora_name, fields.lora_path
        for field, value in (("lora_name", name), ("lora_path", path)):
            if not value:
                raise RequestError(f"{field} is required.", field=field)
        try:
            check_adapter_name(name)
            check_adapter_names([name], frontend.model.names)
        except ConfigError as error:
            raise RequestError(str(error), field="lora_name") from None
        folder = await frontend.in_thread(partial(find_folder, path, Path(root)))
        try:
            await self._loading.load(AdapterSource(name, folder), replaces=fields.load_inplace)
        except HttpError as error:
            # The client is told of its own path. Where the folder lies on this machine is not for everyone with a key.
            raise HttpError(error.status, str(error).replace(folder, path), param=error.param) from None
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        fields: UnloadAdapterRequest
        async with self._frontend.reading(request, self._unload) as fields:
            name = fields.lora_name
        if not name:
            raise RequestError("lora_name is required.", field="lora_name")
        await self._loading.unload(name)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")


def find_folder(given: str, root: Path) -> str:
    """The folder that a request names, by its path without links. A path that is not absolute begins in `root`.

    What lies elsewhere is refused in the same words whether it exists or not.
    """
    real_root = Path(os.path.realpath(root))
    elsewhere = RequestError(
        "lora_path must name a folder inside the one of --allowed-lora-path. A path that is not absolute begins there.",
        field="lora_path",
    )
    if len(given) > _LONGEST_PATH:
        raise elsewhere
    try:
        folder = Path(os.path.realpath(real_root / given))
        if folder == real_root or not folder.is_relative_to(real_root):
            raise elsewhere
        with os.scandir(folder) as entries:
            if not all(Path(os.path.realpath(entry)).is_relative_to(real_root) for entry in entries):
                raise RequestError(
                    "lora_path names a folder with links to files outside the one of --allowed-lora-path.",
                    field="lora_path",
                )
    except OSError:
        raise HttpError(404, f"There is no folder {given!r} with an adapter.", param="lora_path") from None
    except ValueError:  # a NUL, or half a character
        raise elsewhere from None
    return str(folder)


def check_adapters(config: ServerConfig) -> None:
    """Refuses flags about adapters that a server cannot honour."""
    check_adapter_names((source.name for source in read_adapter_sources(config.lora_modules)), names_of(config))
    if not config.allowed_lora_path:  # empty means none
        return
    if not Path(config.allowed_lora_path).is_dir():
        raise ConfigError(f"--allowed-lora-path {config.allowed_lora_path} is no folder.")
    if config.data_parallel_backend == "ray":
        raise ConfigError(
            "--allowed-lora-path does not work with --data-parallel-backend ray: each replica would load by itself, "
            "and forget when it starts again. Name adapters with --lora-modules, which every replica loads, or leave "
            "one of the flags out."
        )
