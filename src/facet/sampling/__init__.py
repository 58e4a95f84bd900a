"""Chooses token ids from logits. The runner uses `Sampler`; everything else here is one of its features."""

from facet.faults import Fault
from facet.sampling.batch_seats import FurtherOn
from facet.sampling.compiled_grammar import CompiledGrammar
from facet.sampling.grammar import GrammarMask, grammar_mask
from facet.sampling.grammar_compiler import GrammarCompiler, as_request_error
from facet.sampling.grammars import Grammars
from facet.sampling.logprobs import LogprobTensors, prompt_logprobs
from facet.sampling.memory import max_device_bytes
from facet.sampling.result import HostTokens, SampledRuns, SampledTokens, TokensInFlight
from facet.sampling.sampler import Sampler

__all__ = [
    "CompiledGrammar",
    "Fault",
    "FurtherOn",
    "GrammarCompiler",
    "GrammarMask",
    "Grammars",
    "HostTokens",
    "LogprobTensors",
    "SampledRuns",
    "SampledTokens",
    "Sampler",
    "TokensInFlight",
    "as_request_error",
    "grammar_mask",
    "max_device_bytes",
    "prompt_logprobs",
]
