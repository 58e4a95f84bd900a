"""Products whose rows are bit for bit the same whatever other rows share the call: on a GPU by `chain.py`, elsewhere by
a library that is only given numbers of rows for which it sums alike (`alike.py`)."""

import torch
from torch import Tensor

from facet.kernels.geglu import invariant as activations
from facet.kernels.linear import alike
from facet.kernels.per_layer_input.invariant import gate_per_layer_input


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] @ weight^T, weight [out, in]."""
    if x.is_cuda:
        # Imported here and below: machines without a GPU need no Triton.
        from facet.kernels.linear import chain

        return chain.linear(x, weight)
    return alike.linear(x, weight)


def geglu_linear(x: Tensor, weight: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where x @ weight^T holds gate, then up: [rows, width] for weight [2 * width, in]."""
    if x.is_cuda:
        from facet.kernels.linear import chain

        return chain.geglu_linear(x, weight)
    return activations.geglu(linear(x, weight))


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(x @ weight^T) * per_layer_input, the latter [rows, width] for weight [width, in]."""
    if x.is_cuda:
        from facet.kernels.linear import chain

        return chain.gated_input_linear(x, weight, per_layer_input)
    return gate_per_layer_input(linear(x, weight), per_layer_input)


def never_split_sums() -> None:
    """Tells PyTorch, for all of this process, to have no sum over inputs computed in parts. Only cuBLASLt listens."""
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)
