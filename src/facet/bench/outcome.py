"""The outcome of one request: when it started, when its chunks arrived, its token counts, why it failed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: str  # what failures are counted under
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Times are of one clock, in seconds."""

    arrival: float  # when it could have begun, had there been room
    start: float
    chunk_times: npt.NDArray[np.float64]
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int | None  # of the prompt, as the server says; None: it does not
    has_usage: bool  # whether the server counted; if not, tokens are chunks
    text: str
    failure: Failure | None = None

    @property
    def is_success(self) -> bool:
        return self.failure is None

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return float(self.chunk_times[0]) - self.start if len(self.chunk_times) else 0.0

    @property
    def latency(self) -> float:
        """The time from the start to the last chunk with a token."""
        return float(self.chunk_times[-1]) - self.start if len(self.chunk_times) else 0.0

    @property
    def itls(self) -> "npt.NDArray[np.floating[Any]]":
        """Inter-token latencies: the gaps between chunks."""
        return np.diff(self.chunk_times)

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None for an answer that has no second one."""
        if self.num_output_tokens <= 1:
            return None
        return (self.latency - self.ttft) / (self.num_output_tokens - 1)


def not_sent(now: float) -> Outcome:
    """A turn that was not sent because the one before it failed."""
    return Outcome(
        arrival=now,
        start=now,
        chunk_times=np.array([]),
        num_prompt_tokens=0,
        num_output_tokens=0,
        num_cached_tokens=None,
        has_usage=False,
        text="",
        failure=Failure(kind="not sent", message="the turn before it failed"),
    )
