"""Products whose rows are bit for bit the same whatever other rows share the call: on a GPU by a kernel of its own
(`triton_invariant.py`), elsewhere by a library that always gets the same shape.

A library picks its blocking, and with it the order of a sum, by the shapes it is given. So it is always given the same
shape: rows go through in blocks of a fixed number, the last one filled up with zeros. Within a block a row meets the
same arithmetic wherever it stands; `tests/kernels/test_batch_invariance.py` holds the library to that.
"""

from torch import Tensor
from torch.nn import functional

from facet.kernels.geglu import invariant as activations
from facet.kernels.per_layer_input.invariant import gate_per_layer_input

# More rows read a weight less often for a prompt, fewer waste less on a step of few requests.
ROWS_PER_BLOCK = 16


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in] @ weight^T, weight [out, in]."""
    if x.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.linear import triton_invariant

        return triton_invariant.linear(x, weight)
    num_rows, num_in = x.shape
    # Copied even where it fits: an order of sums may also follow from how the rows lie in memory.
    padded = x.new_zeros(-(-num_rows // ROWS_PER_BLOCK) * ROWS_PER_BLOCK, num_in)
    padded[:num_rows] = x
    blocks = padded.view(-1, ROWS_PER_BLOCK, num_in)
    output = padded.new_empty(len(blocks), ROWS_PER_BLOCK, len(weight))
    for block, out in zip(blocks, output, strict=True):
        out.copy_(functional.linear(block, weight))
    return output.flatten(0, 1)[:num_rows]


def geglu_linear(x: Tensor, weight: Tensor) -> Tensor:
    """gelu_tanh(gate) * up, where x @ weight^T holds gate, then up: [rows, width] for weight [2 * width, in]."""
    return activations.geglu(linear(x, weight))


def gated_input_linear(x: Tensor, weight: Tensor, per_layer_input: Tensor) -> Tensor:
    """gelu_tanh(x @ weight^T) * per_layer_input, the latter [rows, width] for weight [width, in]."""
    return gate_per_layer_input(linear(x, weight), per_layer_input)
