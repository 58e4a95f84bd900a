"""The settings of `facet bench serve`, with the names of `vllm bench serve`; flags are made from these fields."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from facet.config import setting
from facet.errors import ConfigError

BACKENDS = ("openai", "vllm", "openai-chat")
DATASETS = ("random", "sharegpt", "custom", "sessions", "tools", "images")
MADE_UP_TEXT = ("random", "sessions", "images")  # whose answers mean nothing, and have a length
DATASETS_FROM_FILES = ("sharegpt", "custom")
METRICS = ("ttft", "tpot", "itl", "e2el")
GOODPUT_METRICS = ("ttft", "tpot", "e2el")  # those a single request has one value of


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is sent, to which server, and what is measured."""

    backend: str = setting(
        "openai",
        "endpoint to use; openai and vllm: /v1/completions; openai-chat: /v1/chat/completions",
        choices=BACKENDS,
    )
    base_url: str | None = setting(None, "URL of the server, such as https://host/path; overrides --host and --port")
    host: str = setting("127.0.0.1", "host of the server")
    port: int = setting(8000, "port of the server")
    endpoint: str | None = setting(None, "path under the URL; default: the backend's")
    header: tuple[str, ...] = setting((), "extra headers for every request, each KEY=VALUE")
    api_key: str | None = setting(
        None, "API key, sent as a bearer token; default: the environment variable OPENAI_API_KEY"
    )
    insecure: bool = setting(False, "do not verify the server's HTTPS certificate")
    model: str | None = setting(None, "model to request; default: the first that the server lists")
    served_model_name: str | None = setting(None, "name of the model in requests; default: --model")
    tokenizer: str | None = setting(
        None, "folder or hub name of a tokenizer, to send text prompts of an exact length; default: send token ids"
    )
    vocab_size: int | None = setting(
        None, "random token ids are drawn below this; default: the tokenizer's size, or 32000 without one"
    )

    dataset_name: str = setting(
        "random",
        "random: random prompts; sharegpt: a JSON file of conversations; custom: a JSONL file with a prompt or "
        "messages per line; sessions: conversations of several turns; tools: chats with functions to call; images: "
        "chats with pictures",
        choices=DATASETS,
    )
    dataset_path: str | None = setting(None, "file to read for sharegpt and custom; folder of pictures for images")
    num_prompts: int = setting(1000, "number of requests; with sessions and tools, of conversations")
    seed: int = setting(0, "seed for prompts and arrival times")
    input_len: int | None = setting(None, "overrides --random-input-len")
    output_len: int | None = setting(None, "maximum number of tokens per answer, for every dataset")
    random_input_len: int = setting(1024, "tokens per random prompt, or in the first turn of a session")
    random_output_len: int = setting(128, "tokens per answer to a random prompt or session turn")
    random_range_ratio: float = setting(
        0.0, "random lengths are drawn from length * (1 - ratio) to length * (1 + ratio)"
    )
    random_prefix_len: int = setting(0, "length of a common prefix of all random prompts, on top of their own length")
    num_turns: int | None = setting(None, "requests per conversation; default: 5 with sessions, 1 with tools")
    turn_input_len: int = setting(64, "tokens that each further turn of a session adds")
    images_per_prompt: int = setting(1, "pictures in each prompt of images")
    image_sizes: tuple[str, ...] = setting(
        ("1024x768",), "sizes of made-up pictures, such as 1024x768 320x240, in turn"
    )

    max_concurrency: int | None = setting(None, "maximum number of requests in flight; default: no limit")
    request_rate: float = setting(math.inf, "requests (or conversations) started per second; inf: all at once")
    burstiness: float = setting(1.0, "1: Poisson arrivals; below 1: burstier; above 1: more even; inf: evenly spaced")
    ramp_up_strategy: str | None = setting(
        None, "instead of --request-rate: how the rate grows over the run", choices=("linear", "exponential")
    )
    ramp_up_start_rps: float | None = setting(None, "requests per second at the start of the ramp")
    ramp_up_end_rps: float | None = setting(None, "requests per second at the end of the ramp")
    num_warmups: int = setting(0, "number of warm-up requests before the measured ones, copies of the first")
    ready_check_timeout_sec: float = setting(0.0, "seconds to wait for a server that is not up yet")
    request_timeout: float = setting(6 * 3600.0, "seconds after which a request counts as failed")

    temperature: float | None = setting(None, "sampling temperature; default: the server's")
    top_p: float | None = setting(None, "nucleus sampling; default: the server's")
    top_k: int | None = setting(None, "top-k sampling; default: the server's")
    min_p: float | None = setting(None, "min-p sampling; default: the server's")
    ignore_eos: bool = setting(
        False, "answers run to their full length; always on with the datasets random, sessions and images"
    )
    extra_body: Mapping[str, Any] | None = setting(None, "extra fields for every request, a JSON object")

    percentile_metrics: str = setting(",".join(METRICS), "which of ttft, tpot, itl and e2el to show")
    metric_percentiles: str = setting("99", "percentiles to show, such as 50,90,99")
    goodput: tuple[str, ...] = setting(
        (), "limits in milliseconds, such as ttft:500 tpot:50 e2el:9000; goodput counts the requests within all of them"
    )
    label: str | None = setting(None, "name of the run in its result file; default: the backend")
    metadata: tuple[str, ...] = setting((), "KEY=VALUE pairs to store in the result file")
    save_result: bool = setting(False, "write the result to a JSON file")
    save_detailed: bool = setting(False, "also write the times, lengths, texts and errors of each request")
    result_dir: str | None = setting(None, "folder for the result file; default: the current one")
    result_filename: str | None = setting(
        None, "name of the result file; default: made from label, rate, model and date"
    )
    plot: str | None = setting(None, "draw latency over time and distributions into this file (needs matplotlib)")
    disable_tqdm: bool = setting(False, "show no progress bar")

    @property
    def is_chat(self) -> bool:
        return self.backend == "openai-chat"

    @property
    def percentiles(self) -> tuple[float, ...]:
        return tuple(float(part) for part in self.metric_percentiles.split(",") if part.strip())

    @property
    def shown_metrics(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.percentile_metrics.split(",") if part.strip())

    @property
    def goodput_limits(self) -> dict[str, float]:
        """The limits of goodput, milliseconds by metric."""
        pairs = (part.partition(":") for part in self.goodput)
        return {name: float(limit) for name, _, limit in pairs}


def check_config(config: BenchConfig) -> None:
    """Refuses what cannot be run, before anything is sent."""
    _check_numbers(config)
    _check_ramp(config)
    _check_lists(config)
    if config.dataset_name in DATASETS_FROM_FILES and config.dataset_path is None:
        raise ConfigError(f"--dataset-name {config.dataset_name} reads a file: name it with --dataset-path.")
    if config.dataset_name not in (*DATASETS_FROM_FILES, "images") and config.dataset_path is not None:
        raise ConfigError(
            f"--dataset-name {config.dataset_name} generates its prompts and reads no file. For {config.dataset_path} "
            "use --dataset-name sharegpt or custom."
        )
    if config.dataset_name in ("tools", "images") and not config.is_chat:
        raise ConfigError(f"--dataset-name {config.dataset_name} is made of chats: add --backend openai-chat.")


def _check_numbers(config: BenchConfig) -> None:
    least: dict[str, float] = {
        **dict.fromkeys(("num_prompts", "random_output_len", "turn_input_len", "images_per_prompt"), 1),
        **dict.fromkeys(("random_input_len", "random_prefix_len", "num_warmups", "ready_check_timeout_sec", "seed"), 0),
        **dict.fromkeys(("max_concurrency", "num_turns", "input_len", "output_len", "vocab_size"), 1),
    }
    for name, limit in least.items():
        value = getattr(config, name)
        if value is not None and not value >= limit:
            raise ConfigError(f"{_flag(name)} is {value}; it must be {limit:g} or more.")
    for name in ("request_rate", "burstiness", "request_timeout"):
        if not getattr(config, name) > 0:
            raise ConfigError(f"{_flag(name)} is {getattr(config, name)}; it must be above 0.")
    if not 0 <= config.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio is {config.random_range_ratio}; it must be at least 0 and below 1.")
    if not 0 < config.port < 65536:
        raise ConfigError(f"--port is {config.port}; it must be 1 to 65535.")


def _check_ramp(config: BenchConfig) -> None:
    start, end = config.ramp_up_start_rps, config.ramp_up_end_rps
    if config.ramp_up_strategy is None:
        if start is not None or end is not None:
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy.")
        return
    if not math.isinf(config.request_rate):
        raise ConfigError("--ramp-up-strategy decides the rate: leave --request-rate out.")
    if start is None or end is None or not 0 < start <= end:
        raise ConfigError(
            "--ramp-up-strategy needs --ramp-up-start-rps above 0 and --ramp-up-end-rps not below it; "
            f"they are {start} and {end}."
        )


def _check_lists(config: BenchConfig) -> None:
    unknown = set(config.shown_metrics) - set(METRICS)
    if unknown:
        raise ConfigError(f"--percentile-metrics knows {', '.join(METRICS)}, not {', '.join(sorted(unknown))}.")
    try:
        percentiles = config.percentiles
    except ValueError:
        percentiles = (-1.0,)
    if not all(0 <= percentile <= 100 for percentile in percentiles):
        raise ConfigError(f"--metric-percentiles is {config.metric_percentiles}; give numbers such as 50,90,99.")
    for pair in config.goodput:
        name, _, limit = pair.partition(":")
        try:
            is_number = float(limit) >= 0
        except ValueError:
            is_number = False
        if name not in GOODPUT_METRICS or not is_number:
            raise ConfigError(f"--goodput {pair}: give limits in milliseconds, such as ttft:500 tpot:50 e2el:9000.")
    for flag, pairs in (("--header", config.header), ("--metadata", config.metadata)):
        for pair in pairs:
            if not pair.partition("=")[1] or any(character in pair for character in "\r\n"):
                raise ConfigError(f"{flag} {pair!r} is not of the form KEY=VALUE.")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
