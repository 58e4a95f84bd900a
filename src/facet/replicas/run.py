"""`facet serve --data-parallel-size N`: several replicas on this machine behind one address."""

import asyncio
import os
import signal
import socket
import tempfile
from functools import partial
from pathlib import Path

from facet.adapter import read_adapter_sources
from facet.config import ServerConfig
from facet.replicas.fleet import Fleet
from facet.replicas.placement import place_replicas, visible_gpus
from facet.replicas.proxy_app import make_proxy_app
from facet.replicas.replica_set import ReplicaSet
from facet.replicas.shared_adapters import SharedAdapters
from facet.server.certificates import keeper_of
from facet.server.draining import DrainingServer
from facet.server.run import (
    check_accepted_flags,
    greeting,
    listening,
    logger,
    uvicorn_config,
    warn_of_strangers,
    with_key_of_environment,
)


def serve_replicas(config: ServerConfig) -> int:
    """Serve until told to stop."""
    config = with_key_of_environment(config, os.environ)
    check_accepted_flags(config)
    placements = place_replicas(config, visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))
    replicas = ReplicaSet()
    adapters = SharedAdapters(
        replicas,
        key=config.api_key[0] if config.api_key else None,
        at_start=[source.name for source in read_adapter_sources(config.lora_modules)],
    )
    settings = uvicorn_config(config, make_proxy_app(config, replicas, adapters=adapters))
    with (
        listening(config) as listener,
        tempfile.TemporaryDirectory(prefix="facet-") as folder,
        asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner,
    ):
        fleet = Fleet(config, replicas, placements, Path(folder), adapters=adapters)
        names = config.served_model_name or (config.model,)
        greet = partial(logger.info, "%s", f"{greeting(config, names, listener)} with {len(placements)} replicas")
        return runner.run(
            serve_fleet(
                fleet, DrainingServer(settings, on_listening=greet, keep_fresh=keeper_of(config)), listener, config
            )
        )


async def serve_fleet(fleet: Fleet, server: DrainingServer, listener: socket.socket, config: ServerConfig) -> int:
    """Starts the replicas, then listens. Replicas restart one by one on SIGHUP."""
    loop = asyncio.get_running_loop()
    loading = asyncio.create_task(fleet.start())
    loop.add_signal_handler(signal.SIGTERM, loading.cancel)  # the server has its own way once it listens
    try:
        await loading
        warn_of_strangers(config)
        loop.add_signal_handler(signal.SIGHUP, fleet.restart)
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not loading.cancelled() or (task is not None and task.cancelling()):  # by Ctrl-C, which the caller reports
            raise
        return 128 + signal.SIGTERM
    finally:
        await fleet.stop()
    return 0 if server.started else 1
