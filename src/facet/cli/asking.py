"""What `facet chat` and `facet complete` share: their settings, and the server that answers them."""

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from facet.adapter import read_adapter_sources
from facet.bundled_model import NAME
from facet.chat import normalize_tools
from facet.cli.any_text import utf8_text
from facet.cli.api_client import ApiClient
from facet.cli.flags import config_from
from facet.cli.models import model_config_from, name_model
from facet.config import ModelConfig, ServerConfig, setting
from facet.errors import ConfigError, RequestError

NO_SEED = -1
# Room for adapters that come later: none do.
UNLISTED = ("enable_lora", "max_loras", "max_lora_rank", "lora_target_modules")
_ANSWER_SETTINGS = ("thinking_token_budget", "temperature", "top_p", "top_k", "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskConfig(ModelConfig):
    """Which model answers, and with which settings."""

    seed: int = setting(
        NO_SEED, "seed for sampling: the same seed gives the same answer; -1: a different one each time"
    )
    gpu_memory_utilization: float = setting(
        0.9, "share of the GPU's memory that weights, activations and KV cache may use"
    )
    url: str | None = setting(
        None, "use the server at this URL instead of loading a model; MODEL is the model's name there"
    )
    api_key: str | None = setting(None, "API key for that server")
    system: str | None = setting(None, "system prompt")
    tools: str | None = setting(None, "JSON file with tools in OpenAI's format")
    think: bool = setting(False, "let the model think before it answers")
    thinking_token_budget: int | None = setting(
        None, "maximum number of tokens of the thoughts in an answer; default: no limit of their own"
    )
    temperature: float | None = setting(
        None, "sampling temperature; 0: always the most likely token; default: the model's own"
    )
    top_p: float | None = setting(None, "sample from the most likely tokens that together have this probability")
    top_k: int | None = setting(None, "sample from this many of the most likely tokens")
    max_tokens: int | None = setting(None, "maximum number of tokens of an answer; default: the rest of the context")

    def answer_settings(self) -> dict[str, Any]:
        """The settings that were given, under the API's names."""
        given = {name: value for name in _ANSWER_SETTINGS if (value := getattr(self, name)) is not None}
        return given if self.seed == NO_SEED else {**given, "seed": self.seed}


AskConfigType = TypeVar("AskConfigType", bound=AskConfig)


def ask_config_from(options: argparse.Namespace, config_type: type[AskConfigType]) -> tuple[AskConfigType, str]:
    """The config, and the model's name for messages. With --url the model may be left out."""
    name_model(options)
    if options.url is not None:
        name = options.model = options.model or ""
        config = config_from(options, config_type)
    else:
        name = NAME if options.model is None else options.model
        config = model_config_from(options, config_type)
    if config.system is not None:
        config = dataclasses.replace(config, system=utf8_text(config.system, "--system"))
    return config, name


@dataclass(frozen=True, slots=True)
class Answerer:
    """A server to ask: a client, the model's name there, and what is known of the model."""

    client: ApiClient
    model: str
    has_template: bool = True
    context_length: int | None = None


@contextlib.contextmanager
def open_answerer(config: AskConfig, name: str) -> Iterator[Answerer]:
    """The server of --url, or a private server with the model."""
    if config.url is not None:
        yield _at_url(config.url, config.model, config.api_key)
        return
    if not config.model:
        raise ConfigError("The model's name is empty. Leave it out for the bundled model, or give one.")
    adapters = read_adapter_sources(config.lora_modules)
    if len(adapters) > 1:
        raise ConfigError(f"--lora-modules names {len(adapters)} adapters, but one answers here. Leave out the others.")
    # Imported here: to ask a server that runs needs neither torch nor an HTTP server.
    from facet.cli.private_server import private_server

    with private_server(_server_config(config, name)) as (client, model):
        asked = adapters[0].name if adapters else model.name
        yield Answerer(client, asked, model.asked.template is not None, model.max_model_len)


def _at_url(url: str, model: str, api_key: str | None) -> Answerer:
    client = ApiClient.at_url(url, api_key)
    listed = client.get("/v1/models")
    try:
        models = {entry["id"]: entry for entry in listed["data"]}
        name = model or next(iter(models))
    except (KeyError, TypeError, StopIteration):
        raise ConfigError(f"{url} lists no models under /v1/models. Is it an OpenAI-compatible server?") from None
    if name not in models:
        raise ConfigError(f"{url} has no model {name}; it has {', '.join(models)}.")
    length = models[name].get("max_model_len")
    return Answerer(client, name, context_length=length if isinstance(length, int) else None)


def _server_config(config: AskConfig, name: str) -> ServerConfig:
    shared = {field.name: getattr(config, field.name) for field in dataclasses.fields(ModelConfig)}
    return ServerConfig(
        **{**shared, "seed": max(config.seed, 0)},
        gpu_memory_utilization=config.gpu_memory_utilization,
        served_model_name=(name,),
        max_num_seqs=1,  # one request at a time: no graphs and no rows for more
        disable_log_stats=True,
        shutdown_timeout=1.0,
    )


def read_tools(path: str) -> list[dict[str, Any]]:
    """Tools from a file, checked: a list of them, or one; functions may stand alone, as the page takes them."""
    value = read_json(path, "tools")
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list):
        value = [{"type": "function", "function": tool} if _is_bare(tool) else tool for tool in value]
    try:
        tools = normalize_tools(value).tools
    except RequestError as error:
        raise ConfigError(f"{path} does not contain tools in OpenAI's format: {error}") from None
    if not tools:
        raise ConfigError(f"{path} contains no tools.")
    return list(tools)


def _is_bare(tool: Any) -> bool:
    """A function without the wrapper that OpenAI's format puts around it."""
    return isinstance(tool, dict) and "function" not in tool and "name" in tool


def read_json(path: str, what: str) -> Any:
    try:
        return json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The {what} in {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"The {what} in {path} cannot be read as JSON: {reason}.") from None
