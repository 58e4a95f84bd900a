"""Chooses one token per row of logits: greedy, or sampled among what temperature, min_p, top_k and top_p allow.

The Triton kernels serve tensors on a GPU, the reference everything else. (On a CPU the sampler uses its own
code, which is better for caches and chooses the same tokens.)
"""

from torch import Tensor

from facet.kernels.token_choice import reference
from facet.kernels.token_choice.outcome import ChoiceSettings, Outcome

__all__ = ["NARROW_LIMIT", "ChoiceSettings", "Outcome", "choose_tokens"]

# The largest top_k that is served from a few chunks of the vocabulary.
NARROW_LIMIT = 128


def choose_tokens(
    logits: Tensor, settings: ChoiceSettings, noise_keys: Tensor | None, raw_max: Tensor | None = None
) -> Outcome:
    """See `reference.choose_tokens`. The Triton kernels rank no more than `NARROW_LIMIT`: a row with a larger
    top_k below the vocabulary's size gets a token without meaning there, and right flags."""
    if logits.is_cuda:
        # Imported here: machines without a GPU need no Triton.
        from facet.kernels.token_choice import triton

        return triton.choose_tokens(logits, settings, noise_keys, raw_max)
    return reference.choose_tokens(logits, settings, noise_keys, raw_max)
