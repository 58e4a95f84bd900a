"""A replica process whose engine says one word, without torch: what a fleet runs in tests."""

import os
from typing import Any

import facet.server.run
from facet.adapter import read_adapter_sources
from facet.config import EngineConfig
from facet.engine.messages import EngineInfo
from facet.errors import ConfigError
from facet.replicas.replica_process import run_replica
from tests.server.scripted_engine import ScriptedEngine

REFUSED = "refused"  # a device that no replica can have


class StandIn(ScriptedEngine):
    is_dead = False

    def __init__(self, config: EngineConfig, *, show_progress: bool, ranks: None = None) -> None:
        if config.device == REFUSED:
            raise ConfigError("There is no such device.")
        word = 300 + int(os.environ["CUDA_VISIBLE_DEVICES"])
        adapters = {source.name: source.path for source in read_adapter_sources(config.lora_modules)}
        super().__init__(lambda request: [word, 1], EngineInfo(480, (1,), 4096, "", ()), adapters=adapters)


def run_stand_in(*arguments: Any) -> None:
    facet.server.run.EngineProcess = StandIn  # type: ignore[assignment,misc]
    run_replica(*arguments)
