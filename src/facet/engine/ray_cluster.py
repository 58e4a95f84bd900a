"""Connects this process to a Ray cluster, and checks that its nodes have what this machine has."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from facet.engine.weights_digest import digest_of
from facet.errors import ConfigError
from facet.version import __version__

INSTALL = "pip install 'facet-llm[cluster]'"
_SECONDS_TO_REACH = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What processes of one engine must have in common, as one of them finds it where it runs."""

    host: str
    process_id: int
    facet: str
    torch: str
    model: str
    digest: str | None  # of the model's files; None: they are not there


def connect() -> Any:
    """The module `ray`, connected to the cluster that RAY_ADDRESS names, or to the one on this machine."""
    try:
        import ray
    except ImportError:
        raise ConfigError(f"Ray is not installed, which this needs: {INSTALL}.") from None
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "auto")
    _check_reachable(address)
    try:
        ray.init(address=address, namespace="facet", logging_level="WARNING", log_to_driver=True)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = next(iter(str(error).split("\n")), "")
        raise ConfigError(
            f"No Ray cluster can be used at {address}: {reason} Start one with `ray start --head`, or name one in "
            "RAY_ADDRESS (host:port)."
        ) from None
    return ray


def _check_reachable(address: str) -> None:
    """Refuses a cluster that cannot be reached: Ray itself would try for a minute."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", or something that Ray will judge
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_REACH).close()
    except OSError as error:
        raise ConfigError(
            f"No Ray cluster answers at {address} (RAY_ADDRESS): {error.strerror or error}. Start one with "
            "`ray start --head`, or correct the address."
        ) from None


def facts_of(model: str, host: str) -> NodeFacts:
    """Facts about the machine that this process runs on."""
    from importlib.metadata import version

    folder = Path(model)
    return NodeFacts(
        host=host,
        process_id=os.getpid(),
        facet=__version__,
        torch=version("torch"),
        model=model,
        digest=digest_of(folder) if folder.exists() else None,
    )


def check_alike(here: NodeFacts, others: list[NodeFacts]) -> None:
    """Refuse nodes whose software or weights differ: their ranks would compute different models."""
    for there in others:
        for name, mine, theirs in (("Facet", here.facet, there.facet), ("torch", here.torch, there.torch)):
            if mine != theirs:
                raise ConfigError(
                    f"Node {there.host} of the Ray cluster has {name} {theirs}, but this machine has {mine}. Install "
                    "the same version everywhere."
                )
        if here.digest is None:
            continue  # not compared: each node gets the model by its name
        if there.digest is None:
            raise ConfigError(
                f"Node {there.host} of the Ray cluster has no {here.model}. Put the model at the same path on every "
                "node, or on a disk that they share."
            )
        if there.digest != here.digest:
            raise ConfigError(
                f"The files in {here.model} differ between this machine and node {there.host} of the Ray cluster. Copy "
                "the same ones everywhere."
            )
