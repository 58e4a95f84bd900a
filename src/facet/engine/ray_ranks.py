"""Ranks on the nodes of a Ray cluster: Ray places them, tells of their ends, and ends them with this process.

Each rank is an actor, a process of its own, which runs what a rank on one machine runs. Plans, tokens and sums do not
pass through Ray: ranks and the front process connect to each other.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from facet.config import EngineConfig
from facet.engine.addresses import FrontAddresses, Network, over_network
from facet.engine.rank_processes import SECONDS_TO_HEAR_OF_AN_END
from facet.engine.ray_cluster import NodeFacts, check_alike, connect, facts_of
from facet.engine.start_times import StartClock
from facet.errors import ConfigError
from facet.ranks import Rank

logger = logging.getLogger(__name__)

_SECONDS_TO_PLACE = 60.0
_SECONDS_TO_END = 5.0


class RayRanks:
    """One actor for each rank, in the placement group that this process is in (as a replica of Ray Serve is), or in a
    new one."""

    def __init__(self, config: EngineConfig) -> None:
        self._ray = ray = connect()
        self._size = config.tensor_parallel_size
        self._host: str = ray.util.get_node_ip_address()
        self.network: Network = over_network(self._host)
        self._device = ranks_device(config.device)
        self._group: Any = ray.util.get_current_placement_group()
        self._is_own_group = self._group is None
        self._actors: list[Any] = []
        self._runs: list[Any] = []  # of each actor, a reference that is ready once it has ended
        self._ended: list[int] = []
        self._hears, self._tells = socket.socketpair()  # a byte comes when a rank has ended
        try:
            self._place()
            facts: list[NodeFacts] = self._get([actor.facts.remote(config.model) for actor in self._actors])
            check_alike(facts_of(config.model, self._host), facts)
            self._nodes = facts
        except BaseException:
            self.close(are_asked=False)
            raise

    def _place(self) -> None:
        ray, bundle = self._ray, bundle_of(self._device)
        if self._is_own_group:
            check_resources(bundle, self._size, f"--tensor-parallel-size {self._size}")
            self._group = ray.util.placement_group([bundle] * self._size, strategy="PACK")
            if not self._group.wait(_SECONDS_TO_PLACE):
                raise ConfigError(
                    f"The Ray cluster has had no room for {self._size} ranks ({_words(bundle)} each) for "
                    f"{_SECONDS_TO_PLACE:.0f} seconds. Others use it: `ray status` says what is free."
                )
        first = 0 if self._is_own_group else 1  # this process is in bundle 0 of another's
        actor = ray.remote(RankActor)
        for index in range(self._size):
            place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=first + index
            )
            options = dict(num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), scheduling_strategy=place)
            self._actors.append(actor.options(**options).remote())

    def _get(self, references: list[Any]) -> Any:
        try:
            return self._ray.get(references)
        except self._ray.exceptions.RayError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise ConfigError(f"A node of the Ray cluster cannot run Facet: {lines[-1].strip()}") from None

    def start(self, config: EngineConfig, front: FrontAddresses, show_progress: bool) -> None:
        (port,) = self._get([self._actors[0].listen.remote()])
        secret = secrets.token_hex(16)
        is_gpu = self._device == "cuda"
        for index, actor in enumerate(self._actors):
            rank = Rank(index=index, size=self._size, gpu=0 if is_gpu else None)  # Ray shows it one GPU
            store = (self._nodes[0].host, port, secret)
            on_device = replace(config, device=self._device)
            network = self.network.at(self._nodes[index].host)
            self._runs.append(actor.run.remote(on_device, rank, network, front, show_progress, store))
        threading.Thread(target=self._watch, name="facet-ray-ranks", daemon=True).start()

    def _watch(self) -> None:
        waiting = list(self._runs)
        while waiting:
            try:
                ready, waiting = self._ray.wait(waiting)
            except Exception as error:  # whatever Ray raises where the cluster is gone, and with it every rank
                logger.debug("Ranks on the Ray cluster can be watched no longer: %s", error)
                ready, waiting = waiting, []
            self._ended += [self._runs.index(each) for each in ready]
            try:
                self._tells.send(b"!")
            except OSError:
                return  # closed: nobody listens any more

    @property
    def sentinels(self) -> Sequence[int]:
        return [self._hears.fileno()]

    @property
    def process_ids(self) -> tuple[int, ...]:
        return tuple(node.process_id for node in self._nodes if node.host == self._host)

    @property
    def all_run(self) -> bool:
        return bool(self._runs) and not self._ended

    def who_ended(self, *, is_told: bool) -> str | None:
        # A rank that lost another tells of it at once, and perhaps before Ray does.
        deadline = time.monotonic() + SECONDS_TO_HEAR_OF_AN_END
        while (killed := next(filter(self._was_killed, range(self._size)), None)) is None:
            if time.monotonic() > deadline:
                return None if is_told else "A rank on the Ray cluster ended unexpectedly."
            time.sleep(0.05)
        return f"The engine process of rank {killed} on node {self._nodes[killed].host} ended unexpectedly."

    def _was_killed(self, index: int) -> bool:
        """Whether Ray says so by now."""
        if index not in self._ended:
            return False
        try:
            self._ray.get(self._runs[index])
        except self._ray.exceptions.RayActorError:
            return True
        except self._ray.exceptions.RayError:
            return False
        return False

    def kill(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def close(self, *, are_asked: bool) -> None:
        if are_asked:
            self._ray.wait(self._runs, num_returns=len(self._runs), timeout=_SECONDS_TO_END)
        self.kill()
        if self._is_own_group and self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        self._tells.close()
        self._hears.close()


class RankActor:
    """What Ray runs on a node, in a process of its own."""

    def __init__(self) -> None:
        # Read when torch is loaded: threads without work sleep.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import ray

        self._host: str = ray.util.get_node_ip_address()
        self._listener: socket.socket | None = None

    def facts(self, model: str) -> NodeFacts:
        return facts_of(model, self._host)

    def listen(self) -> int:
        """A port of the node's own address, where ranks will meet."""
        self._listener = socket.create_server((self._host, 0))
        port: int = self._listener.getsockname()[1]
        return port

    def run(
        self,
        config: EngineConfig,
        rank: Rank,
        network: Network,
        front: FrontAddresses,
        show_progress: bool,
        meeting: tuple[str, int, str],
    ) -> None:
        """The rank, from start to end."""
        clock = StartClock()
        # Imported in this process only: the front needs no torch.
        from facet.engine.process import run_engine_process
        from facet.layers.meeting import network_store

        clock.ends("imports")
        host, port, secret = meeting
        store = network_store(host, port, rank, secret, self._listener) if rank.size > 1 else None
        # One that fails tells why before it exits; to Ray it would look as if it had been killed.
        with contextlib.suppress(SystemExit):
            run_engine_process(config, rank, network, front, clock, show_progress, store)


def ranks_device(asked: str) -> str:
    """What kind of device ranks run on, once this process is connected to a cluster."""
    import ray

    if asked == "auto":
        return "cuda" if ray.cluster_resources().get("GPU") else "cpu"
    if asked not in ("cpu", "cuda"):
        raise ConfigError(f"--device {asked} names one GPU, but Ray chooses which one each rank gets. Leave it out.")
    return asked


def bundle_of(device: str) -> dict[str, float]:
    """What a rank takes of a node."""
    return {"CPU": 1} if device == "cpu" else {"CPU": 1, "GPU": 1}


def check_resources(bundle: dict[str, float], size: int, what: str) -> None:
    """Refuse what the whole cluster could not hold, whoever else uses it."""
    import ray

    there = ray.cluster_resources()
    for name, amount in bundle.items():
        if there.get(name, 0) < size * amount:
            raise ConfigError(
                f"{what} needs {size * amount:.0f} {name}s, but the Ray cluster has {there.get(name, 0):.0f}. Use a "
                "smaller number, or add nodes."
            )


def _words(bundle: dict[str, float]) -> str:
    return " and ".join(f"{amount:.0f} {name}" for name, amount in bundle.items())
