"""Gemma 3n's way from a tower, or from a small table of ids that only media have, to rows of the decoder."""

from torch import Tensor, nn

from facet.layers.linear import Embedding, Linear
from facet.layers.placement import Placement
from facet.layers.rms_norm import RMSNorm


class MediaEmbedder(nn.Module):
    def __init__(self, hidden_size: int, table_size: int, output_size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.arithmetic = placement.arithmetic
        self.norm = RMSNorm(hidden_size, eps, placement)
        self.table = Embedding(table_size, hidden_size, 1.0, placement)
        self.table_norm = RMSNorm(hidden_size, eps, placement)
        self.projection = Linear(hidden_size, output_size, placement)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of [num_rows, hidden] that a tower has made."""
        return self._projected(self.norm(x))

    def look_up(self, table_rows: Tensor) -> Tensor:
        """Rows of the table. Its first one is of the first id that only media have."""
        return self._projected(self.table_norm(self.table.look_up(table_rows)))

    def _projected(self, normed: Tensor) -> Tensor:
        return self.arithmetic.rms_norm(self.projection(normed), None, self.eps)
