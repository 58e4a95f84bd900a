"""The settings of `facet deploy`; flags are made from these fields."""

from dataclasses import dataclass

from facet.config import ServerConfig, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployConfig(ServerConfig):
    """How Ray Serve runs the replicas. Everything else is as for `facet serve`."""

    name: str = setting("facet", "name of the application; one that is deployed already is updated")
    max_replicas: int | None = setting(
        None,
        "maximum number of replicas; --data-parallel-size is then the least, and load decides; default: no scaling",
    )
    target_requests: int = setting(32, "number of requests per replica that --max-replicas scales for")
    delete: bool = setting(False, "remove the application of that name from the cluster")
