"""Runs every kind of step before the first request, so that no request waits for a kernel to be compiled.

Kernels differ by the number of rows they are made for and by whether single rows and runs come mixed; sampling kernels
by what requests ask for. Compiled kernels are kept on disk: only the first start on a machine takes long over this.
"""

from facet.sampling_params import SamplingParams

# Rows of the sequences of a step: prompts of a few tokens, of some and of many, beside single rows and short runs that
# lie before and behind them.
QUERY_LENS: tuple[tuple[int, ...], ...] = (
    (1,),
    (2,),
    (7,),
    (14,),
    (40,),
    (300,),
    (1, 1, 20),
    (1, 40, 20),
)

SAMPLING = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=0),
    SamplingParams(temperature=1.0, top_k=64, top_p=0.95, seed=0),
    SamplingParams(temperature=1.0, top_k=100, seed=0),
    SamplingParams(temperature=1.0, top_p=0.9, seed=0),
)
