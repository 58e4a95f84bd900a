"""The subject of an examination: a loaded model, its requests, and what each of them got alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from facet.doctor.config import DoctorConfig
from facet.doctor.engines import Setup
from facet.doctor.findings import Finding, skipped
from facet.doctor.judge import EXACT, LIMITS, Limits, Outcome, Transcript, judge
from facet.doctor.workload import Effort
from facet.model.gemma import Gemma
from facet.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    config: DoctorConfig
    model: Gemma
    folder: Path
    effort: Effort
    requests: Sequence[Request]
    alone: dict[str, Transcript] = field(default_factory=dict)  # filled by the first check that runs an engine

    @property
    def dtype(self) -> str:
        return str(self.model.placement.dtype).removeprefix("torch.")

    @property
    def is_batch_invariant(self) -> bool:
        return self.model.placement.is_batch_invariant

    @property
    def limits(self) -> Limits:
        """The limits of what company may change."""
        return EXACT if self.is_batch_invariant else self.rounding

    @property
    def rounding(self) -> Limits:
        """The limits of what another setting may change."""
        return LIMITS[self.dtype]

    @property
    def baseline(self) -> Setup:
        """How requests run alone: with nothing optional, unless settings have to be those of company."""
        return Setup(fast_prefill=self.is_batch_invariant)


def compare(check: str, alone: Mapping[str, Transcript], got: Mapping[str, Transcript], limits: Limits) -> Finding:
    """One finding for many requests: the worst of them, and the number of ties."""
    if not alone:
        return skipped(check, "no baseline: the requests did not run alone")
    verdicts = {request_id: judge(alone[request_id], other, limits) for request_id, other in got.items()}
    corrupt = {name: verdict for name, verdict in verdicts.items() if verdict.outcome is Outcome.CORRUPT}
    num_ties = sum(verdict.outcome is Outcome.TIE for verdict in verdicts.values())
    notes = [f"{num_ties} rounding tie{'s' * (num_ties > 1)}"] if num_ties else []
    if corrupt:
        name, verdict = max(corrupt.items(), key=lambda item: item[1].deviation)
        what = "differ" if limits.is_exact else "corrupted"
        notes.insert(0, f"{len(corrupt)} of {len(verdicts)} answers {what}; request {name}: {verdict.why}")
    return Finding(
        check=check,
        status="fail" if corrupt else "pass",
        deviation=max((verdict.deviation for verdict in verdicts.values()), default=0.0),
        limit=limits.logprob,
        note="; ".join(notes),
    )
