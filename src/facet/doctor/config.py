"""The settings of `facet doctor`."""

from dataclasses import dataclass

from facet.config import ModelConfig, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig(ModelConfig):
    """With an empty `model`, a small model with random weights is examined; the command always names one."""

    quick: bool = setting(False, "run fewer requests and tokens: seconds instead of a minute for a small model")
    full: bool = setting(False, "run more requests and tokens, up to 64 in flight")
    json: bool = setting(False, "print the report as JSON, to attach to bug reports")
