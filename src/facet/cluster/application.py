"""The two applications of Ray Serve that make up a deployment: replicas of a model, and a proxy that routes to them.

They are two so that replicas are updated one after the other while the proxy stays. `replicas` and `proxy` build them
for `facet deploy` and from a config file of Serve (`import_path: facet.cluster.application:replicas`).
"""

import math
from dataclasses import fields, replace
from typing import Any

from facet.bundled_model import find_bundled_model
from facet.cluster.config import DeployConfig
from facet.cluster.proxy import ProxyServer
from facet.cluster.replica import DEPLOYMENT, REQUESTS, Replica
from facet.config import PromptConfig, ServerConfig
from facet.engine.ray_cluster import NodeFacts, facts_of
from facet.errors import ConfigError

PROXY = "ProxyServer"
_QUIET = {"log_level": "WARNING", "enable_access_log": False}  # a proxy asks every second
_OF_REPLICAS = {"data_parallel_size", "data_parallel_backend", "served_model_name"}
_SECONDS_BETWEEN_HEALTH_CHECKS = 5.0


def replicas(settings: DeployConfig | dict[str, Any]) -> Any:
    """An application with the replicas of a model. `settings`: the flags of `facet deploy`, with underscores."""
    from ray import serve

    config = read_deploy_config(settings)
    options: dict[str, Any] = dict(
        name=DEPLOYMENT,
        logging_config=_QUIET,
        max_ongoing_requests=1000,  # of Serve's own calls; the server has limits of its own
        health_check_period_s=_SECONDS_BETWEEN_HEALTH_CHECKS,
        graceful_shutdown_timeout_s=config.shutdown_timeout + 10,
        max_constructor_retry_count=1,  # what fails once, fails again, and a user waits for the reason
        **_resources(config),
    )
    if config.max_replicas is None:
        options["num_replicas"] = config.data_parallel_size
    else:
        options["autoscaling_config"] = dict(
            min_replicas=config.data_parallel_size,
            max_replicas=config.max_replicas,
            target_ongoing_requests=config.target_requests,
            policy=dict(policy_function="facet.cluster.application:num_wanted"),
        )
    server = ServerConfig(**{field.name: getattr(config, field.name) for field in fields(ServerConfig)})
    return serve.deployment(Replica).options(**options).bind(server, expected_facts(config))


def proxy(settings: DeployConfig | dict[str, Any]) -> Any:
    """An application with one proxy, on the head node, at the address of the settings."""
    from ray import serve

    config = proxy_config(read_deploy_config(settings))
    options: dict[str, Any] = dict(
        name=PROXY,
        logging_config=_QUIET,
        num_replicas=1,
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        graceful_shutdown_timeout_s=config.shutdown_timeout + 10,
        max_constructor_retry_count=1,
    )
    return serve.deployment(ProxyServer).options(**options).bind(config)


def proxy_config(config: DeployConfig) -> DeployConfig:
    """What of the settings concerns the proxy: one that has the same need not be started again."""
    names = (
        {field.name for field in fields(ServerConfig)} - {field.name for field in fields(PromptConfig)} - _OF_REPLICAS
    )
    return DeployConfig(name=config.name, **{name: getattr(config, name) for name in names})


def num_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """How many replicas the requests need that are now inside all of them; Serve applies limits and delays."""
    requests = (context.aggregated_metrics or {}).get(REQUESTS, {})
    return math.ceil(sum(requests.values()) / context.config.target_ongoing_requests), {}


def read_deploy_config(settings: DeployConfig | dict[str, Any]) -> DeployConfig:
    config = settings if isinstance(settings, DeployConfig) else _from_file(settings)
    if not config.model:
        config = replace(config, model=str(find_bundled_model()))
    if config.data_parallel_size < 1:
        raise ConfigError(f"--data-parallel-size is {config.data_parallel_size}, but must be 1 or more.")
    if config.max_replicas is not None and config.max_replicas < config.data_parallel_size:
        raise ConfigError(
            f"--max-replicas is {config.max_replicas}, but --data-parallel-size asks for at least "
            f"{config.data_parallel_size}."
        )
    if config.target_requests < 1:
        raise ConfigError(f"--target-requests is {config.target_requests}, but must be 1 or more.")
    return config


def _from_file(settings: dict[str, Any]) -> DeployConfig:
    unknown = settings.keys() - DeployConfig.__dataclass_fields__.keys()
    if unknown:
        raise ConfigError(f"facet deploy has no setting {min(unknown)}. Its flags, with underscores, are the settings.")
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return DeployConfig(**given)


def expected_facts(config: DeployConfig) -> NodeFacts:
    """What every node must have. Files of a model that is not on this machine are not compared."""
    return facts_of(config.model, "this machine")


def _resources(config: DeployConfig) -> dict[str, Any]:
    """What a replica takes of the cluster. Ranks on one node are its children; on several, they have own places."""
    from facet.engine.ray_ranks import bundle_of, ranks_device

    size = config.tensor_parallel_size
    bundle = bundle_of(ranks_device(config.device))
    if config.distributed_executor_backend == "ray":
        return dict(
            ray_actor_options={"num_cpus": 1},
            placement_group_bundles=[{"CPU": 1}, *([bundle] * size)],
            placement_group_strategy="PACK",
        )
    return dict(ray_actor_options={"num_cpus": bundle["CPU"] * size, "num_gpus": bundle.get("GPU", 0) * size})
