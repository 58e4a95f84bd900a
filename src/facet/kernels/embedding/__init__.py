"""Looks up scaled embeddings. The Triton kernel serves tensors on a GPU, the reference everything else."""

from torch import Tensor

from facet.kernels.embedding import reference

__all__ = ["embed"]


def embed(token_ids: Tensor, table: Tensor, scale: float) -> Tensor:
    """table[token_ids] * scale, in the table's type."""
    if table.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.embedding import triton

        return triton.embed(token_ids, table, scale)
    return reference.embed(token_ids, table, scale)
