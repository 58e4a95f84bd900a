"""Rows: norms, streams of 3n, sums over ranks, what adapters add."""

from typing import Any

from facet.kernels.add_norm.triton import add_norm_kernel, sum_of_norms_kernel
from facet.kernels.gluon_names import gl
from facet.kernels.low_rank.triton import LEAST_SLICE
from facet.kernels.low_rank.triton_kernels import narrow_rows_kernel
from facet.kernels.rms_norm.triton import rms_norm_kernel, tile_of_few_rows
from facet.kernels.rounded_rows import INT8_CODES, RowCodes
from facet.kernels.streams.triton import correct_kernel, predict_kernel
from facet.kernels.sum_over_ranks.triton import sum_kernel, sum_launch
from facet.ranks import Rank
from tests.kernels.hopper_launches.making import Launch, tensor


def streams_launch(kernel: Any, num_tensors: int, num_strides: int) -> Launch:
    """Of 3n: tensors of activations and weights, norms' among them in float32, and strides between streams and rows."""
    tensors = [tensor() for _ in range(num_tensors)]
    norms = {"predict_kernel": (1, 4), "correct_kernel": (2,)}[kernel.fn.__name__]
    for place in norms:
        tensors[place] = tensor(gl.float32)
    constants = dict(STREAMS=4, WIDTH=2048, BLOCK=2048, IS_DEPENDENT=True, num_warps=8)
    return kernel, (*tensors, *(2048,) * num_strides, 1e-6), constants


def norms_launch(name: str, width: int, *, in_turn: bool) -> Launch:
    """Of batch-invariant arithmetic: few rows, or many, which are taken in turn."""
    tile = tile_of_few_rows(width)._replace(num_programs=264 if in_turn else None)
    constants = dict(WIDTH=width, **tile.constants, IS_DEPENDENT=True, num_warps=tile.num_warps)
    weight, uncoded = tensor(gl.float32), RowCodes(gl.bfloat16, *[0.0] * 3).constants
    if name == "sum_of_norms":
        return sum_of_norms_kernel, (tensor(), weight, tensor(), weight, tensor(), 300, 1e-6), constants
    if name == "router_norms":
        arguments = (tensor(), weight, tensor(), None, tensor(), 0.1, tensor(), 300, 1, width, width, 1e-6)
        return rms_norm_kernel, arguments, constants | uncoded
    rows = (tensor(), tensor(), weight, weight, tensor(), tensor())
    if name == "coded_add_norm":
        return add_norm_kernel, (*rows, tensor(gl.int8), weight, 300, 1e-6), constants | INT8_CODES.constants
    return add_norm_kernel, (*rows, tensor(), None, 300, 1e-6), constants | uncoded


def sum_over_ranks_launch() -> Launch:
    """Of a row of 31B on eight ranks."""
    constants = sum_launch(Rank(index=3, size=8), value_bytes=2)
    arguments = (tensor(), tensor(gl.int64), tensor(gl.int32), 5376, 1)
    return sum_kernel, arguments, {**constants, "IS_DEPENDENT": True}


def narrow_rows_launch(rank: int) -> Launch:
    """Of a prompt, through one of two parts."""
    constants = dict(RANK=rank, BLOCK_ROWS=32, BLOCK_IN=128, SLICE=LEAST_SLICE, PRECISION="tf32")
    tensors = tensor(), tensor(), tensor(gl.int32), tensor(gl.float32)
    arguments = (*tensors, 4096, 2560, 2560, 2, 0, 2)
    return narrow_rows_kernel, arguments, {**constants, "IS_DEPENDENT": True, "num_warps": 4}


def launches() -> dict[str, Launch]:
    return {
        **{
            f"{name}_of_{width}{'_in_turn' if in_turn else ''}": norms_launch(name, width, in_turn=in_turn)
            for name in ("add_norm", "coded_add_norm", "sum_of_norms", "router_norms")
            for width in (2560, 5376)
            for in_turn in (False, True)
        },
        "predict_streams": streams_launch(predict_kernel, 7, 3),
        "correct_streams": streams_launch(correct_kernel, 8, 1),
        "sum_over_ranks": sum_over_ranks_launch(),
        "narrow_rows": narrow_rows_launch(16),
    }
