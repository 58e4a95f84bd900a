"""Facet: inference and serving for the Gemma family.

from facet import LLM, SamplingParams
"""

from typing import TYPE_CHECKING, Any

from facet.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    EngineDeadError,
    EngineError,
    FacetError,
    NonFiniteLogitsError,
    RequestError,
    UnsupportedModelError,
    UserError,
)
from facet.large_imports import large_imports
from facet.neutral_params import RequestOutputKind
from facet.repetition import RepetitionDetectionParams
from facet.sampling_params import SamplingParams
from facet.structured_outputs import StructuredOutputsParams
from facet.version import __version__

if TYPE_CHECKING:
    from facet.offline import (
        LLM,
        CompletionOutput,
        Logprob,
        LoRARequest,
        Reply,
        RequestOutput,
        TextPrompt,
        TokensPrompt,
    )

__all__ = [
    "LLM",
    "CapacityError",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "EngineDeadError",
    "EngineError",
    "FacetError",
    "LoRARequest",
    "Logprob",
    "NonFiniteLogitsError",
    "RepetitionDetectionParams",
    "Reply",
    "RequestError",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "UnsupportedModelError",
    "UserError",
    "__version__",
]

_OFFLINE = {
    *("LLM", "CompletionOutput", "LoRARequest", "Logprob", "Reply", "RequestOutput", "TextPrompt", "TokensPrompt")
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: `import facet` alone must not cost the seconds that torch takes.
    if name in _OFFLINE:
        with large_imports():
            from facet import offline

        return getattr(offline, name)
    raise AttributeError(f"module 'facet' has no attribute {name!r}")
