"""The settings of `facet bench throughput` and `latency`: the engine's flags and those of vLLM's two commands.

Knows no engine: what depends on the model, such as its context, is checked once it is loaded.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from facet.bench.config import DATASETS_FROM_FILES
from facet.bench.writable import check_writable
from facet.config import ContextLength, EngineConfig, setting
from facet.errors import ConfigError, RequestError
from facet.sampling_params import SamplingParams

DEFAULT_INPUT_LEN, DEFAULT_OUTPUT_LEN = 1024, 128  # those of `facet bench serve`
# What `facet serve` lets this flag name.
_OVERRIDABLE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineBenchConfig(EngineConfig):
    """How answers are made, and where the result goes."""

    skip_tokenizer_init: bool = setting(False, "load no tokenizer: prompts and answers are token ids only")
    n: int = setting(1, "number of answers to each prompt")
    override_generation_config: Mapping[str, Any] | None = setting(
        None, 'sampling settings, a JSON object such as {"top_k": 64}; default: temperature 1, no other setting'
    )
    disable_detokenize: bool = setting(False, "do not convert the answers to text")
    output_json: str | None = setting(None, "write the result to this JSON file")
    disable_tqdm: bool = setting(False, "show no progress bar")

    @property
    def engine_settings(self) -> dict[str, Any]:
        """The engine's own fields, without the model."""
        return {field.name: getattr(self, field.name) for field in fields(EngineConfig) if field.name != "model"}

    def sampling(self, num_tokens: int) -> SamplingParams:
        """Answers of exactly this length. The model's recommended settings are not used, as in vLLM."""
        overrides = dict(self.override_generation_config or {})
        if unknown := sorted(set(overrides) - set(_OVERRIDABLE)):
            hint = " Lengths are set by --output-len." if "max" in unknown[0] else ""
            raise ConfigError(
                f"--override-generation-config names {unknown[0]!r}. Known: {', '.join(_OVERRIDABLE)}.{hint}"
            )
        try:
            return SamplingParams(
                n=self.n,
                max_tokens=num_tokens,
                ignore_eos=True,
                detokenize=not self.disable_detokenize,
                **overrides,
            )
        except RequestError as error:
            raise ConfigError(f"These sampling settings cannot be used: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputConfig(OfflineBenchConfig):
    """What is sent."""

    dataset_name: str | None = setting(
        None,
        "random: random token ids; sharegpt: a JSON file of conversations; custom: a JSONL file with a prompt per "
        "line; images: chats with pictures; default: sharegpt with --dataset-path, else random",
        choices=("random", *DATASETS_FROM_FILES, "images"),
    )
    dataset_path: str | None = setting(None, "file to read for sharegpt and custom; folder of pictures for images")
    num_prompts: int = setting(1000, "number of prompts")
    input_len: int | None = setting(None, "tokens per random prompt; default: 1024")
    output_len: int | None = setting(None, "tokens per answer; default: 128, or what the file says")
    random_range_ratio: float = setting(
        0.0, "random lengths are drawn from length * (1 - ratio) to length * (1 + ratio)"
    )
    prefix_len: int = setting(0, "length of a common prefix of all random prompts, on top of their own length")
    images_per_prompt: int = setting(1, "pictures in each prompt of images")
    image_sizes: tuple[str, ...] = setting(
        ("1024x768",), "sizes of made-up pictures, such as 1024x768 320x240, in turn"
    )

    @property
    def dataset(self) -> str:
        return self.dataset_name or ("random" if self.dataset_path is None else "sharegpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyConfig(OfflineBenchConfig):
    """What is sent, and how often."""

    # The same prompts are run again and again: their keys must not be there already.
    enable_prefix_caching: bool = setting(False, "reuse cached keys and values between iterations")
    input_len: int = setting(32, "tokens per prompt")
    output_len: int = setting(128, "tokens per answer")
    batch_size: int = setting(8, "number of prompts in the batch")
    num_iters_warmup: int = setting(10, "number of warm-up iterations")
    num_iters: int = setting(30, "number of measured iterations")


def check_throughput(config: ThroughputConfig) -> None:
    """Refuses what cannot be run, before a model is loaded."""
    _check_at_least(config, 1, "num_prompts", "input_len", "output_len", "n", "images_per_prompt")
    _check_at_least(config, 0, "prefix_len", "seed")
    if not 0 <= config.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio is {config.random_range_ratio}; it must be at least 0 and below 1.")
    if config.dataset in DATASETS_FROM_FILES:
        _check_file_dataset(config)
    elif config.dataset == "images":
        if config.skip_tokenizer_init:
            raise ConfigError("--dataset-name images is made of chats: leave --skip-tokenizer-init out.")
    elif config.dataset_path is not None:
        raise ConfigError(
            f"--dataset-name random generates its prompts and reads no file. For {config.dataset_path} use "
            "--dataset-name sharegpt or custom."
        )
    else:
        check_context(longest_random(config), config.max_model_len)
    _check_common(config)


def check_latency(config: LatencyConfig) -> None:
    """Refuses what cannot be run, before a model is loaded."""
    _check_at_least(config, 1, "input_len", "output_len", "batch_size", "num_iters", "n")
    _check_at_least(config, 0, "num_iters_warmup", "seed")
    check_context(config.input_len + config.output_len, config.max_model_len)
    _check_common(config)


def longest_random(config: ThroughputConfig) -> int:
    """Most tokens that a random prompt and its answer may have together."""
    longest = [
        math.ceil(length * (1 + config.random_range_ratio))
        for length in (config.input_len or DEFAULT_INPUT_LEN, config.output_len or DEFAULT_OUTPUT_LEN)
    ]
    return config.prefix_len + sum(longest)


def check_context(num_tokens: int, max_model_len: ContextLength) -> None:
    """`max_model_len`: None or auto if it is not known yet."""
    if isinstance(max_model_len, int) and num_tokens > max_model_len:
        raise ConfigError(
            f"Prompt and answer have up to {num_tokens} tokens, but the context is {max_model_len}. Lower --input-len "
            "or --output-len, or raise --max-model-len."
        )


def _check_at_least(config: OfflineBenchConfig, least: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; it must be {least} or more.")


def _check_file_dataset(config: ThroughputConfig) -> None:
    if config.dataset_path is None:
        raise ConfigError(f"--dataset-name {config.dataset} reads a file: name it with --dataset-path.")
    if not Path(config.dataset_path).is_file():
        raise ConfigError(f"The dataset {config.dataset_path} cannot be read: there is no such file.")
    for name, value in (("--input-len", config.input_len), ("--prefix-len", config.prefix_len)):
        if value:
            raise ConfigError(f"{name} is for random prompts only; {config.dataset_path} has prompts of given lengths.")


def _check_common(config: OfflineBenchConfig) -> None:
    config.sampling(1)
    if config.output_json is not None:
        path = Path(config.output_json)
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ConfigError(f"--output-json {path} cannot be written: name a file in a folder that exists.")
        check_writable("--output-json", path)
