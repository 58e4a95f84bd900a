"""Settings of vLLM that set nothing in Facet: which are accepted, with which values, and why they have no effect.

They are accepted so that command lines written for vLLM work as they are, and refused where a value asks for something
that Facet does not do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from facet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class IdleSetting:
    reason: str  # why it has no effect, or why another value is not possible
    possible: tuple[str, ...] | None = None  # values, in small letters; None: any
    is_switch: bool = False
    also: tuple[str, ...] = ()  # other ways to write the flag
    takes_several: bool = False  # values behind one flag


def _switch(reason: str, *possible: str) -> IdleSetting:
    return IdleSetting(reason, possible or None, is_switch=True)


def _value(reason: str, *possible: str, also: tuple[str, ...] = ()) -> IdleSetting:
    return IdleSetting(reason, possible or None, also=also)


def _values(reason: str) -> IdleSetting:
    return IdleSetting(reason, takes_several=True)


def _never(reason: str, *, is_switch: bool = False) -> IdleSetting:
    return IdleSetting(reason, ("false",) if is_switch else (), is_switch)


_CHUNKS = "every prompt is computed in chunks"
_GRAPHS = "graphs are captured for the sizes of --cudagraph-capture-sizes"
_NO_COMPILER = "kernels are written by hand and steps captured as graphs, so there is nothing to compile"
_ONE_ENGINE = "a server runs one engine"
_MEDIA_CACHE = "prepared media are cached by content, within fixed limits"
_NO_TRANSFER = "keys and values stay in the engine that computed them"
_GENERATES = "Facet generates text and nothing else"
_XGRAMMAR = "structured output is always xgrammar's"
_PARALLEL = "Facet divides a model in one way only, by --tensor-parallel-size"
_NOT_LOGGED = "prompts and answers are never logged"
_FIXED_EXPERTS = "how experts are divided among GPUs is fixed"
_READ_ONCE = "files are read in one way"
_NO_WAIT_LIMIT = "ranks wait for each other for an hour, and end at once when one of them does"
_NO_FINGERPRINT = "system_fingerprint is always null"
_NO_SUCH_METRIC = "/metrics has no such metric"
_BY_THE_SYSTEM = "the system places processes; start the server with numactl to bind it"
_64_KIB = "the request line and the headers may have 64 KiB together"

IDLE_SETTINGS: Mapping[str, IdleSetting] = {
    # Memory and the cache
    "block_size": _value("the size of a page follows from the model"),
    "swap_space": _value("requests that must wait are computed again, not swapped"),
    "cpu_offload_gb": _value("weights are not offloaded; --quantization makes them smaller", "0", "0.0"),
    "num_gpu_blocks_override": _never("the size of the cache is set with --kv-cache-memory-bytes"),
    "prefix_caching_hash_algo": _value("prefixes are found by a hash of their own"),
    "calculate_kv_scales": _switch("8-bit keys and values need no calibration"),
    "disable_sliding_window": _switch("sliding layers always keep their window", "false"),
    "disable_hybrid_kv_cache_manager": _switch("sliding layers always store their window alone"),
    "preemption_mode": _value("requests that must wait are computed again"),
    "kv_transfer_config": _never(_NO_TRANSFER),
    "kv_events_config": _never(_NO_TRANSFER),
    "kv_offloading_size": _never(_NO_TRANSFER),
    "kv_offloading_backend": _never(_NO_TRANSFER),
    # Kernels and graphs
    "attention_backend": _value("attention has one kernel for each kind of step"),
    "attention_config": _value("attention has one kernel for each kind of step", also=("-ac",)),
    "kernel_config": _value("each operation has kernels of its own"),
    "moe_backend": _value("experts have kernels of their own"),
    "linear_backend": _value("products have kernels of their own"),
    "mm_encoder_attn_backend": _value("towers have one attention"),
    "compilation_config": _value(_NO_COMPILER, also=("-cc",)),
    "optimization_level": _value(_NO_COMPILER, also=("-O",)),
    "performance_mode": _value("there is one mode"),
    "max_seq_len_to_capture": _value(_GRAPHS),
    "max_cudagraph_capture_size": _value(_GRAPHS),
    "disable_cascade_attn": _switch("there is no cascade attention"),
    "enable_flashinfer_autotune": _switch("nothing is tuned at start-up"),
    # Several GPUs and processes
    "pipeline_parallel_size": _value(_PARALLEL, "1", also=("-pp",)),
    "data_parallel_size_local": _value(_ONE_ENGINE, "1", also=("-dpl",)),
    "decode_context_parallel_size": _value(_PARALLEL, "1", also=("-dcp",)),
    "prefill_context_parallel_size": _value(_PARALLEL, "1", also=("-pcp",)),
    "enable_expert_parallel": _switch(_FIXED_EXPERTS),
    "all2all_backend": _value(_FIXED_EXPERTS),
    "enable_eplb": _switch(_FIXED_EXPERTS),
    "eplb_config": _value(_FIXED_EXPERTS),
    "expert_placement_strategy": _value(_FIXED_EXPERTS),
    "distributed_timeout_seconds": _value(_NO_WAIT_LIMIT),
    "cpu_distributed_timeout_seconds": _value(_NO_WAIT_LIMIT),
    "numa_bind": _switch(_BY_THE_SYSTEM),
    "numa_bind_nodes": _values(_BY_THE_SYSTEM),
    "numa_bind_cpus": _values(_BY_THE_SYSTEM),
    "max_parallel_loading_workers": _value("weights are read by one reader for each GPU"),
    "nnodes": _value("a server runs on one machine", "1", also=("-n",)),
    "mm_encoder_tp_mode": _value("towers are not divided"),
    "api_server_count": _value("one process serves HTTP", "1", also=("-asc",)),
    "renderer_num_workers": _value("--num-tokenizer-threads is the number of threads that render and tokenize"),
    "disable_frontend_multiprocessing": _switch("the engine always has a process of its own"),
    # Scheduling
    "enable_chunked_prefill": _switch(_CHUNKS, "true"),
    "long_prefill_token_threshold": _value(_CHUNKS),
    "max_num_partial_prefills": _value(_CHUNKS),
    "max_long_partial_prefills": _value(_CHUNKS),
    "disable_chunked_mm_input": _switch("media that attend both ways are never cut"),
    "num_scheduler_steps": _value("steps are planned one at a time, and overlap"),
    "use_v2_block_manager": _switch("there is one cache"),
    "stream_interval": _value("every token is streamed as it comes"),
    # The model and its files
    "trust_remote_code": _switch("code from a checkpoint is never run"),
    "code_revision": _value("code from a checkpoint is never run"),
    "hf_config_path": _value("the config is the model's own"),
    "config_format": _value("the config is read as it is", "auto", "hf"),
    "tokenizer_mode": _value("there is one tokenizer", "auto", "hf", "fast"),
    "model_impl": _value("there is one implementation", "auto", "vllm"),
    "model_loader_extra_config": _value(_READ_ONCE),
    "safetensors_load_strategy": _value(_READ_ONCE),
    "safetensors_prefetch_num_threads": _value(_READ_ONCE),
    "safetensors_prefetch_block_size": _value(_READ_ONCE),
    "ignore_patterns": _values("of a repository, only the files that a model needs are downloaded and read"),
    "use_tqdm_on_load": _switch("progress is shown in a terminal"),
    "task": _value(_GENERATES, "auto", "generate"),
    "runner": _value(_GENERATES, "auto", "generate"),
    "convert": _value(_GENERATES, "auto", "none"),
    "additional_config": _value("it is for other hardware"),
    "max_cpu_loras": _value("all adapters that are loaded are in the GPU's memory; --max-loras says how many may be"),
    "lora_dtype": _value("adapters have the type of the model", "auto", "bfloat16", "float16", "float32"),
    "fully_sharded_loras": _switch("adapters are divided among GPUs as the matrices they change are"),
    "specialize_active_lora": _switch("graphs serve any number of adapters"),
    "default_mm_loras": _never("requests name their adapter as their model"),
    "enable_tower_connector_lora": _switch("adapters change the decoder alone", "false"),
    # Media
    "mm_processor_cache_gb": _value(_MEDIA_CACHE),
    "mm_processor_cache_type": _value(_MEDIA_CACHE),
    "disable_mm_preprocessor_cache": _switch(_MEDIA_CACHE),
    "mm_shm_cache_max_object_size_mb": _value(_MEDIA_CACHE),
    "interleave_mm_strings": _switch("media stand in the prompt where they stand in the message", "true"),
    "skip_mm_profiling": _switch("the memory of towers is computed"),
    "media_io_kwargs": _never("frames of a video are set with --mm-processor-kwargs"),
    # Answers
    "chat_template_content_format": _value("contents are given to a template as it expects them"),
    "enable_reasoning": _switch("thoughts are always parsed"),
    "guided_decoding_backend": _value(_XGRAMMAR),
    "response_role": _value("answers are the assistant's", "assistant"),
    "logits_processors": _never("code of a command line is not run"),
    "enable_prompt_tokens_details": _switch("usage always includes cached tokens"),
    "enable_request_id_headers": _switch("responses always carry X-Request-Id"),
    "enable_server_load_tracking": _switch("/load always answers"),
    "enable_tokenizer_info_endpoint": _switch(
        "/tokenizer_info always answers, to those with a key where --api-key sets one", "true"
    ),
    "enable_offline_docs": _switch("/docs needs no network"),
    "exclude_tools_when_tool_choice_none": _switch(
        "with tool_choice none, the prompt never has tool definitions", "true"
    ),
    "logprobs_mode": _value(
        "log-probabilities are those of the model's own logits, before penalties, biases and the like", "raw_logprobs"
    ),
    "fingerprint_mode": _value(_NO_FINGERPRINT),
    "fingerprint_value": _value(_NO_FINGERPRINT),
    # Connections
    "h11_max_incomplete_event_size": _value(_64_KIB),
    "h11_max_header_count": _value(_64_KIB),
    # Logs
    "disable_log_requests": _switch("requests are logged only with --enable-log-requests"),
    "disable_uvicorn_access_log": _switch("the HTTP library logs accesses only with --uvicorn-log-level info"),
    "disable_access_log_for_endpoints": _value(
        "the HTTP library logs accesses only with --uvicorn-log-level info, and then all of them"
    ),
    "log_error_stack": _switch("tracebacks of the server's own errors are always logged"),
    "enable_log_outputs": _switch(_NOT_LOGGED),
    "enable_log_deltas": _switch(_NOT_LOGGED),
    "max_log_len": _value(_NOT_LOGGED),
    "show_hidden_metrics_for_version": _value("no metric is hidden"),
    "kv_cache_metrics": _switch(_NO_SUCH_METRIC),
    "kv_cache_metrics_sample": _value(_NO_SUCH_METRIC),
    "cudagraph_metrics": _switch(_NO_SUCH_METRIC),
    "enable_mfu_metrics": _switch(_NO_SUCH_METRIC),
}


def note_of(name: str, value: Any, *, is_flag: bool) -> str:
    """What to tell a user who gave this setting. Refused with a value that asks for something."""
    setting = IDLE_SETTINGS[name]
    shown = _shown(name, value, setting.is_switch, is_flag=is_flag)
    if setting.possible is not None and str(value).lower() not in setting.possible:
        raise ConfigError(f"{shown} is not possible: {setting.reason}.")
    return f"{shown} has no effect: {setting.reason}."


def _shown(name: str, value: Any, is_switch: bool, *, is_flag: bool) -> str:
    if not is_flag:
        return f"{name}={value!r}"
    flag = name.replace("_", "-")
    if is_switch:
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {' '.join(map(str, value)) if isinstance(value, list) else value}"
