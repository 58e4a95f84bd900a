"""The settings of `facet doctor`."""

from dataclasses import dataclass

from facet.config import ModelConfig, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig(ModelConfig):
    """What is examined, and how thoroughly.

    With an empty `model`, a small model with random weights is examined; the command always names one.
    """

    quick: bool = setting(False, "run fewer requests and tokens: seconds instead of a minute for a small model")
    full: bool = setting(False, "run more requests and tokens, up to 64 in flight")
    quality_only: bool = setting(
        False, "measure the quality of quantized weights and nothing else; needs weights that are quantized"
    )
    prompts: str | None = setting(
        None,
        "file with prompts to measure the quality of quantized weights on: one per line, or a .jsonl file of objects "
        "with prompt or messages; default: a built-in set",
    )
    json: bool = setting(False, "print the report as JSON, to attach to bug reports")
