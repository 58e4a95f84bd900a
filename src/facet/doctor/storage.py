"""Checks what storing keys and values in other dtypes does.

There are two measures. For attention alone, over random vectors of the model's shapes, the error follows from the
dtype, and a scale taken from another vector would show far above it. For the whole model, long prompts are scored with
keys and values in the model's dtype and in the other one, which is what a user would notice. There the limit is wide,
because a small difference may send a token to another expert.
"""

from collections.abc import Iterator
from dataclasses import replace

from facet.config import EngineConfig
from facet.doctor.attention_check import stored_attention_error
from facet.doctor.engines import Setup, make_engine, run_alone
from facet.doctor.findings import Finding, skipped
from facet.doctor.judge import deviation
from facet.doctor.patient import Patient
from facet.engine.settings import resolve_kv_dtypes
from facet.errors import ConfigError
from facet.kv_dtypes import KV_DTYPES

# Limits of the error of attention's result, relative to its size: about three times what random vectors give.
ATTENTION_LIMITS = {
    "bfloat16": 0.02,
    "float16": 0.01,
    "fp8_e4m3": 0.15,
    "fp8_e5m2": 0.3,
    "int8_per_token_head": 0.05,
    "fp8_per_token_head": 0.15,
}
# What attention in the model's own type adds.
ROUNDING = {"float32": 1e-4, "float16": 0.01, "bfloat16": 0.01}
# The limit of the mean error of the log-probabilities of prompts.
LOGPROB_LIMIT = 0.5


def kv_dtypes_to_check(patient: Patient) -> tuple[str, ...]:
    """The KV dtypes that store no more bytes than the model's own dtype."""
    own = KV_DTYPES[patient.dtype].num_bytes
    return tuple(name for name, dtype in KV_DTYPES.items() if name != patient.dtype and dtype.num_bytes <= own)


def check_kv_dtypes(patient: Patient) -> Iterator[Finding]:
    by_length = sorted(patient.requests, key=lambda request: -len(request.prompt_token_ids))
    requests = [
        replace(request, sampling=replace(request.sampling, max_tokens=1, prompt_logprobs=0))
        for request in by_length[: patient.effort.num_scored]
    ]
    expected = run_alone(make_engine(patient.model, Setup()), requests)
    for kv_dtype in kv_dtypes_to_check(patient):
        name = f"KV {kv_dtype}"
        try:
            dtypes = resolve_kv_dtypes(EngineConfig(kv_cache_dtype=kv_dtype), patient.model)
        except ConfigError as refusal:
            yield skipped(name, str(refusal))
            continue
        got = run_alone(make_engine(patient.model, Setup(kv_dtype=kv_dtype)), requests)
        moved = [
            deviation(mine, theirs)
            for request_id, transcript in expected.items()
            for mine, theirs in zip(transcript.prompt_logprobs, got[request_id].prompt_logprobs, strict=True)
        ]
        mean = sum(moved) / max(1, len(moved))
        error, limit = stored_attention_error(patient, dtypes), ATTENTION_LIMITS[kv_dtype] + ROUNDING[patient.dtype]
        yield Finding(
            check=name,
            status="pass" if error <= limit and mean <= LOGPROB_LIMIT else "fail",
            deviation=error,
            limit=limit,
            note=f"of attention; log-probabilities: mean {mean:.2g}, largest {max(moved, default=0.0):.2g}",
        )
