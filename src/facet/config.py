"""The settings a user can give, as frozen configs; command-line flags and their help are made from these fields.

A field may be None or "auto", which `resolve` replaces by a definite value in a second frozen object. Nothing writes
to a config later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

# `auto`: the longest that fits into the memory of the cache; None: the model's own limit, which has to fit.
ContextLength = int | Literal["auto"] | None

# Names that vLLM has for the methods of quantized checkpoints, and which of ours they may mean.
QUANTIZED_BY = {
    "compressed-tensors": ("compressed-tensors",),
    "awq": ("awq",),
    "awq_marlin": ("awq",),
    "gptq": ("gptq",),
    "gptq_marlin": ("gptq",),
    "auto-round": ("gptq", "awq"),
    "modelopt": ("modelopt",),
    "modelopt_fp4": ("modelopt",),
    "petit_nvfp4": ("modelopt",),
    "gguf": ("gguf",),
    "fp8": ("fp8",),
}
# Names that vLLM has for ways to read a checkpoint's files; here there is one.
_READERS = ("safetensors", "hf", "gguf", "fastsafetensors", "instanttensor", "runai_streamer")


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    also: tuple[str, ...] = (),
    is_secret: bool = False,
) -> Any:
    """A field that is also a command-line flag. `also`: other ways to write the flag, such as -q."""
    return field(default=default, repr=not is_secret, metadata={"help": help, "choices": choices, "also": also})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model to load, from where, and how it is computed."""

    model: str = setting("", "folder with a checkpoint, or its name on the Hugging Face hub (owner/name)")
    revision: str | None = setting(None, "branch, tag or commit of the model on the hub")
    hf_token: str | None = setting(
        None, "token for the hub; default: HF_TOKEN, or that of `hf auth login`", is_secret=True
    )
    download_dir: str | None = setting(None, "folder for models from the hub; default: the cache of Hugging Face")
    hf_overrides: Mapping[str, Any] | None = setting(
        None, "fields that replace those of config.json, a JSON object; objects inside it are merged"
    )
    dtype: str = setting(
        "auto",
        "data type of weights and activations; auto: the one that most of the checkpoint is stored in, but float32 for "
        "bfloat16 on a processor that cannot multiply it",
        choices=("auto", "bfloat16", "float16", "float32", "half", "float"),
    )
    load_format: str = setting(
        "auto",
        "auto: read the checkpoint's files, and so do vLLM's names of readers; dummy: random weights, for which "
        "config.json is enough",
        choices=("auto", "dummy", *_READERS),
    )
    quantization: str | None = setting(
        None,
        "quantize the matrices of attention, MLPs and experts while an unquantized checkpoint is loaded: fp8 or int8 "
        "with a scale for each row, int4 in groups of 32, per-layer gates too; a quantized checkpoint needs no flag, "
        "but its own method may be named",
        choices=("int4", "int8", "fp8", *(name for name in QUANTIZED_BY if name != "fp8")),
        also=("-q",),
    )
    quantize_head: bool = setting(
        False,
        "keep the output head in eight bits, and the token embedding with it where the two are one table",
    )
    embeddings_on_cpu: bool = setting(
        False,
        "keep the per-layer embeddings of Gemma 4 E2B, E4B and Gemma 3n in the host's memory, where the GPU reads the "
        "rows it needs: the same answers in several GiB less of its memory",
    )
    batch_invariant: bool | None = setting(
        None,
        "answers are bit for bit the same whatever else is running, at some cost in speed; default: on a GPU, with "
        "weights that are not quantized or are multiplied in int8",
    )
    language_model_only: bool = setting(
        False, "load the text decoder alone, without what a checkpoint has for pictures and sound"
    )
    mmproj: str = setting(
        "auto", "GGUF file with the towers of a GGUF file, for pictures and sound; auto: one beside it that fits"
    )
    enable_lora: bool = setting(
        False,
        "make room for adapters (LoRA) that are loaded while the engine runs; those of --lora-modules need no flag",
    )
    lora_modules: tuple[str, ...] = setting(
        (),
        "adapters to load at the start, each as NAME=PATH, a folder or a name on the Hugging Face hub; requests name "
        "one as their model",
    )
    max_loras: int | None = setting(
        None,
        "maximum number of adapters that are loaded at once, all of them in the GPU's memory; requests of any mix of "
        "them run together; default: those of --lora-modules, and with --enable-lora 8 more",
    )
    max_lora_rank: int | None = setting(
        None, "largest rank of an adapter; default: that of --lora-modules, with --enable-lora at least 16"
    )
    lora_target_modules: tuple[str, ...] = setting(
        (),
        "matrices that adapters may change, by the last part of their names such as q_proj, or experts; default: those "
        "that --lora-modules change, and with --enable-lora all but experts",
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:N; auto: the first GPU, or the CPU if there is none")
    max_model_len: int | Literal["auto"] | None = setting(
        None,
        "longest context, prompt and answer together, in tokens: a number such as 32768 or 32K, or auto for as much as "
        "fits into memory; default: the model's own limit",
    )
    seed: int = setting(0, "seed for random weights, and for requests that give no seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(ModelConfig):
    """How requests are run."""

    tensor_parallel_size: int = setting(
        1,
        "number of GPUs, or of processes on a CPU, that heads, MLPs, embeddings and the KV cache are divided among",
        also=("-tp",),
    )
    distributed_executor_backend: str = setting(
        "mp",
        "where their processes run: mp or uni: on this machine; ray: on the nodes of the Ray cluster at RAY_ADDRESS "
        "(pip install 'facet-llm[cluster]')",
        choices=("mp", "uni", "ray"),
    )
    disable_custom_all_reduce: bool = setting(
        False,
        "between GPUs of one machine, sum everything through NCCL; default: small tensors by reading each other's "
        "memory, where a check at the start finds that right and faster",
    )
    max_num_seqs: int = setting(128, "maximum number of requests that run at once; others wait")
    max_num_batched_tokens: int | None = setting(
        None,
        "maximum number of prompt tokens in one step; the one token that each generating request computes is not "
        "counted; default: 8192 on a GPU, 2048 on a CPU",
    )
    max_step_ms: float | None = setting(
        None,
        "milliseconds that a step may take while answers are generated: prompts computed beside them get as many "
        "tokens as fit; default: no limit",
    )
    gpu_memory_utilization: float = setting(
        0.9, "share of the GPU's memory that weights, activations and KV cache may use"
    )
    kv_cache_memory_bytes: int | None = setting(
        None,
        "size of the KV cache in bytes; default: what is left on a GPU; on a CPU as much as the weights take, at least "
        "512 MiB, at most a quarter of the free memory",
    )
    kv_cache_dtype: str = setting(
        "auto",
        "data type of keys and values in the cache: auto (the model's own), bfloat16, float16, fp8 (the same as "
        "fp8_e4m3), fp8_e5m2, int8_per_token_head or fp8_per_token_head; or one for each kind of layer: "
        "global=NAME,sliding=NAME",
    )
    kv_cache_dtype_skip_layers: tuple[str, ...] = setting(
        (), "layers that --kv-cache-dtype does not apply to: layer numbers, sliding or global"
    )
    enable_prefix_caching: bool = setting(
        True, "reuse the cached keys and values of requests that begin with the same tokens"
    )
    kv_sharing_fast_prefill: bool = setting(
        True, "prompt tokens skip the layers that read other layers' keys, in models that have such layers"
    )
    speculative_config: Mapping[str, Any] | None = setting(
        None,
        "compute several tokens of a request in one step where the next ones can be guessed; answers stay the same. A "
        'JSON object: {"method": "suffix"} guesses from what the request\'s own tokens went on with before, {"method": '
        '"ngram", "num_speculative_tokens": 4} does so as vLLM does, {"model": "...-assistant"} asks a drafter made '
        'for the model, and with "method": "suffix" besides, both guess; default: a drafter that lies beside a local '
        'model, on a CPU in float32 or batch-invariant with suffix, and otherwise off, as {"method": "none"} is; '
        "--spec-method, --spec-model and --spec-tokens write one field each",
        also=("-sc",),
    )
    scheduling_policy: str = setting(
        "priority",
        "order in which requests run: priority: by the priority that requests give themselves, then by arrival; fcfs: "
        "by arrival alone, so that no client can overtake others",
        choices=("priority", "fcfs"),
    )
    async_scheduling: bool = setting(True, "plan and launch the next step while the current one is still running")
    enforce_eager: bool = setting(False, "on a GPU, launch every kernel instead of replaying captured CUDA graphs")
    cudagraph_capture_sizes: tuple[int, ...] = setting(
        (),
        "numbers of requests for which a decode step is captured as a graph; default: a range up to --max-num-seqs",
        also=("--cuda-graph-sizes",),
    )
    enable_sleep_mode: bool = setting(
        False,
        "let the model sleep and wake up (POST /sleep, /wake_up): weights wait in the host's memory, and the GPU's is "
        "given back",
    )
    debug_poison_freed_blocks: bool = setting(
        False, "for debugging: fill freed cache blocks with NaN, so that reading one makes the request fail"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptConfig(EngineConfig):
    """How prompts are made, and what requests default to."""

    skip_tokenizer_init: bool = setting(False, "load no tokenizer: prompts and answers are token ids only")
    tokenizer: str | None = setting(None, "folder or hub name of another tokenizer; default: the model's own")
    tokenizer_revision: str | None = setting(None, "branch, tag or commit of that tokenizer on the hub")
    chat_template: str | None = setting(
        None, "chat template to use instead of the model's: a file, or the template itself"
    )
    trust_request_chat_template: bool = setting(
        False, "accept chat_template in requests: its text may become control tokens; rendered within limits"
    )
    default_chat_template_kwargs: Mapping[str, Any] | None = setting(
        None, "template variables for every chat, a JSON object; a request's chat_template_kwargs override them"
    )
    generation_config: str = setting(
        "auto", "where sampling defaults come from; auto: the model; vllm: neutral values; or a folder"
    )
    override_generation_config: Mapping[str, Any] | None = setting(
        None,
        'sampling defaults that override those, a JSON object such as {"temperature": 0.6}; max_new_tokens also limits '
        "every answer of a server, whatever its request says, and max_tokens is a default only",
    )
    default_thinking_token_budget: int | None = setting(
        None,
        "maximum number of tokens of the thoughts in an answer, after which they are closed and the answer goes on; 0: "
        "no thoughts; a request's thinking_token_budget overrides this; default: no limit",
    )
    loop_guard: bool = setting(
        True, "end an answer that repeats the same few tokens without end; a request's loop_guard overrides this"
    )
    structured_outputs_config: Mapping[str, Any] | None = setting(
        None, "vLLM's settings of structured output, a JSON object with backend or disable_any_whitespace"
    )
    structured_outputs_any_whitespace: bool = setting(
        False, "let constrained JSON have blanks and line breaks anywhere; default: none between its tokens"
    )
    limit_mm_per_prompt: Mapping[str, Any] | None = setting(
        None, 'maximum number of items of a kind in one prompt, a JSON object such as {"image": 4, "audio": 1}'
    )
    mm_processor_kwargs: Mapping[str, Any] | None = setting(
        None,
        "how media are prepared, a JSON object with max_soft_tokens, do_pan_and_scan or num_frames; a request's "
        "mm_processor_kwargs override them",
    )
    allowed_media_domains: tuple[str, ...] = setting(
        (),
        "hosts that media may be downloaded from, with a port where it is not the usual one; *: every public host; "
        "default: none, only data: URLs",
    )
    allowed_local_media_path: str | None = setting(
        None, "folder on this machine whose files requests may name by file: URLs; default: none"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(PromptConfig):
    """How a model is served over HTTP. Where `vllm serve` has the same setting, it has the same name."""

    data_parallel_size: int = setting(
        1,
        "number of replicas of the model on this machine, each with GPUs of its own, behind one address; SIGHUP "
        "restarts them one after the other",
        also=("-dp",),
    )
    data_parallel_backend: str = setting(
        "mp",
        "where replicas run: mp: on this machine; ray: on the nodes of the Ray cluster at RAY_ADDRESS (pip install "
        "'facet-llm[cluster]')",
        choices=("mp", "ray"),
    )
    host: str = setting("0.0.0.0", "address to listen on")
    port: int = setting(8000, "port to listen on; 0: any free port")
    uds: str | None = setting(None, "Unix socket to listen on instead of an address and a port")
    api_key: tuple[str, ...] = setting(
        (),
        "API keys; requests must carry one of them as a bearer token; default: FACET_API_KEY or VLLM_API_KEY",
        is_secret=True,
    )
    served_model_name: tuple[str, ...] = setting(
        (), "names under which clients may ask for the model; responses carry the first; default: MODEL"
    )

    enable_auto_tool_choice: bool = setting(True, "if a request offers tools, let the model decide whether to call one")
    tool_call_parser: str = setting("auto", "format of tool calls; auto: the model's own")
    reasoning_parser: str = setting("auto", "format of reasoning; auto: the model's own")
    max_logprobs: int = setting(
        20, "maximum number of log-probabilities per token that a request may ask for; -1: no limit"
    )
    return_tokens_as_token_ids: bool = setting(
        False, "log-probabilities name tokens as token_id:17 unless a request says otherwise"
    )
    enable_force_include_usage: bool = setting(
        False, "end every stream with the token usage, even if the request does not ask for it"
    )

    allowed_lora_path: str | None = setting(
        None,
        "folder whose adapters may be loaded and unloaded while the server runs (POST /v1/load_lora_adapter, "
        "/v1/unload_lora_adapter); default: none",
    )
    max_waiting_requests: int = setting(
        2048, "maximum number of waiting requests; further ones are refused with status 503 and Retry-After"
    )
    max_request_bytes: int = setting(
        64 << 20, "maximum size of a request body in bytes; larger ones are refused with 413"
    )
    request_timeout: float = setting(
        60.0, "seconds within which the headers of a request must arrive, and then its body"
    )
    timeout_keep_alive: int = setting(5, "seconds after which a connection is closed that has no request")
    shutdown_timeout: float = setting(120.0, "seconds that running requests may take to finish after SIGTERM")
    num_tokenizer_threads: int = setting(4, "number of threads that render templates and tokenize prompts")

    allowed_origins: tuple[str, ...] = setting(("*",), "CORS: allowed origins")
    allowed_methods: tuple[str, ...] = setting(("*",), "CORS: allowed methods")
    allowed_headers: tuple[str, ...] = setting(("*",), "CORS: allowed headers")
    allow_credentials: bool = setting(False, "CORS: allow credentials such as cookies")
    disable_fastapi_docs: bool = setting(False, "do not serve /docs and /openapi.json")
    root_path: str | None = setting(None, "path prefix under which a proxy exposes this server")
    ssl_keyfile: str | None = setting(None, "file with the private key for HTTPS")
    ssl_certfile: str | None = setting(None, "file with the certificate for HTTPS")
    ssl_ca_certs: str | None = setting(None, "file with the authorities whose certificates clients may have")
    ssl_cert_reqs: int = setting(
        0, "certificates of clients: 0: not asked for; 1: checked where a client has one; 2: every client needs one"
    )
    ssl_ciphers: str | None = setting(None, "ciphers for TLS 1.2, as OpenSSL writes them; default: OpenSSL's")
    enable_ssl_refresh: bool = setting(False, "read the files of HTTPS again when they change")
    uvicorn_log_level: str = setting(
        "warning", "log level of the HTTP library", choices=("critical", "error", "warning", "info", "debug", "trace")
    )
    disable_log_stats: bool = setting(False, "do not log throughput every ten seconds")
    enable_log_requests: bool = setting(False, "log a line for every answer: lengths, finish reason, seconds")
    otlp_traces_endpoint: str | None = setting(
        None, "address of an OpenTelemetry collector that gets a trace of every answer (pip install 'facet-llm[otel]')"
    )


def engine_config(config: EngineConfig, folder: Path) -> EngineConfig:
    """The part of a larger config that the engine needs, for a model that has been found.

    Keys stay with those who have them, and so does the token by which the model was downloaded.
    """
    own = EngineConfig(**{field.name: getattr(config, field.name) for field in fields(EngineConfig)})
    return replace(own, model=str(folder), revision=None, hf_token=None, download_dir=None)
