"""Compares attention over pages, as computed on this device, with the formula in float64, at the model's shapes.

Pages hold NaN wherever nothing live is (`kernels/paged_attention/cases.py`), so a read outside a sequence or its window
shows.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from facet.doctor.findings import Finding
from facet.doctor.patient import Patient
from facet.doctor.shares import share_of_tolerance
from facet.doctor.workload import widest_window
from facet.kernels.paged_attention import cases, plan_attention, write_keys_and_values
from facet.kv_layout import make_kv_layout
from facet.layers.kv_arena import KVArena
from facet.model_spec import LayerSpec


def check_attention(patient: Patient) -> Iterator[Finding]:
    spec, placement = patient.model.spec, patient.model.placement
    layout = make_kv_layout(spec, dtype=patient.dtype)
    for group in layout.groups:
        owner = spec.layers[group.stores[0].layer]
        case = _case(owner, group.tokens_per_block, widest_window(spec))
        inputs = case.inputs(placement.dtype, str(placement.device))
        got = case.attend(inputs, plan_attention)
        share = share_of_tolerance(got, formula(case, inputs), case.tolerance(placement.dtype))
        yield share.finding(f"attention, {group.kind}")


def stored_attention_error(patient: Patient, kv_dtypes: Mapping[int, str]) -> float:
    """The relative error of attention when keys and values are stored in this dtype.

    Writing follows the definition; reading is done by what serves on this device. The worst kind of layer counts.
    """
    spec, placement = patient.model.spec, patient.model.placement
    layout, errors = make_kv_layout(spec, dtype=kv_dtypes), []
    for group in layout.groups:
        owner = spec.layers[group.stores[0].layer]
        case = _case(owner, group.tokens_per_block, widest_window(spec))
        inputs = case.inputs(placement.dtype, str(placement.device))
        num_pages = 1 + int(inputs.block_table.max())
        arena = KVArena(layout, num_pages, placement.device)
        arena.poison(torch.arange(num_pages, device=placement.device))
        cache = arena.layer(owner.index)
        for sequence, lens in enumerate(case.sequences):
            live = torch.arange(case.first_live(*lens), lens[1], device=placement.device)
            blocks = inputs.block_table[sequence, live // case.tokens_per_block].long()
            keys, values = inputs.keys[sequence][live], inputs.values[sequence][live]
            slots = live % case.tokens_per_block
            if case.is_shared:
                write_keys_and_values(cache, values, None, blocks, slots)
            else:
                write_keys_and_values(cache, keys, values, blocks, slots)
        got = case.attend(replace(inputs, cache=cache), plan_attention).double()
        expected = formula(case, inputs)
        error = float((got - expected).norm() / expected.norm())
        errors.append(error if math.isfinite(error) else math.inf)
    return max(errors)


def _case(layer: LayerSpec, tokens_per_block: int, window: int) -> cases.Case:
    """Single rows with contexts around `window` and a block, a prompt, and later chunks, all in one batch."""
    return cases.Case(
        name=layer.attention,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        window=layer.window,
        tokens_per_block=tokens_per_block,
        sequences=(
            (1, 1),
            (1, window),
            (1, window + 1),
            (1, 2 * window + 1),
            (1, tokens_per_block),
            (1, tokens_per_block + 1),
            (19, 19),
            (11, window + 15),
            (70, window + 200),  # whole tiles of keys are seen by the chunk's first rows alone
        ),
        scale=layer.attention_scale,
        num_rotated_pairs=layer.rotary.num_rotated_pairs(layer.head_dim) if layer.values_are_keys else None,
    )


def formula(case: cases.Case, inputs: cases.AttentionInputs) -> Tensor:
    """softmax(scale * q k) v over what each row may see; query head h reads key head h // (heads / key heads)."""
    out, start = [], 0
    for (query_len, context_len), keys, values in zip(case.sequences, inputs.keys, inputs.values, strict=True):
        queries = inputs.queries[start : start + query_len].double()
        start += query_len
        position = torch.arange(context_len - query_len, context_len, device=queries.device)[:, None]
        key_position = torch.arange(context_len, device=queries.device)
        visible = key_position <= position
        if case.window is not None:
            visible &= key_position > position - case.window
        repeats = case.num_heads // case.num_kv_heads
        keys, values = (tensor.double().repeat_interleave(repeats, dim=1) for tensor in (keys, values))
        scores = case.scale * torch.einsum("qhd,khd->hqk", queries, keys)
        weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(out)
