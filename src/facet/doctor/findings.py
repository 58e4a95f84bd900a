"""The findings of an examination, as values that print as a table or as JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from rich.table import Table

Status = Literal["pass", "fail", "skipped"]

_COLOURS: Mapping[Status, str] = {"pass": "green", "fail": "bold red", "skipped": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table."""

    check: str
    status: Status
    deviation: float | None = None  # the largest; None: nothing was measured
    limit: float | None = None
    note: str = ""
    seconds: float = 0.0  # that it took to find out
    figures: Mapping[str, float] = field(default_factory=dict)  # more numbers, for --json
    explanation: str = ""  # what the numbers mean, for a reader who has not seen them before


def skipped(check: str, why: str) -> Finding:
    return Finding(check=check, status="skipped", note=why)


def measured(check: str, deviation: float, limit: float, note: str = "") -> Finding:
    """A finding that passes or fails by the number. NaN fails."""
    return Finding(
        check=check, status="pass" if deviation <= limit else "fail", deviation=deviation, limit=limit, note=note
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    model: str
    device: str
    dtype: str
    is_batch_invariant: bool = False
    environment: Mapping[str, str]
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def is_healthy(self) -> bool:
        return all(finding.status != "fail" for finding in self.findings)

    @property
    def explanations(self) -> tuple[str, ...]:
        return tuple(finding.explanation for finding in self.findings if finding.explanation)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON, which has no infinity: a deviation that is not finite becomes a string."""
        return {
            "model": self.model,
            "device": self.device,
            "dtype": self.dtype,
            "batch_invariant": self.is_batch_invariant,
            "is_healthy": self.is_healthy,
            "seconds": round(self.seconds, 1),
            "environment": dict(self.environment),
            "findings": [_finding_json(finding) for finding in self.findings],
        }

    def table(self) -> Table:
        kind = ", batch-invariant" if self.is_batch_invariant else ""
        table = Table(title=f"{self.model} on {self.device}, {self.dtype}{kind}")
        for column in ("check", "", "deviation", "limit", ""):
            table.add_column(column, justify="right" if column in ("deviation", "limit") else "left")
        for finding in self.findings:
            table.add_row(
                finding.check,
                f"[{_COLOURS[finding.status]}]{finding.status}[/]",
                _shown(finding.deviation),
                _shown(finding.limit),
                finding.note.replace("[", r"\["),
            )
        return table


def _finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as JSON. What most findings have not is left out."""
    values = {
        each.name: _json_number(getattr(finding, each.name))
        for each in fields(finding)
        if each.name not in ("figures", "explanation")
    }
    values["seconds"] = round(finding.seconds, 3)
    if finding.figures:
        values["figures"] = {name: _json_number(number) for name, number in finding.figures.items()}
    if finding.explanation:
        values["explanation"] = finding.explanation
    return values


def _json_number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.2g}"
