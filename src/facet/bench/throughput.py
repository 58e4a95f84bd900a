"""`facet bench throughput`: runs all prompts at once through an engine in this process and counts tokens per second."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from facet.bench.config import BenchConfig
from facet.bench.datasets import make_dataset
from facet.bench.dialogue import Content, Turn
from facet.bench.offline_config import (
    DEFAULT_INPUT_LEN,
    DEFAULT_OUTPUT_LEN,
    ThroughputConfig,
    check_context,
    longest_random,
)
from facet.bench.random_prompts import DEFAULT_VOCAB_SIZE
from facet.bench.result_file import write_result
from facet.errors import ConfigError
from facet.sampling_params import SamplingParams

if TYPE_CHECKING:  # the engine is handed in: this room needs no torch
    from facet.offline.timed import TimedLLM, TimedRun

EXIT_SOME_FAILED = 1


def bench_throughput(config: ThroughputConfig, llm: "TimedLLM") -> int:
    """The exit code: 0, or 1 where an answer failed or an entry of a dataset could not be run."""
    turns, complaints = _make_turns(config, llm)
    for line in complaints:
        print(line, file=sys.stderr)
    sampling = [config.sampling(turn.max_tokens or DEFAULT_OUTPUT_LEN) for turn in turns]
    run = _timed(llm, [turn.content for turn in turns], sampling, show_progress=not config.disable_tqdm)
    # The file first: a terminal that goes away must not cost the result. Nor must a file that cannot be written.
    try:
        if config.output_json is not None:
            write_result(Path(config.output_json), throughput_result(run, len(turns)))
    finally:
        print("\n".join(throughput_lines(run, len(turns))))
    if run.errors:
        print(f"{len(run.errors)} answers failed, the first with: {run.errors[0]}", file=sys.stderr)
    return EXIT_SOME_FAILED if run.errors or complaints else 0


def _timed(
    llm: "TimedLLM", contents: Sequence[Content], sampling: Sequence[SamplingParams], *, show_progress: bool
) -> "TimedRun":
    """All contents of a dataset have the same form."""
    chats: list[Any] = [content for content in contents if not isinstance(content, str | np.ndarray)]
    if chats:
        return llm.timed_chats(chats, sampling, show_progress=show_progress)
    prompts = [content.tolist() if isinstance(content, np.ndarray) else str(content) for content in contents]
    return llm.timed(prompts, sampling, show_progress=show_progress)


def throughput_lines(run: "TimedRun", num_requests: int) -> Iterator[str]:
    """The lines of `vllm bench throughput`."""
    num_tokens = run.num_prompt_tokens + run.num_output_tokens
    yield (
        f"Throughput: {num_requests / run.seconds:.2f} requests/s, {num_tokens / run.seconds:.2f} total tokens/s, "
        f"{run.num_output_tokens / run.seconds:.2f} output tokens/s"
    )
    yield f"Total num prompt tokens:  {run.num_prompt_tokens}"
    yield f"Total num output tokens:  {run.num_output_tokens}"


def throughput_result(run: "TimedRun", num_requests: int) -> dict[str, Any]:
    """The result under the keys of `vllm bench throughput`, and the output tokens, which vLLM leaves out."""
    num_tokens = run.num_prompt_tokens + run.num_output_tokens
    return {
        "elapsed_time": run.seconds,
        "num_requests": num_requests,
        "total_num_tokens": num_tokens,
        "requests_per_second": num_requests / run.seconds,
        "tokens_per_second": num_tokens / run.seconds,
        "total_output_tokens": run.num_output_tokens,
        "output_tokens_per_second": run.num_output_tokens / run.seconds,
        "failed": len(run.errors),
    }


def _make_turns(config: ThroughputConfig, llm: "TimedLLM") -> tuple[list[Turn], list[str]]:
    """The turns to run, and a line for each entry that cannot be used."""
    is_random = config.dataset == "random"
    if is_random:
        check_context(longest_random(config), llm.max_model_len)
    load = BenchConfig(
        dataset_name=config.dataset,
        dataset_path=config.dataset_path,
        num_prompts=config.num_prompts,
        seed=config.seed,
        random_input_len=config.input_len or DEFAULT_INPUT_LEN,
        random_output_len=DEFAULT_OUTPUT_LEN,
        output_len=config.output_len,
        random_range_ratio=config.random_range_ratio,
        random_prefix_len=config.prefix_len,
        images_per_prompt=config.images_per_prompt,
        image_sizes=config.image_sizes,
        backend="openai-chat" if config.dataset == "images" else "openai",
        vocab_size=min(llm.vocab_size, DEFAULT_VOCAB_SIZE),
    )
    # Random prompts stay token ids: their length is then exact, whatever the tokenizer.
    dataset = make_dataset(load, None if is_random else llm.tokenizer)
    for line in dataset.remarks:
        print(line, file=sys.stderr)
    turns = [turn for (turn,) in dataset.conversations]
    if llm.tokenizer is None and any(isinstance(turn.content, str) for turn in turns):
        raise ConfigError(
            f"{config.dataset_path} has prompts of text, which need a tokenizer: leave --skip-tokenizer-init out."
        )
    return _fitting(turns, list(dataset.complaints), llm)


def _fitting(turns: Sequence[Turn], complaints: list[str], llm: "TimedLLM") -> tuple[list[Turn], list[str]]:
    """The turns that fit the context: a single one that does not would make the whole call fail."""
    fitting = [turn for turn in turns if _num_tokens(turn) <= llm.max_model_len]
    if len(fitting) < len(turns):
        longest = max(map(_num_tokens, turns))
        complaints.append(
            f"{len(turns) - len(fitting)} of {len(turns)} prompts are left out: with their answers they have up to "
            f"{longest} tokens, and the context is {llm.max_model_len}."
        )
    if not fitting:
        raise ConfigError(f"Nothing can be run: {complaints[-1]} Lower --output-len or raise --max-model-len.")
    return fitting, complaints


def _num_tokens(turn: Turn) -> int:
    return (turn.num_tokens or 0) + (turn.max_tokens or DEFAULT_OUTPUT_LEN)
