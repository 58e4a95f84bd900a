"""Logits and settings for checking the choice of tokens.

Tokens are compared exactly: the noise bits are equal integers, and with random logits a race is hardly ever so close
that the last places, the only ones that may differ, decide it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from facet.kernels.token_choice import NARROW_LIMIT, ChoiceSettings

# temperature, top_k (0: off), top_p, min_p
Row = tuple[float, int, float, float]
GREEDY: Row = (1.0, 1, 1.0, 0.0)

MIXED: tuple[Row, ...] = (
    GREEDY,
    (1.0, 64, 0.95, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.3, 5, 0.5, 0.0),
    (1.0, 0, 0.9, 0.0),
    (2.0, 0, 1.0, 0.05),
    (1.5, 128, 1.0, 0.02),
    (0.01, 0, 1.0, 0.0),
    (1.3, 0, 0.99, 0.001),
    (0.7, 2, 0.999, 0.0),
    (1.0, 100, 0.05, 0.3),
    (5.0, 0, 0.5, 0.0),
)
VOCABULARIES = (262_144, 262_208, 5003)


def settings(rows: Sequence[Row], vocab_size: int, device: str) -> ChoiceSettings:
    by_row = np.array(rows, dtype=np.float64)
    is_off = (by_row[:, 1] == 0) | (by_row[:, 1] > vocab_size)
    by_row[is_off, 1] = vocab_size
    top_k, top_p, min_p = by_row[:, 1:].T
    is_open = top_k == vocab_size
    is_narrow = ~is_open & (top_k <= NARROW_LIMIT)
    return ChoiceSettings(
        by_row=torch.from_numpy(by_row).to(device),
        is_greedy=bool((top_k == 1).all()),
        largest_narrow_k=int(top_k[is_narrow].max(initial=1)),
        has_min_p=bool((is_open & (min_p > 0) & (top_p >= 1)).any()),
        has_top_p=bool((is_open & (top_p < 1)).any()),
    )


def noise_keys(num_rows: int, device: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (num_rows, 2), generator=generator, dtype=torch.int32).to(device)


def peaked_logits(num_rows: int, vocab_size: int, device: str, seed: int = 0) -> Tensor:
    """Logits like a language model's: a few likely tokens over a wide floor."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 2
    num_likely = min(300, vocab_size)
    likely = torch.randint(vocab_size, (num_rows, num_likely), generator=generator)
    heights = torch.linspace(24, 10, num_likely) + torch.randn(num_rows, num_likely, generator=generator)
    return logits.scatter_(1, likely, heights).to(device)


def flat_logits(num_rows: int, vocab_size: int, device: str, seed: int = 0) -> Tensor:
    """Logits whose nuclei are half the vocabulary."""
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)).to(device)


def tied_logits(num_rows: int, vocab_size: int, device: str, seed: int = 0) -> Tensor:
    """Logits with few distinct values: every cut goes through equals, and races are decided by noise alone."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, (num_rows, vocab_size), generator=generator).float().mul_(1.5).to(device)


def masked_logits(num_rows: int, vocab_size: int, device: str, seed: int = 0) -> Tensor:
    """Logits with all but a few tokens forbidden, fewer than most top_k; the very last token is allowed."""
    logits = flat_logits(num_rows, vocab_size, "cpu", seed)
    generator = torch.Generator().manual_seed(seed + 1)
    logits[torch.rand(num_rows, vocab_size, generator=generator) < 1 - 20 / vocab_size] = -torch.inf
    logits[:, -1] = 0.5
    return logits.to(device)


INPUTS = {"peaked": peaked_logits, "flat": flat_logits, "tied": tied_logits, "masked": masked_logits}
