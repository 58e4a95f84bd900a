"""The result of sampling: tensors that feed the next step on the device, and host values a step later."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from facet.faults import Fault
from facet.kernels.token_choice import Outcome
from facet.sampling.logprobs import LogprobTensors
from facet.token_logprobs import TokenLogprobs
from facet.transfer import to_host


@dataclass(frozen=True, slots=True)
class HostTokens:
    """One step's tokens on the host, by row of the step's logits."""

    token_ids: tuple[int | None, ...]  # None where there is a fault: there is no token to mistake for one
    faults: tuple[Fault | None, ...]
    logprobs: tuple[TokenLogprobs | None, ...]  # None where none were asked for, or there is a fault

    def runs(self, num_drafts: Sequence[int] | None = None, drafts: Sequence[int] = ()) -> "HostRuns":
        """The tokens that each seat goes on with; `num_drafts` None: every seat has one row."""
        has_faults = self.faults.count(None) < len(self.faults)
        has_logprobs = self.logprobs.count(None) < len(self.logprobs)
        if num_drafts is None:
            return HostRuns(
                tuple([() if token_id is None else (token_id,) for token_id in self.token_ids]),
                tuple([None if fault is None else fault.value for fault in self.faults]) if has_faults else None,
                tuple([None if entry is None else [entry] for entry in self.logprobs]) if has_logprobs else None,
            )
        runs = self._runs(num_drafts, drafts)
        faults = logprobs = None
        if has_faults:
            last_faults = (self.faults[run.stop - 1] for run in runs)
            faults = tuple([None if fault is None else fault.value for fault in last_faults])
        if has_logprobs:
            entries = ([entry for entry in self.logprobs[run] if entry is not None] for run in runs)
            logprobs = tuple([own or None for own in entries])
        token_ids = tuple([tuple([token for token in self.token_ids[run] if token is not None]) for run in runs])
        return HostRuns(token_ids, faults, logprobs)

    def _runs(self, num_drafts: Sequence[int], drafts: Sequence[int]) -> list[slice]:
        """The rows of each seat up to the first whose token is not the draft behind it: what follows was sampled for
        nothing."""
        token_ids, runs = self.token_ids, []
        first = num_read = 0
        for count in num_drafts:
            last = first
            for draft in drafts[num_read : num_read + count]:
                if token_ids[last] != draft:
                    break
                last += 1
            runs.append(slice(first, last + 1))
            first += 1 + count
            num_read += count
        return runs


class HostRuns(NamedTuple):
    """One step's tokens on the host, by seat: as the fields of `StepResult`."""

    token_ids: tuple[tuple[int, ...], ...]
    faults: tuple[str | None, ...] | None
    logprobs: tuple[list[TokenLogprobs] | None, ...] | None


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One step's tokens, by row of the step's logits.

    Rows with a fault hold token id 0, so that feeding `token_ids` to the next step is always safe; that
    number is not an answer, and `to_host` does not show it.
    """

    token_ids: Tensor  # [rows] int64
    is_finite: Tensor  # [rows] bool: the model's logits could be used
    has_choice: Tensor  # [rows] bool: the request's masks left at least one token
    logprobs: tuple[LogprobTensors, ...] | None
    storage: Tensor | None = None  # where the first three lie in one piece, as in `Outcome`

    def start_copy(self) -> "TokensInFlight":
        """Begin copying to the host without waiting for the device."""
        if self.token_ids.device.type != "cuda":
            return TokensInFlight(self, None)
        if self.storage is None:
            token_ids, is_finite, has_choice = map(to_host, (self.token_ids, self.is_finite, self.has_choice))
        else:
            copy = Outcome.within(to_host(self.storage), len(self.token_ids))
            token_ids, is_finite, has_choice = copy.token_ids, copy.is_finite, copy.has_choice
        logprobs = None
        if self.logprobs is not None:
            logprobs = tuple(part.with_tensors(*map(to_host, part.tensors())) for part in self.logprobs)
        arrived = torch.Event("cuda")
        arrived.record(torch.cuda.current_stream(self.token_ids.device))
        return TokensInFlight(SampledTokens(token_ids, is_finite, has_choice, logprobs), arrived)

    def to_host(self) -> HostTokens:
        return self.start_copy().wait()


@dataclass(frozen=True, slots=True)
class SampledRuns:
    """What `SampledTokens` are for seats with drafts."""

    tokens: SampledTokens  # by place
    last_token_ids: Tensor  # [seats] int64: of each, the last token that holds,
    last_places: Tensor  # [seats] int64: its place,
    num_emitted: Tensor  # [seats] int64: and how many hold


@dataclass(frozen=True, slots=True)
class TokensInFlight:
    """Tokens on their way to the host. The device is free to run the next step meanwhile."""

    tokens: SampledTokens
    arrived: torch.Event | None

    def wait(self) -> HostTokens:
        if self.arrived is not None:
            self.arrived.synchronize()
        tokens = self.tokens
        token_ids: list[int | None] = tokens.token_ids.tolist()
        faults: list[Fault | None] = [None] * len(token_ids)
        is_finite, has_choice = tokens.is_finite.tolist(), tokens.has_choice.tolist()
        if not (all(is_finite) and all(has_choice)):
            faults = list(map(_fault, is_finite, has_choice))
            token_ids = [token if fault is None else None for token, fault in zip(token_ids, faults, strict=True)]
        logprobs: list[TokenLogprobs | None] = [None] * len(faults)
        for part in tokens.logprobs or ():
            for place, entry in zip(part.places, part.to_list(), strict=True):
                logprobs[place] = entry if faults[place] is None else None
        return HostTokens(tuple(token_ids), tuple(faults), tuple(logprobs))


def _fault(is_finite: bool, has_choice: bool) -> Fault | None:
    if not is_finite:
        return Fault.NON_FINITE_LOGITS
    return None if has_choice else Fault.NOTHING_ALLOWED
