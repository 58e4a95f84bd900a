"""The parallel streams of Gemma 3n in Triton: what a layer does to all of them before its product of queries and after
its last, each in one launch.

A program has one row of all streams. Values are rounded to the activations' type wherever the layer, whose every
operation writes a tensor, rounds them without these kernels. How a row is summed does not depend on the others.
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

from facet.kernels.dependent_launch import launch_options, let_next_start, wait_for_previous
from facet.kernels.rms_norm.triton import rounded, tile_of_few_rows


def predict(
    streams: Tensor, router_norm: Tensor, router: Tensor, prediction: Tensor, next_norm: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Every stream plus its share of all, and the first through the norm that follows."""
    streams = _with_rows(streams)
    predicted = torch.empty(streams.shape, dtype=streams.dtype, device=streams.device)
    normed = torch.empty_like(predicted[0])
    predict_kernel[(streams.shape[1],)](
        streams, router_norm, router, prediction, next_norm, predicted, normed, *streams.stride()[:2],
        predicted.stride(0), eps, STREAMS=len(streams), **_constants(streams),
    )  # fmt: skip
    return predicted, normed


def correct(
    predicted: Tensor,
    active: Tensor,
    router_norm: Tensor,
    router: Tensor,
    correction: Tensor,
    output_scale: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Every stream plus its share of what computing the first changed, and the first times a scale."""
    predicted, active = predicted.contiguous(), active.contiguous()
    corrected, scaled = torch.empty_like(predicted), torch.empty_like(active)
    correct_kernel[(len(active),)](
        predicted, active, router_norm, router, correction, output_scale, corrected, scaled, predicted.stride(0), eps,
        STREAMS=len(predicted), **_constants(active),
    )  # fmt: skip
    return corrected, scaled


def join_paths(
    active: Tensor,
    attended: Tensor,
    attended_norm: Tensor,
    h: Tensor,
    detour: Tensor,
    detour_norm: Tensor,
    next_norm: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor | None]:
    """The sum of a stream with its attention and of what attention took with its detour, and that through a norm."""
    active, attended, h, detour = (each.contiguous() for each in (active, attended, h, detour))
    joined = torch.empty_like(active)
    normed = None if next_norm is None else torch.empty_like(active)
    join_kernel[(len(active),)](
        active, attended, attended_norm, h, detour, detour_norm, next_norm, joined, normed, eps, **_constants(active)
    )  # fmt: skip
    return joined, normed


def inject(streams: Tensor, update: Tensor, norm: Tensor, eps: float) -> None:
    """Adds a normalised update to all streams but the first, in place."""
    assert streams.is_contiguous(), "streams that were just made"
    update = update.contiguous()
    inject_kernel[(len(update),)](
        streams, update, norm, streams.stride(0), eps, STREAMS=len(streams), **_constants(update)
    )


def _with_rows(streams: Tensor) -> Tensor:
    return streams if streams.stride(-1) == 1 else streams.contiguous()


def _constants(rows: Tensor) -> dict[str, object]:
    width = rows.shape[-1]
    num_warps = tile_of_few_rows(width).num_warps
    return dict(WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=num_warps, **launch_options(rows.device))


@triton.jit
def _normalised(x, weight, eps, like, WIDTH: tl.constexpr):
    return rounded(x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps) * weight, like)


@triton.jit
def _signs(x, norm_weight, router, eps, like, WIDTH: tl.constexpr):
    """[streams], in (-1, 1): what a router says of each, by one stream."""
    normed = rounded(_normalised(x, norm_weight, eps, like, WIDTH) * (1.0 / WIDTH), like)
    said = rounded(tl.sum(router * normed[None, :], 1), like)
    return rounded(1.0 - 2.0 / (tl.exp(2.0 * said) + 1.0), like)


@triton.jit
def predict_kernel(
    streams, router_norm, router, prediction, next_norm, predicted, normed, stream_stride, row_stride, new_stride, eps,
    STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    numbers = tl.arange(0, STREAMS)
    router_weight = tl.load(router_norm + columns, mask=is_column, other=0.0)
    next_weight = tl.load(next_norm + columns, mask=is_column, other=0.0)
    routes = tl.load(router + numbers[:, None] * WIDTH + columns[None, :], mask=is_column[None, :], other=0.0)
    # [out, in, streams that were read]
    places = (numbers[:, None, None] * STREAMS + numbers[None, :, None]) * STREAMS + numbers[None, None, :]
    shares = tl.load(prediction + places).to(tl.float32)
    wait_for_previous(IS_DEPENDENT)
    own = streams + row * row_stride + columns
    before = tl.load(own[None, :] + numbers[:, None] * stream_stride, mask=is_column[None, :], other=0.0).to(tl.float32)
    active = tl.load(own, mask=is_column, other=0.0).to(tl.float32)
    signs = _signs(active, router_weight, routes.to(tl.float32), eps, predicted, WIDTH)
    shares = rounded(tl.sum(shares * signs[None, None, :], 2), predicted)
    for out in tl.static_range(STREAMS):
        share = tl.sum(tl.where(numbers[:, None] == out, shares, 0.0), 0)
        mixed = rounded(tl.sum(share[:, None] * before, 0), predicted)
        stream = tl.load(own + out * stream_stride, mask=is_column, other=0.0).to(tl.float32)
        stream = rounded(stream + mixed, predicted)
        place = row * WIDTH + columns
        tl.store(predicted + out * new_stride + place, stream.to(predicted.dtype.element_ty), mask=is_column)
        if out == 0:
            stream = _normalised(stream, next_weight, eps, predicted, WIDTH)
            tl.store(normed + place, stream.to(normed.dtype.element_ty), mask=is_column)


@triton.jit
def correct_kernel(
    predicted, active, router_norm, router, correction, output_scale, corrected, scaled, stream_stride, eps,
    STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    numbers = tl.arange(0, STREAMS)
    router_weight = tl.load(router_norm + columns, mask=is_column, other=0.0)
    routes = tl.load(router + numbers[:, None] * WIDTH + columns[None, :], mask=is_column[None, :], other=0.0)
    shares = tl.load(correction + numbers[:, None] * STREAMS + numbers[None, :]).to(tl.float32)
    scale = tl.load(output_scale + columns, mask=is_column, other=0.0).to(tl.float32)
    wait_for_previous(IS_DEPENDENT)
    place = row * WIDTH + columns
    computed = tl.load(active + place, mask=is_column, other=0.0).to(tl.float32)
    signs = _signs(computed, router_weight, routes.to(tl.float32), eps, corrected, WIDTH)
    shares = rounded(rounded(tl.sum(shares * signs[None, :], 1), corrected) + 1.0, corrected)
    first = tl.load(predicted + place, mask=is_column, other=0.0).to(tl.float32)
    change = rounded(computed - first, corrected)
    for out in tl.static_range(STREAMS):
        share = tl.sum(tl.where(numbers == out, shares, 0.0), 0)
        stream = tl.load(predicted + out * stream_stride + place, mask=is_column, other=0.0).to(tl.float32)
        stream = rounded(stream + rounded(share * change, corrected), corrected)
        tl.store(corrected + out * stream_stride + place, stream.to(corrected.dtype.element_ty), mask=is_column)
        if out == 0:
            tl.store(scaled + place, (stream * scale).to(scaled.dtype.element_ty), mask=is_column)


@triton.jit
def join_kernel(
    active, attended, attended_norm, h, detour, detour_norm, next_norm, joined, normed, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(IS_DEPENDENT)
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    attended_weight = tl.load(attended_norm + columns, mask=is_column, other=0.0)
    detour_weight = tl.load(detour_norm + columns, mask=is_column, other=0.0)
    wait_for_previous(IS_DEPENDENT)
    place = tl.program_id(0).to(tl.int64) * WIDTH + columns
    stream = tl.load(active + place, mask=is_column, other=0.0).to(tl.float32)
    update = tl.load(attended + place, mask=is_column, other=0.0).to(tl.float32)
    stream = rounded(stream + _normalised(update, attended_weight, eps, joined, WIDTH), joined)
    around = tl.load(h + place, mask=is_column, other=0.0).to(tl.float32)
    update = tl.load(detour + place, mask=is_column, other=0.0).to(tl.float32)
    around = rounded(around + _normalised(update, detour_weight, eps, joined, WIDTH), joined)
    stream = rounded(rounded(stream + around, joined) * 0.7071067811865476, joined)
    tl.store(joined + place, stream.to(joined.dtype.element_ty), mask=is_column)
    if normed is not None:
        next_weight = tl.load(next_norm + columns, mask=is_column, other=0.0)
        stream = _normalised(stream, next_weight, eps, joined, WIDTH)
        tl.store(normed + place, stream.to(normed.dtype.element_ty), mask=is_column)


@triton.jit
def inject_kernel(
    streams, update, norm, stream_stride, eps,
    STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, IS_DEPENDENT: tl.constexpr,
):  # fmt: skip
    let_next_start(IS_DEPENDENT)
    columns = tl.arange(0, BLOCK)
    is_column = columns < WIDTH
    weight = tl.load(norm + columns, mask=is_column, other=0.0)
    wait_for_previous(IS_DEPENDENT)
    place = tl.program_id(0).to(tl.int64) * WIDTH + columns
    added = tl.load(update + place, mask=is_column, other=0.0).to(tl.float32)
    added = _normalised(added, weight, eps, streams, WIDTH)
    for out in tl.static_range(1, STREAMS):
        stream = tl.load(streams + out * stream_stride + place, mask=is_column, other=0.0).to(tl.float32)
        stream = (stream + added).to(streams.dtype.element_ty)
        tl.store(streams + out * stream_stride + place, stream, mask=is_column)
