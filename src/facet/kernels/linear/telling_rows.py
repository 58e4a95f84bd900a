"""Rows to multiply where the order of a product's sums is to be found out.

In 16 bits, rounding hides the order of nearly all sums: of random ones, one in ten thousand shows it. So these rows are
nearly orthogonal to some of the weight's. What is left of their sums is small beside the terms, and its last bits show
in which order they were added.
"""

import torch
from torch import Tensor

_MOST_CANCELLED = 64


def _num_cancelled(weight: Tensor) -> int:
    """Outputs in which the sums cancel. A weight that has few needs more rows to tell as much."""
    return max(1, min(_MOST_CANCELLED, weight.shape[0], weight.shape[1] // 2))


def telling_rows(weight: Tensor, num_rows: int) -> Tensor:
    """Random rows whose products with some outputs, spread over all of them, are almost nothing."""
    num_outputs, num_inputs = weight.shape
    generator = torch.Generator(weight.device).manual_seed(0)
    x = torch.randn(num_rows, num_inputs, generator=generator, device=weight.device)
    spread = torch.linspace(0, num_outputs - 1, _num_cancelled(weight)).long().to(weight.device)
    chosen = weight[spread].float().cpu()  # there: a GPU would load a library for this alone
    basis: Tensor = torch.linalg.qr(chosen.T).Q.to(weight.device)  # [inputs, cancelled]
    return (x - x @ basis @ basis.T).to(weight.dtype)


def rows_that_tell(weight: Tensor, at_least: int) -> int:
    """How many rows to multiply: `at_least` so many, more where few outputs cancel."""
    return at_least * -(-_MOST_CANCELLED // _num_cancelled(weight))
