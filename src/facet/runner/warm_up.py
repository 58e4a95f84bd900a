"""Runs every kind of step before the first request, so that no request waits for a kernel to be compiled.

Kernels differ by the number of rows they are made for and by whether single rows and runs come mixed; sampling kernels
by what requests ask for. Compiled kernels are kept on disk: only the first start on a machine takes long over this.
"""

from dataclasses import dataclass

from facet.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class WarmUpStep:
    """A step of made-up sequences."""

    query_lens: tuple[int, ...]  # rows of each sequence
    num_computed: int = 0  # tokens before them, of each
    is_media: bool = False  # all rows but the first and the last are media that attend both ways


# Prompts of a few tokens, of some and of many, beside single rows and short runs that lie before and behind them.
PASSES = (
    WarmUpStep((1,)),
    WarmUpStep((2,)),
    WarmUpStep((7,)),
    WarmUpStep((14,)),
    WarmUpStep((24,)),
    WarmUpStep((40,)),
    WarmUpStep((100,)),
    WarmUpStep((300,)),
    WarmUpStep((1, 40, 20)),
)
# Answers and the tokens before each. Their number and the longest context decide into how many shares attention cuts a
# row, and who puts these together (`choose_decode_tuning`); a test looks for what is not among them.
_BESIDE_PROMPTS = ((1, 1), (1, 130), (1, 700), (300, 1), (300, 1500))
_ALONE = (
    *_BESIDE_PROMPTS, (1, 400), (3, 64), (3, 700), (5, 700), (9, 400), (17, 400), (34, 1500), (72, 1500)
)  # fmt: skip
# In these steps only attention is new.
BESIDE_PROMPTS = tuple(WarmUpStep((*(count * (1,)), 40), context) for count, context in _BESIDE_PROMPTS)
# Needed where steps are not captured.
ALONE = tuple(WarmUpStep(count * (1,), context) for count, context in _ALONE)
MEDIA = WarmUpStep((40,), is_media=True)
# So many rows that the products of 128 experts, of which each row has eight, are in their largest tiles.
LONG_PROMPT = WarmUpStep((2100,))

SAMPLING = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=0),
    SamplingParams(temperature=1.0, top_k=64, top_p=0.95, seed=0),
    SamplingParams(temperature=1.0, top_k=100, seed=0),
    SamplingParams(temperature=1.0, top_p=0.9, seed=0),
)
# Tokens beside the chosen one that log-probabilities are listed of.
NUM_LISTED = 20
