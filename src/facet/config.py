"""What the user asked for. Fields may be None or "auto"; `resolve` answers them, and nothing writes to them later.

Command-line flags and their help are made from these fields: this is the one door.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


def setting(default: Any, help: str, *, choices: tuple[str, ...] | None = None) -> Any:
    """A field that is also a command-line flag."""
    return field(default=default, metadata={"help": help, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, from where, in which numbers."""

    model: str = setting("", "a folder with a checkpoint, or its name on the hub (owner/name)")
    revision: str | None = setting(None, "branch, tag or commit on the hub")
    dtype: str = setting(
        "auto",
        "type of weights and activations; auto: the one most of the checkpoint is stored in",
        choices=("auto", "bfloat16", "float16", "float32", "half", "float"),
    )
    load_format: str = setting(
        "auto",
        "auto: read safetensors; dummy: random weights from the config alone",
        choices=("auto", "dummy"),
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N; auto takes the first GPU, or the CPU if there is none")
    max_model_len: int | None = setting(None, "longest context in tokens; default: what the model was made for")
    seed: int = setting(0, "seed of random weights and of sampling without a seed of its own")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(ModelConfig):
    """How requests are run."""

    max_num_seqs: int = setting(128, "most requests that run at once")
    max_num_batched_tokens: int | None = setting(
        None,
        "most tokens of prompts computed in one step, beside the one that each generating request adds; default: 8192 "
        "on a GPU, 2048 on a CPU",
    )
    gpu_memory_utilization: float = setting(0.9, "share of a GPU's memory that weights, activations and cache may use")
    kv_cache_memory_bytes: int | None = setting(
        None, "bytes for keys and values; default: what is left on a GPU, a quarter of the free memory on a CPU"
    )
    kv_cache_dtype: str = setting(
        "auto",
        "how keys and values are stored: auto (as the model computes), bfloat16, float16, fp8 (fp8_e4m3), fp8_e5m2, "
        "int8_per_token_head or fp8_per_token_head; or one for each kind of layer: global=NAME,sliding=NAME",
    )
    kv_cache_dtype_skip_layers: tuple[str, ...] = setting(
        (), "layers that --kv-cache-dtype leaves as the model computes: their numbers, sliding or global"
    )
    enable_prefix_caching: bool = setting(True, "keep the keys of prompts and answers for requests that begin alike")
    kv_sharing_fast_prefill: bool = setting(
        True, "prompt rows skip the layers that read other layers' keys, in models that have such layers"
    )
    batch_invariant: bool = setting(
        False,
        "answers are the same bit for bit whatever else is being answered, at the cost of speed",
    )
    async_scheduling: bool = setting(True, "plan and launch a step while the one before it still runs")
    enforce_eager: bool = setting(False, "on a GPU: launch every kernel anew instead of replaying captured graphs")
    cudagraph_capture_sizes: tuple[int, ...] = setting(
        (), "numbers of requests for which a decode step is captured as a graph; default: a ladder up to max-num-seqs"
    )
    debug_poison_freed_blocks: bool = setting(
        False, "fill freed cache blocks with NaN, so that any read of dead memory is a loud failure"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConfig(EngineConfig):
    """How prompts are made, and what requests default to."""

    skip_tokenizer_init: bool = setting(False, "load no tokenizer: prompts and answers are token ids alone")
    chat_template: str | None = setting(None, "a file with a chat template, or the template itself, instead of MODEL's")
    default_chat_template_kwargs: Mapping[str, Any] | None = setting(
        None, "template variables for every chat, a JSON object; chat_template_kwargs of a request go over them"
    )
    generation_config: str = setting(
        "auto", "where sampling defaults come from; auto: MODEL, vllm: neutral ones, or a folder"
    )
    override_generation_config: Mapping[str, Any] | None = setting(
        None, 'sampling defaults that go over those, a JSON object such as {"temperature": 0.6}'
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(PromptConfig):
    """How a model is served over HTTP. Names are those of `vllm serve`, where it has the same thing."""

    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(8000, "port to listen on; 0: any free one")
    api_key: tuple[str, ...] = setting((), "keys, one of which every request under /v1 must carry as a bearer token")
    served_model_name: tuple[str, ...] = setting(
        (), "names clients may call the model by, the first of which answers carry; default: MODEL"
    )

    enable_auto_tool_choice: bool = setting(True, "let the model decide whether to call a tool, where it is given some")
    tool_call_parser: str = setting("auto", "how tool calls are read; auto: as the model writes them")
    reasoning_parser: str = setting("auto", "how thoughts are told from answers; auto: as the model marks them")
    max_logprobs: int = setting(20, "most log-probabilities per token that a request may ask for; -1: any number")
    enable_force_include_usage: bool = setting(
        False, "end every stream with the usage, also where it was not asked for"
    )

    max_waiting_requests: int = setting(
        2048, "most requests that wait for their turn; a further one is answered with 503 and Retry-After"
    )
    max_request_bytes: int = setting(64 << 20, "largest body of a request, in bytes; a larger one is answered with 413")
    request_timeout: float = setting(60.0, "seconds within which the body of a request must have arrived")
    shutdown_timeout: float = setting(120.0, "seconds that running requests may still take after SIGTERM")
    num_tokenizer_threads: int = setting(4, "threads that render templates and tokenize prompts")

    allowed_origins: tuple[str, ...] = setting(("*",), "CORS: origins whose pages may call")
    allowed_methods: tuple[str, ...] = setting(("*",), "CORS: methods they may use")
    allowed_headers: tuple[str, ...] = setting(("*",), "CORS: headers they may send")
    allow_credentials: bool = setting(False, "CORS: whether they may send cookies")
    root_path: str | None = setting(None, "path under which a proxy shows this server")
    ssl_keyfile: str | None = setting(None, "file with the key for HTTPS")
    ssl_certfile: str | None = setting(None, "file with the certificate for HTTPS")
    uvicorn_log_level: str = setting(
        "warning", "what the HTTP library logs", choices=("critical", "error", "warning", "info", "debug", "trace")
    )
    disable_log_stats: bool = setting(False, "no line of throughput every ten seconds")
    enable_log_requests: bool = setting(False, "a line for every request: lengths, finish reason, seconds")

    # What follows exists so that a command line of vLLM's works as it is. `check_accepted_flags` refuses values that
    # would mean something Facet does not do; nothing else reads these fields.
    enable_chunked_prefill: bool = setting(True, "accepted: prompts are always computed in chunks")
    tensor_parallel_size: int = setting(1, "accepted: 1")
    limit_mm_per_prompt: Mapping[str, Any] | None = setting(None, "accepted: the server takes text alone")
    trust_remote_code: bool = setting(False, "accepted, not needed: no code of a checkpoint is ever run")
    disable_log_requests: bool = setting(
        False, "accepted: requests are not logged unless --enable-log-requests is given"
    )
    enable_prompt_tokens_details: bool = setting(True, "accepted: usage always says how many tokens were cached")
    enable_request_id_headers: bool = setting(True, "accepted: answers always carry X-Request-Id")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig(ServerConfig):
    """What would fit where: the flags of `facet serve`, and the hardware that may not be there."""

    gpu_memory: str | None = setting(None, "memory of one GPU, such as 24GiB or 24GB")
    gpus: int | None = setting(
        None, "GPUs that share the model; default: --tensor-parallel-size. Heads, MLPs and embeddings are divided"
    )
    weight_format: str = setting(
        "auto",
        "how the weights are stored; auto: as quantization_config in config.json says, or unquantized",
        choices=("auto", "none", "int4", "int8", "fp8", "nvfp4"),
    )
    weight_group_size: int | None = setting(
        None, "inputs that share a scale; default: what config.json says, or 32 for int4, 16 for nvfp4, a row otherwise"
    )
    json: bool = setting(False, "print the plan as JSON")
    plot: str | None = setting(
        None, "also draw sequences that fit against context length, to this file; needs matplotlib"
    )


def engine_config(config: EngineConfig) -> EngineConfig:
    """The part of a larger config that the engine needs; keys and the like stay with those who have them."""
    return EngineConfig(**{field.name: getattr(config, field.name) for field in fields(EngineConfig)})
