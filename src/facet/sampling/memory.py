"""Computes how much device memory sampling may need at most, so that the KV cache leaves it free.

Most of it is allocated only when requests use certain features; by then the cache has taken the rest.
"""

import math

from facet.sampling.batch_seats import MAX_PART_ELEMENTS
from facet.sampling.bitmask import num_words
from facet.sampling.choice import NARROW_LIMIT

# The widest moment of working on a part: ranking it for top_p, with 8-byte keys sorted out of place.
_PART_BYTES_PER_LOGIT = 80


def max_device_bytes(*, num_seats: int, vocab_size: int, context_len: int) -> int:
    """An upper bound over all settings of all requests, `logprobs` of the whole vocabulary excepted: each seat
    that asks for those takes 12 more bytes per token of the vocabulary for a step."""
    num_logits = num_seats * vocab_size
    list_capacity = 2 * max(context_len, 1024)  # rounded up to a power of two
    # Slots and lists double; while one is copied into the next, both exist.
    penalties = 3 * num_seats * (4 * vocab_size + 8 * list_capacity) // 2
    allowed_tokens = 2 * num_seats * 4 * num_words(vocab_size)  # kept by seat, and gathered for a batch
    changed_logits = 4 * num_logits  # a float32 copy, where the model's are narrower
    raw_logits = 4 * num_logits  # for log-probabilities, where settings overwrite them
    part = _PART_BYTES_PER_LOGIT * max(MAX_PART_ELEMENTS, vocab_size)
    # Both the chunks' maxima and the members of the best chunks, several 8-byte copies of them.
    candidates = 256 * num_seats * math.isqrt(NARROW_LIMIT * vocab_size)
    return penalties + allowed_tokens + changed_logits + raw_logits + part + candidates
