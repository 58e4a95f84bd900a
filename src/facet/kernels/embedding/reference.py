"""The definition of the scaled embedding."""

from torch import Tensor
from torch.nn import functional


def embed(token_ids: Tensor, table: Tensor, scale: float) -> Tensor:
    """table[token_ids] * scale: [rows] ids, [vocab, hidden] table, [rows, hidden] out in the table's type."""
    scaled: Tensor = functional.embedding(token_ids, table) * scale
    return scaled
