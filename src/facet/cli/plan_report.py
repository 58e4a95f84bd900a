"""Formats a memory plan as tables and as JSON. Counts nothing itself."""

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from facet.engine.capacity import Capacity

if TYPE_CHECKING:
    from facet.engine.memory_plan import MemoryPlan


ESTIMATED = (
    "Estimated are activations and what a driver and others take. A starting engine measures them: on an H200, engines "
    "found 0.02 to 0.4 GiB more for the KV cache than is planned here."
)


def head_lines(plan: "MemoryPlan") -> list[str]:
    gpus = "one GPU" if plan.num_gpus == 1 else f"{plan.num_gpus} GPUs"
    lines = [f"{plan.model}: {plan.spec.architecture}, {plan.dtype}, on {gpus}. All figures are per GPU."]
    return [*lines, *([plan.division] if plan.division else [])]


def memory_table(plan: "MemoryPlan") -> Table:
    table = _table("Memory per GPU", "use", "GiB", "source")
    table.columns[2].justify = "left"
    how = f"counted: {plan.weights.line}" if plan.weights.line else f"counted: all in {plan.dtype}"
    table.add_row("weights", _gib(plan.weights.total), how)
    if plan.weights.on_host:
        table.add_row("in host memory", _gib(plan.weights.on_host), "--embeddings-on-cpu; not of the GPU's memory")
    if plan.towers:
        table.add_row("towers", _gib(plan.towers), "counted: weights that read pictures and sound")
    if plan.drafter:
        table.add_row("drafter", _gib(plan.drafter), "counted: weights of the model that drafts")
    if plan.adapters:
        table.add_row("adapters", _gib(plan.adapters), "counted: room for as many as may be loaded")
    table.add_row("rotary tables", _gib(plan.tables), f"counted: {plan.capacity.max_model_len:,} positions")
    memory = plan.gpu_memory
    if memory is None:
        table.add_row("KV cache", _gib(plan.capacity.num_bytes), "given by --kv-cache-memory-bytes, in whole pages")
        return table
    table.add_row("activations", _gib(memory.activations), "estimated from shapes, rather high")
    table.add_row("driver and others", _gib(memory.others), "estimated, rather high")
    table.add_row("graphs", _gib(memory.graphs), "counted as by the engine, of such activations")
    table.add_row("sampling", _gib(memory.sampling), "counted as by the engine: the most that requests can use")
    if plan.encoder is not None:
        table.add_row("tower activations", _gib(memory.towers), "estimated from shapes, as by the engine")
        table.add_row("encoder cache", _gib(memory.encoder_cache), f"counted: {plan.encoder.num_rows:,} rows of media")
    table.add_row("KV cache", _gib(memory.cache), "what is left")
    free = memory.total * (1 - plan.gpu_memory_utilization)
    table.add_row("kept free", _gib(free), f"--gpu-memory-utilization {plan.gpu_memory_utilization}")
    table.add_row("total", _gib(memory.total), "")
    return table


def kind_table(plan: "MemoryPlan") -> Table:
    """A table of what a token costs."""
    groups = plan.capacity.layout.groups
    windows = "".join(f" ({group.window:,} tokens)" for group in groups if group.window is not None)
    table = _table(
        f"Bytes of keys and values, including scales; the windows{windows} of a request are a fixed cost",
        "KV dtype",
        *(f"{group.kind} token" for group in groups),
        "MiB of windows",
        "KiB per page",
        f"{' / '.join(group.kind for group in groups)} tokens per page",
    )
    for name, capacity in plan.capacities.items():
        if not isinstance(capacity, Capacity):
            table.add_row(_lines_of(name), *["-"] * (len(groups) + 3))
            continue
        layout = capacity.layout
        table.add_row(
            _lines_of(name),
            *(f"{group.bytes_per_token + group.scale_bytes_per_token:,}" for group in layout.groups),
            f"{capacity.window_bytes(capacity.max_model_len) / 2**20:,.1f}",
            f"{layout.total_page_bytes / 2**10:,.0f}",
            " / ".join(f"{group.tokens_per_block:,}" for group in layout.groups),
        )
    return table


def capacity_table(plan: "MemoryPlan") -> Table:
    table = _table(
        "What fits: tokens, the longest request, and requests at once by length",
        "KV dtype",
        f"{plan.capacity.layout.groups[-1].kind} tokens",
        "longest",
        *(_short(length) for length in plan.lengths),
    )
    for name, capacity in plan.capacities.items():
        if not isinstance(capacity, Capacity):
            table.add_row(_lines_of(name), *["-"] * (2 + len(plan.lengths)))
            continue
        table.add_row(
            _lines_of(name),
            f"{capacity.tokens(capacity.layout.groups[-1]):,}",
            f"{_longest(plan, capacity):,}",
            *(f"{capacity.sequences(length).num_sequences:,}" for length in plan.lengths),
        )
    return table


def _table(title: str, first: str, *columns: str) -> Table:
    """A table that fits into eighty columns, so that numbers are never cut off."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def notes(plan: "MemoryPlan") -> list[str]:
    capacity = plan.capacity
    lines = [
        f"Requests at once leave room for one full step of {capacity.max_num_batched_tokens:,} tokens; --max-num-seqs "
        f"allows {capacity.max_num_seqs}. The longest request is one that runs alone; the model allows "
        f"{plan.spec.max_positions:,} tokens.",
        *([ESTIMATED] if plan.gpu_memory is not None else []),
        f"With --kv-cache-dtype {plan.asked} a server would print{' about' * (plan.gpu_memory is not None)}:",
        *(f"  {line}" for line in (*capacity.lines(), *(() if plan.encoder is None else (plan.encoder.line(),)))),
    ]
    lines += [f"{name}: {error}" for name, error in plan.capacities.items() if not isinstance(error, Capacity)]
    return lines


def verdict(plan: "MemoryPlan") -> str:
    """The last line: that it fits, and how much of it."""
    capacity = plan.capacity
    num_requests = max(1, capacity.sequences(capacity.max_model_len).num_sequences)
    requests = "1 request" if num_requests == 1 else f"{num_requests:,} requests"
    return f"{plan.model} fits: {requests} at once of the full context, {capacity.max_model_len:,} tokens."


def as_json(plan: "MemoryPlan") -> dict[str, Any]:
    """The report in bytes and tokens, all per GPU."""
    memory = plan.gpu_memory
    return {
        "model": plan.model,
        "architecture": plan.spec.architecture,
        "dtype": plan.dtype,
        "num_gpus": plan.num_gpus,
        "weights": {
            "bytes": plan.weights.total,
            "quantized_bytes": plan.weights.quantized,
            "fill_bytes": plan.weights.fill,
            "unquantized_bytes": plan.weights.unquantized,
            "host_bytes": plan.weights.on_host,
            "tower_bytes": plan.towers,
            "drafter_bytes": plan.drafter,
            "adapter_bytes": plan.adapters,
            "rotary_table_bytes": plan.tables,
            "format": None if plan.weights.main_format is None else plan.weights.main_format.codes,
            "group_size": None if plan.weights.main_format is None else plan.weights.main_format.scales.group,
        },
        "gpu_memory": None
        if memory is None
        else {
            "total": memory.total,
            "utilization": plan.gpu_memory_utilization,
            "weights": memory.weights,
            "activations_estimated": memory.activations,
            "others_estimated": memory.others,
            "graphs": memory.graphs,
            "sampling": memory.sampling,
            "tower_activations_estimated": memory.towers,
            "encoder_cache": memory.encoder_cache,
            "kv_cache": memory.cache,
        },
        "max_model_len": plan.capacity.max_model_len,
        "max_num_batched_tokens": plan.capacity.max_num_batched_tokens,
        "max_num_seqs": plan.capacity.max_num_seqs,
        "kv_cache_dtype": plan.asked,
        "verdict": verdict(plan),
        "kv_cache": {
            name: _capacity_json(plan, capacity) if isinstance(capacity, Capacity) else {"error": str(capacity)}
            for name, capacity in plan.capacities.items()
        },
    }


def _capacity_json(plan: "MemoryPlan", capacity: Capacity) -> dict[str, Any]:
    layout = capacity.layout
    return {
        "bytes": capacity.num_bytes,
        "num_pages": capacity.num_blocks,
        "page_bytes": layout.total_page_bytes,
        "scale_bytes_of_a_page": layout.scale_page_bytes,
        "kinds": {
            group.kind: {
                "window": group.window,
                "bytes_per_token": group.bytes_per_token,
                "scale_bytes_per_token": group.scale_bytes_per_token,
                "tokens_per_page": group.tokens_per_block,
                "tokens_in_all": capacity.tokens(group),
                "dtypes": list(group.dtypes),
            }
            for group in layout.groups
        },
        "window_bytes_per_request": capacity.window_bytes(capacity.max_model_len),
        "longest_request": _longest(plan, capacity),
        "requests_at_once": {str(length): capacity.sequences(length).num_sequences for length in plan.lengths},
    }


def _longest(plan: "MemoryPlan", capacity: Capacity) -> int:
    """The longest request that memory and model allow."""
    longest = capacity.longest_request
    return plan.spec.max_positions if longest is None else min(longest, plan.spec.max_positions)


def _lines_of(name: str) -> str:
    """A dtype for each kind, a line each."""
    return name.replace(",", "\n")


def _short(num_tokens: int) -> str:
    return f"{num_tokens // 1024}K" if num_tokens % 1024 == 0 else f"{num_tokens:,}"


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f}"
