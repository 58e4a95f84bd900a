"""Compares every kernel that the model's arithmetic chooses with its reference, at the model's own widths and, for
products, with its own weights.

On a GPU this compares Triton with plain PyTorch. A CPU uses the references, so there is nothing to compare. Products
with quantized weights are compared by what they make of prompts (`quality.py`).
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from facet.doctor.findings import Finding, measured, skipped
from facet.doctor.patient import Patient
from facet.doctor.shares import Share, share_of_tolerance, worst
from facet.kernels import add_norm, embedding, head_inputs, linear, logits, moe, per_layer_input, rms_norm, token_choice
from facet.kernels.add_norm import cases as add_norm_cases
from facet.kernels.embedding import cases as embedding_cases
from facet.kernels.head_inputs import cases as head_cases
from facet.kernels.linear import cases as linear_cases
from facet.kernels.logits import cases as logits_cases
from facet.kernels.moe import cases as moe_cases
from facet.kernels.per_layer_input import cases as per_layer_cases
from facet.kernels.rms_norm import cases as rms_norm_cases
from facet.kernels.token_choice import cases as choice_cases
from facet.kv_layout import num_stored_vectors
from facet.layers.linear import Embedding, Linear
from facet.layers.mlp import MLP
from facet.layers.moe import Experts
from facet.layers.weight import DenseWeight
from facet.model.gemma import Gemma

NUM_ROWS = (1, 5, 130)  # one request, a few, a chunk of a prompt
MAX_VALUES = 2**24  # of a product that is compared in float64


def check_kernels(patient: Patient) -> Iterator[Finding]:
    if patient.model.placement.device.type != "cuda":
        yield skipped("kernels", "a CPU uses the references themselves")
        return
    yield from compare_kernels(patient.model)


@torch.inference_mode()
def compare_kernels(model: Gemma) -> Iterator[Finding]:
    comparisons: dict[str, Callable[[Gemma], list[Share]]] = {
        "embedding": _embedding,
        "rms norm": _rms_norm,
        "add norm": _add_norm,
        "head inputs": _head_inputs,
        "linear": _linear,
        "gated linear": _gated_linear,
        "per-layer input": _per_layer_input,
        "experts": _experts,
        "soft cap": _softcap,
    }
    for name, compare in comparisons.items():
        shares = compare(model)
        if shares:
            yield worst(shares).finding(f"kernel: {name}")
    yield _token_choice(model)


def _normal(model: Gemma, *shape: int, seed: int = 0) -> Tensor:
    device = model.placement.device
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).to(model.placement.dtype)


def _embedding(model: Gemma) -> list[Share]:
    shares = []
    table = _values(model.embedding)
    if table is None:
        return []
    for num_rows in NUM_ROWS:
        token_ids = torch.arange(num_rows, device=model.placement.device) * 7919 % model.spec.vocab_size
        arguments = token_ids, table, model.embedding.scale
        got, expected = embedding.embed(*arguments), embedding.reference.embed(*arguments)
        shares.append(share_of_tolerance(got, expected, embedding_cases.EXACT))
    return shares


def _rms_norm(model: Gemma) -> list[Share]:
    spec, placement = model.spec, model.placement
    tolerance = rms_norm_cases.FLOAT32 if placement.dtype == torch.float32 else rms_norm_cases.BFLOAT16
    heads = {(layer.num_heads, layer.head_dim) for layer in spec.layers}
    shares = []
    for num_rows in NUM_ROWS:
        for shape in ((num_rows, spec.hidden_size), *((num_rows, *head) for head in heads)):
            case = rms_norm_cases.Case(shape=shape, with_weight=True)
            inputs = case.inputs(placement.dtype, str(placement.device))
            got, expected = placement.arithmetic.rms_norm(*inputs), rms_norm.reference.rms_norm(*inputs)
            shares.append(share_of_tolerance(got, expected, tolerance))
    return shares


def _add_norm(model: Gemma) -> list[Share]:
    placement, shares = model.placement, []
    for num_rows in NUM_ROWS:
        case = add_norm_cases.Case(num_rows=num_rows, width=model.spec.hidden_size)
        inputs = case.inputs(placement.dtype, str(placement.device))
        arguments = inputs.residual, inputs.update, inputs.update_weight, inputs.next_weight, add_norm_cases.EPS
        got = placement.arithmetic.add_norm(*arguments, inputs.scale)
        expected = add_norm.reference.add_norm(*arguments, inputs.scale)
        for mine, theirs in zip(got, expected, strict=True):
            assert mine is not None
            assert theirs is not None
            shares.append(share_of_tolerance(mine, theirs, add_norm_cases.TOLERANCES[placement.dtype]))
    return shares


def _head_inputs(model: Gemma) -> list[Share]:
    """Queries, and all memory around the keys and values: a write to the wrong place shows."""
    placement, shares = model.placement, []
    distinct = {(layer.attention, layer.owns_kv): layer for layer in model.spec.layers}
    for layer in distinct.values():
        stored = num_stored_vectors(layer) if layer.owns_kv else 0
        for num_rows in NUM_ROWS:
            case = head_cases.Case(
                name=layer.attention,
                num_rows=num_rows,
                num_heads=layer.num_heads,
                num_kv_heads=layer.num_kv_heads,
                head_dim=layer.head_dim,
                num_pairs=layer.rotary.num_rotated_pairs(layer.head_dim),
                num_projected=1 + stored,
                num_stored=stored,
                values_are_normed=layer.values_are_normed,
            )
            mine, theirs = (case.inputs(placement.dtype, str(placement.device)) for _ in range(2))
            got = placement.arithmetic.prepare_heads(mine.projected, case.heads, **mine.arguments)
            expected = head_inputs.reference.prepare_heads(theirs.projected, case.heads, **theirs.arguments)
            tolerance = case.tolerance(placement.dtype)
            shares += [
                share_of_tolerance(got, expected, tolerance),
                share_of_tolerance(mine.pages, theirs.pages, tolerance),
            ]
    return shares


def _linear(model: Gemma) -> list[Share]:
    # Tables that are only looked up are left out: no products are taken of them.
    linears = [m for m in model.modules() if isinstance(m, Linear) and not isinstance(m, Embedding)]
    tolerance, shares = linear_cases.TOLERANCES[model.placement.dtype], []
    for weight in _distinct_values((*linears, model.embedding)):
        for num_rows in (count for count in NUM_ROWS if count * weight.shape[0] <= MAX_VALUES):
            x = _rows_for(model, weight, num_rows)
            got, expected = model.placement.arithmetic.linear(x, weight), linear.reference.linear(x, weight)
            shares.append(share_of_tolerance(got, expected, tolerance))
    return shares


def _gated_linear(model: Gemma) -> list[Share]:
    tolerance, shares = linear_cases.TOLERANCES[model.placement.dtype], []
    for weight in _distinct_values(module.gate_up for module in model.modules() if isinstance(module, MLP)):
        for num_rows in NUM_ROWS:
            x = _rows_for(model, weight, num_rows)
            got, expected = model.placement.arithmetic.geglu_linear(x, weight), linear.reference.geglu_linear(x, weight)
            shares.append(share_of_tolerance(got, expected, tolerance))
    return shares


def _values(linear: Linear) -> Tensor | None:
    """The values of a matrix. None: they are quantized."""
    return linear.weight.values if isinstance(linear.weight, DenseWeight) else None


def _distinct_values(linears: Iterable[Linear]) -> list[Tensor]:
    """One matrix of each shape."""
    matrices = [_values(linear) for linear in linears]
    return list({matrix.shape: matrix for matrix in matrices if matrix is not None and matrix.dim() == 2}.values())


def _rows_for(model: Gemma, weight: Tensor, num_rows: int) -> Tensor:
    """Rows whose products with this weight are near one, the size that tolerances are made for."""
    length = float(weight[:64].float().norm(dim=1).mean())
    return _normal(model, num_rows, weight.shape[1]) / max(length, 1e-6)


def _per_layer_input(model: Gemma) -> list[Share]:
    inputs, shares = model.per_layer_inputs, []
    table = None if inputs is None else _values(inputs.table)
    if inputs is None or table is None:
        return []
    is_float32 = model.placement.dtype == torch.float32
    tolerance = per_layer_cases.FLOAT32 if is_float32 else per_layer_cases.BFLOAT16
    for num_rows in NUM_ROWS:
        context = _normal(model, num_rows, model.spec.num_layers, inputs.spec.width)
        token_ids = torch.arange(num_rows, device=context.device) * 7919 % inputs.spec.vocab_size
        got, expected = (
            mix(
                context,
                token_ids,
                table,
                inputs.norm.weight,
                first_column=0,
                token_scale=inputs.table.scale,
                context_scale=inputs.context_scale,
                eps=inputs.eps,
            )
            for mix in (per_layer_input.mix_looked_up_inputs, per_layer_input.reference.mix_looked_up_inputs)
        )
        shares.append(share_of_tolerance(got, expected, tolerance))
    return shares


def _experts(model: Gemma) -> list[Share]:
    experts = next((module for module in model.modules() if isinstance(module, Experts)), None)
    if experts is None:
        return []
    tolerance = moe_cases.FLOAT32 if model.placement.dtype == torch.float32 else moe_cases.BFLOAT16
    shares = []
    for num_rows in NUM_ROWS:
        router_logits = _distinct(model, num_rows, experts.spec.num_experts)
        arguments = router_logits, experts.spec.num_chosen, experts.expert_scale
        weights, chosen = moe.route(*arguments)
        expected_weights, expected_chosen = moe.reference.route(*arguments)
        shares += [
            share_of_tolerance(weights, expected_weights, tolerance),
            share_of_tolerance(chosen, expected_chosen, embedding_cases.EXACT),
        ]
        gate_up, down = _values(experts.gate_up), _values(experts.down)
        if gate_up is not None and down is not None:
            x = _rows_for(model, gate_up[0], num_rows)
            pairs = x, expected_weights, expected_chosen, gate_up, down
            got, expected = model.placement.arithmetic.run_experts(*pairs), moe.reference.run_experts(*pairs)
            shares.append(share_of_tolerance(got, expected, tolerance))
    return shares


def _distinct(model: Gemma, num_rows: int, width: int) -> Tensor:
    """Rows of numbers all different even in 8 bits, because the order of equal experts is not defined."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randperm(width, generator=generator) for _ in range(num_rows)])
    return (rows / 16).to(model.placement.device, model.placement.dtype)


def _softcap(model: Gemma) -> list[Share]:
    cap = model.spec.logit_softcap
    inputs = 20 * _normal(model, 3, min(model.spec.vocab_size, 1000))
    got, expected = logits.softcap(inputs, cap), logits.reference.softcap(inputs, cap)
    return [share_of_tolerance(got, expected, logits_cases.FLOAT32)]


def _token_choice(model: Gemma) -> Finding:
    """Checks the choice of tokens. Noise is the same integers everywhere, so tokens are compared exactly."""
    device, vocab_size = str(model.placement.device), model.spec.vocab_size
    rows = choice_cases.MIXED
    arguments = (
        choice_cases.peaked_logits(len(rows), vocab_size, device),
        choice_cases.settings(rows, vocab_size, device),
        choice_cases.noise_keys(len(rows), device),
    )
    got = token_choice.choose_tokens(*arguments).token_ids
    expected = token_choice.reference.choose_tokens(*arguments).token_ids
    num_different = int((got != expected).sum())
    return measured("kernel: token choice", num_different, 0.0, f"of {len(rows)} tokens, how many differ")
