"""What to examine, and how thoroughly."""

from dataclasses import dataclass

from facet.config import ModelConfig, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig(ModelConfig):
    """The flags of `facet doctor`. Without a model, a small one with random weights is made up."""

    quick: bool = setting(False, "fewer requests and tokens: seconds rather than a minute for a small model")
    full: bool = setting(False, "more requests and tokens, 64 in flight")
    json: bool = setting(False, "print the report as JSON, for bug reports")
