"""What a load takes at least on an H200, by what its model must read and multiply.

Prompts take their products over 700 TFLOP/s, a step what it reads over 4.26 TB/s: both are what that card sustains in
plain kernels. A step of c requests reads every matrix once, the experts that c rows choose at random, and the keys and
values that each request sees half-way through its answer. Nothing else is counted, and nothing overlaps.
"""

from facet.model_spec import LayerSpec, ModelSpec

READ_BYTES, OPERATIONS = 4.26e12, 700e12  # a second
VALUE_BYTES = 2


def prompt_seconds(spec: ModelSpec, num_tokens: int, *, fast_prefill: bool = True) -> float:
    """Of all layers that must be computed for every token."""
    layers = spec.layers[: spec.first_shared_layer] if fast_prefill else spec.layers
    operations = sum(
        2 * num_tokens * layer.values_per_row(spec.hidden_size) + 4 * layer.query_width * _keys_seen(layer, num_tokens)
        for layer in layers
    )
    return operations / OPERATIONS


def _keys_seen(layer: LayerSpec, num_tokens: int) -> float:
    """By all tokens of a prompt together."""
    window = min(layer.window or num_tokens, num_tokens)
    return window * num_tokens - window * window / 2


def step_seconds(spec: ModelSpec, num_requests: int, context_len: float) -> float:
    matrices = spec.hidden_size * spec.vocab_size
    seen = 0.0
    for layer in spec.layers:
        matrices += layer.values_per_row(spec.hidden_size)
        if layer.moe is not None:
            # Of the experts, those that any of the rows chose; the line above has those of one row.
            chosen = layer.moe.num_chosen
            share = 1 - (1 - chosen / layer.moe.num_experts) ** num_requests
            used = layer.moe.num_experts * share - chosen
            matrices += int(used * 3 * layer.moe.width * spec.hidden_size)
        seen += layer.stored_width * min(layer.window or context_len, context_len)
    return VALUE_BYTES * (matrices + num_requests * seen) / READ_BYTES


def request_seconds(
    spec: ModelSpec, input_len: int, output_len: int, num_requests: int, *, fast_prefill: bool = True
) -> float:
    """Of one request among so many, all steps full: prompts one by one, steps shared by all."""
    step = step_seconds(spec, num_requests, input_len + output_len / 2)
    return prompt_seconds(spec, input_len, fast_prefill=fast_prefill) + output_len * step / num_requests
