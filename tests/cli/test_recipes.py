"""Command lines that public recipes for Gemma have for vLLM: each is taken as it is, and what it sets is set."""

import dataclasses
import logging
import shlex
from typing import Any

import pytest

from facet.cli import main
from facet.config import ServerConfig
from facet.idle_settings import IDLE_SETTINGS
from facet.server.run import check_accepted_flags

E4B, B31, A4B = "google/gemma-4-E4B-it", "google/gemma-4-31B-it", "google/gemma-4-26B-A4B-it"
TOOLS = "--enable-auto-tool-choice --tool-call-parser gemma4 --reasoning-parser gemma4"
TEMPLATE = "--chat-template examples/tool_chat_template_gemma4.jinja"

# What follows `vllm serve`, or the name of vLLM's image, and what it sets. The model is the first word unless said.
RECIPES: list[tuple[str, dict[str, Any]]] = [
    (f"{E4B} --max-model-len 131072", {"max_model_len": 131072}),
    (f"{A4B} --max-model-len 32768 --gpu-memory-utilization 0.90", {"gpu_memory_utilization": 0.9}),
    (f"--model {B31} --tensor-parallel-size 1 --max-model-len 32768 --host 0.0.0.0 --port 8000", {"model": B31}),
    (f"--model {E4B} --max-model-len 16384 --disable_chunked_mm_input --host 0.0.0.0 --port 8000", {"model": E4B}),
    (f'{E4B} --max-model-len 8192 --limit-mm-per-prompt \'{{"image": 4, "audio": 1}}\'', {"max_model_len": 8192}),
    (
        f"{E4B} --max-model-len 16384 --gpu-memory-utilization 0.90 {TOOLS} {TEMPLATE} --limit-mm-per-prompt "
        '\'{"image": 4, "audio": 1}\' --async-scheduling --host 0.0.0.0 --port 8000',
        {"limit_mm_per_prompt": {"image": 4, "audio": 1}},
    ),
    (
        f"{E4B} --limit-mm-per-prompt.audio 0 --limit-mm-per-prompt.image=2",
        {"limit_mm_per_prompt": {"audio": 0, "image": 2}},
    ),
    (
        f"{B31} --limit-mm-per-prompt image=4,audio=1 --kv-cache-dtype fp8",
        {"limit_mm_per_prompt": {"image": 4, "audio": 1}},
    ),
    (f"{B31} --language-model-only --kv-cache-dtype fp8 --max-num-seqs 4", {"language_model_only": True}),
    ("RedHatAI/gemma-4-E4B-it-FP8-dynamic --kv-cache-dtype fp8 --max-model-len auto", {"max_model_len": "auto"}),
    (
        f"{B31} --revision main --served-model-name {B31} llm --uvicorn-log-level=info --no-enforce-eager -tp 1 "
        '--limit-mm-per-prompt \'{"image": 0, "video": 0, "audio": 0}\'',
        {"served_model_name": (B31, "llm")},
    ),
    (
        "--model=google/gemma-4-E2B-it --tensor-parallel-size=1 --enable-log-requests --enable-chunked-prefill "
        "--enable-prefix-caching --enable-auto-tool-choice --generation-config=auto --tool-call-parser=gemma4 "
        "--dtype=bfloat16 --max-num-seqs=16 --max-model-len=32768 --reasoning-parser=gemma4 --trust-remote-code",
        {"model": "google/gemma-4-E2B-it", "max_num_seqs": 16},
    ),
    (
        "/mnt/models/gemma-4-31B-it --served-model-name=gemma --load-format=runai_streamer --dtype=bfloat16 "
        "--quantization=fp8 --kv-cache-dtype=fp8 --max-num-seqs=4",
        {"quantization": "fp8", "load_format": "runai_streamer"},
    ),
    (
        f"{E4B} --kv-cache-dtype=fp8 --dtype=bfloat16 --enforce-eager --max-num-seqs=8 --attention-backend=TRITON_ATTN "
        f"{TOOLS} --async-scheduling",
        {"enforce_eager": True},
    ),
    (
        "RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic --max-num-batched-tokens 20000 --optimization-level 3 --dtype auto "
        "--enable-prefix-caching --prefix-caching-hash-algo sha256_cbor",
        {"max_num_batched_tokens": 20000},
    ),
    (
        "google/gemma-4-E2B-it --language-model-only --compilation-config "
        '\'{"mode":3,"cudagraph_mode":"FULL_AND_PIECEWISE"}\' --enable-chunked-prefill',
        {"language_model_only": True},
    ),
    (
        "RedHatAI/gemma-3-4b-it-quantized.w4a16 --trust-remote-code -O3 "
        "--compilation-config.cudagraph_mode FULL_DECODE_ONLY",
        {},
    ),
    (
        "google/gemma-3-12b-it --task generate --trust_remote_code --dtype=half --gpu_memory_utilization=0.95 "
        "--max-num-seqs 2 --limit-mm-per-prompt image=4,video=0 --no-enable-prefix-caching",
        {"dtype": "half", "enable_prefix_caching": False, "limit_mm_per_prompt": {"image": 4, "video": 0}},
    ),
    (
        "/models/gemma-3-12b-it --host localhost --port 8787 --tensor-parallel-size 1 --pipeline-parallel-size 1 "
        "--max-num-seqs 50 --served-model-name gemma-3-12b-it",
        {"host": "localhost", "port": 8787},
    ),
    (
        "--model ./gemma-3-27b-it-W4A16 --quantization compressed-tensors --port 8030",
        {"model": "./gemma-3-27b-it-W4A16", "quantization": "compressed-tensors"},
    ),
    ("RedHatAI/gemma-3-27b-it-FP8-dynamic --disable-log-requests --max-model-len 65536", {"max_model_len": 65536}),
    ("nvidia/Gemma-4-31B-IT-NVFP4 -q modelopt --max-model-len 32k --block-size 64", {"max_model_len": 32_000}),
    (
        "unsloth/gemma-3-4b-it-GGUF:Q4_K_M --tokenizer google/gemma-3-4b-it --hf-config-path google/gemma-3-4b-it",
        {"tokenizer": "google/gemma-3-4b-it"},
    ),
    (
        "google/gemma-3n-E4B-it --gpu-memory-utilization 0.8 --swap-space 4 --max-num-batched-tokens 8K",
        {"max_num_batched_tokens": 8192},
    ),
    (
        f"{A4B} -tp=1 -pp 1 -dp 1 --enable-expert-parallel --distributed-executor-backend mp",
        {"tensor_parallel_size": 1},
    ),
    (
        f"{B31} --default-chat-template-kwargs '{{\"enable_thinking\": true}}' --override-generation-config "
        '\'{"temperature": 1.0, "top_k": 64}\' --mm-processor-kwargs \'{"max_soft_tokens": 560}\'',
        {"default_chat_template_kwargs": {"enable_thinking": True}, "mm_processor_kwargs": {"max_soft_tokens": 560}},
    ),
    (
        f"{E4B} --hf-token hf_x --download-dir /data/models --hf-overrides.text_config.sliding_window 256",
        {"hf_token": "hf_x"},
    ),
    (f'{E4B} --structured-outputs-config \'{{"backend": "xgrammar"}}\' --guided-decoding-backend xgrammar', {}),
    (
        f"{E4B} --uds /run/facet.sock --kv-cache-memory-bytes 4G",
        {"uds": "/run/facet.sock", "kv_cache_memory_bytes": 4 << 30},
    ),
    (
        f'{E4B} --speculative-config \'{{"model":"google/gemma-4-E4B-it-assistant","num_speculative_tokens":4}}\'',
        {"speculative_config": {"model": "google/gemma-4-E4B-it-assistant", "num_speculative_tokens": 4}},
    ),
    (
        f"{B31} --speculative-config.method ngram --speculative-config.num_speculative_tokens 3",
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    ),
    (f"{A4B} --kv-sharing-fast-prefill --performance-mode balanced --scheduling-policy priority --max-logprobs 20", {}),
    (
        f"{E4B} --spec-method ngram --spec_tokens 3 --scheduling-policy fcfs --return-tokens-as-token-ids "
        "--disable-fastapi-docs",
        {
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
            "scheduling_policy": "fcfs",
            "return_tokens_as_token_ids": True,
            "disable_fastapi_docs": True,
        },
    ),
    (
        f"{E4B} --spec-model=d --enable-tokenizer-info-endpoint --logprobs-mode raw_logprobs --max-cpu-loras 2 "
        "--disable-access-log-for-endpoints /health,/ping --no-enable-log-deltas --log-error-stack --fingerprint-mode "
        "hash --h11-max-incomplete-event-size 65536 --h11-max-header-count 64 --enable-offline-docs "
        "--renderer-num-workers 4 --interleave-mm-strings --mm-shm-cache-max-object-size-mb 64 "
        "--exclude-tools-when-tool-choice-none",
        {"speculative_config": {"model": "d"}},
    ),
    (
        f"{E4B} --enable-lora --max-loras 4 --max-lora-rank 64 --lora-modules sql=/adapters/sql "
        '\'{"name": "poet", "path": "owner/poet", "base_model_name": "google/gemma-4-E4B-it"}\' '
        "--max-cpu-loras 8 --lora-dtype auto --fully-sharded-loras --no-enable-tower-connector-lora",
        {
            "enable_lora": True,
            "max_loras": 4,
            "max_lora_rank": 64,
            "lora_modules": (
                "sql=/adapters/sql",
                '{"name": "poet", "path": "owner/poet", "base_model_name": "google/gemma-4-E4B-it"}',
            ),
        },
    ),
    (
        f"{E4B} --kv-cache-metrics --kv-cache-metrics-sample 0.1 --enable-mfu-metrics --no-cudagraph-metrics "
        "-ac.backend FLASH_ATTN --kernel-config '{}' --numa-bind --numa-bind-nodes 0 1 --ignore-patterns a b "
        "--safetensors-prefetch-num-threads 4 --safetensors-prefetch-block-size 16M --distributed-timeout-seconds 60 "
        "--all2all-backend mori --enable-eplb --eplb-config.window_size 100",
        {},
    ),
]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """The configs that a server would have been started with."""
    configs: list[ServerConfig] = []
    monkeypatch.setattr("facet.server.run.serve", lambda config, **_: configs.append(config) or 0)
    return configs


def test_there_are_enough_of_them() -> None:
    assert len({line for line, _ in RECIPES}) >= 25


def test_what_is_a_setting_is_not_called_idle() -> None:
    assert not set(IDLE_SETTINGS) & {field.name for field in dataclasses.fields(ServerConfig)}


@pytest.mark.parametrize(("line", "expected"), RECIPES)
def test_a_recipe(line: str, expected: dict[str, Any], served: list[ServerConfig]) -> None:
    arguments = shlex.split(line)
    assert main(["serve", *arguments]) == 0
    (config,) = served
    check_accepted_flags(config)
    expected = {"model": arguments[0], **expected}
    assert {name: getattr(config, name) for name in expected} == expected


def test_what_has_no_effect_says_so_in_a_line(served: list[ServerConfig], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert (
            main(
                ["serve", "m", "--block-size", "16", "-O3", "--no-use-v2-block-manager", "--numa-bind-nodes", "0", "1"]
            )
            == 0
        )
    assert [record.getMessage() for record in caplog.records] == [
        "--block-size 16 has no effect: the size of a page follows from the model.",
        "--optimization-level 3 has no effect: kernels are written by hand and steps captured as graphs, so there is "
        "nothing to compile.",
        "--no-use-v2-block-manager has no effect: there is one cache.",
        "--numa-bind-nodes 0 1 has no effect: the system places processes; start the server with numactl to bind it.",
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--pipeline-parallel-size 2", "--pipeline-parallel-size 2 is not possible"),
        (
            "--no-enable-chunked-prefill",
            "--no-enable-chunked-prefill is not possible: every prompt is computed in chunks",
        ),
        ("--logprobs-mode processed_logits", "those of the model's own logits"),
        ("--no-enable-tokenizer-info-endpoint", "/tokenizer_info always answers"),
        ("--no-exclude-tools-when-tool-choice-none", "the prompt never has tool definitions"),
        ("--scheduling-policy lifo", "choose from"),
        ("--default-mm-loras '{}'", "requests name their adapter as their model"),
        ("--cpu-offload-gb 10", "--quantization makes them smaller"),
        ("--kv-transfer-config '{}'", "keys and values stay in the engine"),
        ("--quantization bitsandbytes", "bitsandbytes"),
        ("--limit-mm-per-prompt image", "is not JSON"),
        ("--max-model-len 32q", "is not a number such as 8192, 32k"),
        ("--speculative-config.method", "--speculative-config"),
    ],
)
def test_what_is_refused_by_name(flags: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["serve", "m", *shlex.split(flags)])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    message = capsys.readouterr().err
    assert (code, message.count("\n")) == (2, 1)
    assert words in message
