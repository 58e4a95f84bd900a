"""Attention of documents laid end to end, with the flash kernels in PyTorch: the fastest way on a GPU.

PyTorch's own function for this differs between versions, so its two kernels are called directly, as operators that the
compiler leaves alone and that know their gradients.
"""

import torch
from torch import Tensor

from facet.model_spec import LayerSpec
from tools.bundled_model.attention import Attend

NO_WINDOW = -1


def flash_attend(document_starts: Tensor) -> Attend:
    """`document_starts`: where each document of the rows laid end to end begins, then the total length; int32.

    The total may come more than once: documents of no tokens are no trouble, and the length of the list stays the same.
    """

    def attend(queries: Tensor, keys: Tensor, values: Tensor, layer: LayerSpec) -> Tensor:
        num_rows, num_heads, length, head_dim = queries.shape
        group = num_heads // layer.num_kv_heads
        vectors = (_end_to_end(vectors) for vectors in (queries, *(_repeated(x, group) for x in (keys, values))))
        window = NO_WINDOW if layer.window is None else layer.window - 1
        attended, _ = _attend(*vectors, document_starts, length, layer.attention_scale, window)
        rows: Tensor = attended.view(num_rows, length, num_heads, head_dim)
        return rows.transpose(1, 2)

    return attend


def _end_to_end(x: Tensor) -> Tensor:
    """[rows, heads, length, dim] -> [rows * length, heads, dim]"""
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def _repeated(x: Tensor, group: int) -> Tensor:
    return x.repeat_interleave(group, dim=1) if group > 1 else x


@torch.library.custom_op("facet_bundled::attend", mutates_args=())
def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, starts: Tensor, longest: int, scale: float, window: int
) -> tuple[Tensor, Tensor]:
    """What was read [tokens, heads, dim], and the logarithms of the softmax sums [heads, tokens]."""
    attended, levels, *_ = torch.ops.aten._flash_attention_forward(
        queries, keys, values, starts, starts, longest, longest, 0.0, True, False,
        scale=scale, window_size_left=window, window_size_right=0,
    )  # fmt: skip
    return attended.contiguous(), levels.contiguous()


@_attend.register_fake
def _(queries: Tensor, *_others: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(queries), queries.new_empty(queries.shape[1], queries.shape[0], dtype=torch.float32)


@torch.library.custom_op("facet_bundled::attend_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    attended: Tensor,
    levels: Tensor,
    starts: Tensor,
    longest: int,
    scale: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=queries.device)
    query_gradient, key_gradient, value_gradient = torch.ops.aten._flash_attention_backward(
        gradient.contiguous(), queries, keys, values, attended, levels, starts, starts, longest, longest, 0.0, True,
        no_dropout, queries.new_empty(0), scale=scale, window_size_left=window, window_size_right=0,
    )  # fmt: skip
    return query_gradient.contiguous(), key_gradient.contiguous(), value_gradient.contiguous()


@_attend_backward.register_fake
def _(
    gradient: Tensor, queries: Tensor, keys: Tensor, values: Tensor, *_others: object
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(queries), torch.empty_like(keys), torch.empty_like(values)


def _keep(ctx: "torch.autograd.function.FunctionCtx", inputs: tuple, output: tuple[Tensor, Tensor]) -> None:  # type: ignore[type-arg]
    queries, keys, values, starts, longest, scale, window = inputs
    ctx.save_for_backward(queries, keys, values, *output, starts)
    ctx.how = (longest, scale, window)  # type: ignore[attr-defined]


def _gradients(
    context: "torch.autograd.function.FunctionCtx", gradient: Tensor, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    gradients = _attend_backward(gradient, *context.saved_tensors, *context.how)  # type: ignore[attr-defined]
    return (*gradients, None, None, None, None)


_attend.register_autograd(_gradients, setup_context=_keep)
