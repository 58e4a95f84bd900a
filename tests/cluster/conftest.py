"""A Ray cluster of two nodes on this machine. Only `make cluster` collects the tests that need it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if "FACET_CLUSTER" in os.environ else ["test_ray_*.py"]

REPOSITORY = Path(__file__).parents[2]  # what Ray starts finds these modules, too
OBJECT_STORE = 80 << 20  # bytes: nothing of ours goes through it


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """The head and a second node, each with two processors as far as Ray knows. Both are processes on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]), prepend=os.pathsep)
        cluster = Cluster()
        try:
            add_node(cluster, include_dashboard=False, dashboard_agent_listen_port=None)  # any port that is free
            add_node(cluster)
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def add_node(cluster: Any, **settings: Any) -> None:
    """Once more if that fails: Ray gives a node 30 seconds to start, which a busy machine may need for its imports."""
    try:
        cluster.add_node(num_cpus=2, object_store_memory=OBJECT_STORE, **settings)
    except Exception:
        cluster.add_node(num_cpus=2, object_store_memory=OBJECT_STORE, **settings)
