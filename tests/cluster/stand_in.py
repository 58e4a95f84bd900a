"""A replica on Ray whose engine says words at a steady pace, without torch."""

import facet.server.run
from facet.cluster.replica import Replica
from facet.config import EngineConfig, ServerConfig
from facet.engine.messages import EngineInfo
from facet.engine.ray_cluster import NodeFacts
from tests.server.scripted_engine import ScriptedEngine

WORD = 300
SECONDS_PER_TOKEN = 0.05


class SteadyEngine(ScriptedEngine):
    is_dead = False

    def __init__(self, config: EngineConfig, *, show_progress: bool, ranks: None = None) -> None:
        info = EngineInfo(480, (1,), 4096, "", ())
        super().__init__(lambda request: [WORD] * 1000, info, seconds_per_turn=SECONDS_PER_TOKEN)


class StandInReplica(Replica):
    def __init__(self, config: ServerConfig, expected: NodeFacts) -> None:
        facet.server.run.EngineProcess = SteadyEngine  # type: ignore[assignment,misc]
        super().__init__(config, expected)
