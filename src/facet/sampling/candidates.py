"""Finds the best tokens of each row of logits without sorting the vocabulary.

The order is total: by logit, and among equal logits by token id. bfloat16 logits tie all the time, and a tie
broken by whatever a selection algorithm happened to do would make a request's tokens depend on its neighbours
(through the largest k of the batch). With this order the best k are the first k of the best k + 1, always.

Chunks: the vocabulary is read once, for the largest logit of each chunk of neighbouring ids. The best k
tokens lie in the best k chunks: a token elsewhere has k tokens before it, the leaders of those chunks, also
among equals, because chunks are ranked by (largest logit, position) and positions follow ids. What remains is
small.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Smaller chunks leave less to rank, but reducing over them costs more than reading them.
_MIN_CHUNK = 64


class Candidates(NamedTuple):
    logits: Tensor  # [rows, k] float32, best first
    token_ids: Tensor  # [rows, k] int64
    row_max: Tensor  # [rows] the largest logit; NaN if any logit of the row is


class Best(NamedTuple):
    token_ids: Tensor  # [rows] int64
    row_max: Tensor  # [rows], as in Candidates


def best_token(logits: Tensor) -> Best:
    """The first of the best tokens: `top_candidates` for k = 1, for less."""
    chunk = _chunk_size(logits.shape[-1], 1)
    if chunk is None or logits.device.type != "cpu":
        best = logits.max(-1)  # its index is that of the first maximum, or of the first NaN
        return Best(best.indices, best.values)
    # On a CPU a maximum with its place costs ten times a maximum, so only one chunk is searched for the place.
    maxima = _chunk_maxima(logits, chunk)
    best = maxima.max(-1, keepdim=True)
    token_ids, members = _members(logits, best.indices, chunk)
    place = members.argmax(-1, keepdim=True)
    return Best(token_ids.gather(1, place).squeeze(1), best.values.squeeze(1))


def top_candidates(logits: Tensor, k: int) -> Candidates:
    """The best k tokens of each row [rows, vocab], best first. A row with NaN gives any; see `row_max`."""
    vocab_size = logits.shape[-1]
    chunk = _chunk_size(vocab_size, k)
    if chunk is None:
        vocabulary = torch.arange(vocab_size, device=logits.device)
        token_ids = first_ranked(logits, vocabulary, min(k, vocab_size))
        return Candidates(logits.gather(1, token_ids).float(), token_ids, logits.amax(-1))
    maxima = _chunk_maxima(logits, chunk)
    chunks = torch.arange(maxima.shape[-1], device=logits.device)
    chunk_ids = first_ranked(maxima, chunks, k, in_order=False)
    member_ids, members = _members(logits, chunk_ids, chunk)
    best = first_ranked(members, member_ids, k)
    return Candidates(members.gather(1, best).float(), member_ids.gather(1, best), maxima.amax(-1))


def _chunk_size(vocab_size: int, k: int) -> int | None:
    """The size of chunks: large enough to leave few maxima, small enough to leave few members to rank. None: rank
    everything."""
    chunk = max(_MIN_CHUNK, 2 << max(0, round(math.log2(vocab_size / k) / 2)))
    num_chunks = vocab_size // chunk
    return chunk if num_chunks > k and num_chunks + k * chunk < vocab_size // 2 else None


def _chunk_maxima(logits: Tensor, chunk: int) -> Tensor:
    vocab_size = logits.shape[-1]
    num_whole = vocab_size // chunk
    maxima = logits[:, : num_whole * chunk].view(-1, num_whole, chunk).amax(-1)
    if num_whole * chunk == vocab_size:
        return maxima
    return torch.cat([maxima, logits[:, num_whole * chunk :].amax(-1, keepdim=True)], dim=-1)


def _members(logits: Tensor, chunk_ids: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """The ids and logits of the tokens in the given chunks.

    The last chunk may be short. What it lacks gets -inf and the last id: it ranks behind every other token of
    the chunks, a masked one included, and no id is ever outside the vocabulary.
    """
    vocab_size = logits.shape[-1]
    offsets = torch.arange(chunk, device=logits.device)
    token_ids = torch.add(offsets, chunk_ids.unsqueeze(-1), alpha=chunk).flatten(1)
    if vocab_size % chunk == 0:
        return token_ids, logits.gather(1, token_ids)
    is_lacking = token_ids >= vocab_size
    token_ids.clamp_(max=vocab_size - 1)
    return token_ids, logits.gather(1, token_ids).masked_fill_(is_lacking, -math.inf)


def first_ranked(logits: Tensor, ids: Tensor, k: int, *, in_order: bool = True) -> Tensor:
    """The places of the k first by (logit descending, id ascending), in that order if it matters.

    Both are packed into one int64: the float's bits, mapped to an integer of the same order, less the id.
    """
    bits = (logits.float() + 0.0).view(torch.int32)  # + 0.0: minus zero equals zero, so it must tie with it
    ordered = bits ^ ((bits >> 31) & 0x7FFF_FFFF)
    ranks = (ordered.to(torch.int64) << 32).sub_(ids)
    if k * 4 > ranks.shape[-1]:
        return ranks.sort(-1, descending=True).indices[:, :k]
    return ranks.topk(k, sorted=in_order).indices
