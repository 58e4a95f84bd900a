"""Logits -> token ids. The runner talks to `Sampler`; everything else here is one of its features."""

from facet.sampling.grammar import GrammarMask
from facet.sampling.logprobs import LogprobTensors, TokenLogprobs, prompt_logprobs
from facet.sampling.memory import max_device_bytes
from facet.sampling.result import Fault, HostTokens, SampledTokens, TokensInFlight
from facet.sampling.sampler import Sampler

__all__ = [
    "Fault",
    "GrammarMask",
    "HostTokens",
    "LogprobTensors",
    "SampledTokens",
    "Sampler",
    "TokenLogprobs",
    "TokensInFlight",
    "max_device_bytes",
    "prompt_logprobs",
]
