"""Sets of tokens as packed bits, and masking of logits by them. Used by allowed_token_ids and by grammars.

Bit i of word w stands for token 32 * w + i, least significant first; a set bit allows the token. This is the
layout grammar libraries fill in.
"""

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from facet.sampling.batch_seats import row_slices


def num_words(vocab_size: int) -> int:
    return -(-vocab_size // 32)


def pack_token_ids(token_ids: Iterable[int], vocab_size: int) -> npt.NDArray[np.int32]:
    bits = np.zeros(num_words(vocab_size) * 32, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def apply_bitmask(logits: Tensor, bitmask: Tensor, places: Tensor | None, held: range | None = None) -> None:
    """Sets to -inf, in place, what bitmask[i] does not allow in logits[places[i]]; `places` None: in logits[i].

    `held`: the ids of the columns.
    """
    vocab_size = logits.shape[-1]
    bytes_of_words = bitmask.contiguous().view(torch.uint8)
    first = 0
    if held is not None:
        bytes_of_words, first = bytes_of_words[:, held.start // 8 : -(-held.stop // 8)], held.start % 8
    forbidden_by_byte = _forbidden_by_byte(logits.device)
    for part in row_slices(len(bitmask), vocab_size, logits.device):
        forbidden = forbidden_by_byte[bytes_of_words[part].to(torch.int32)].flatten(1)[:, first : first + vocab_size]
        if places is None:
            logits[part].masked_fill_(forbidden, -math.inf)
            continue
        some_places = places[part]
        logits.index_copy_(0, some_places, logits[some_places].masked_fill_(forbidden, -math.inf))


@cache
def _forbidden_by_byte(device: torch.device) -> Tensor:
    """[256, 8] bool: looking eight tokens up at once is cheaper than shifting out each one's bit."""
    values = torch.arange(256, dtype=torch.int32, device=device).unsqueeze(-1)
    return (values >> torch.arange(8, dtype=torch.int32, device=device)) & 1 == 0
