"""How many tokens were drafted and how many of them accepted, ever."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    num_runs: int = 0  # of drafts of one request in one step
    num_drafts: int = 0
    num_accepted: int = 0
    num_accepted_by_place: tuple[int, ...] = ()  # in their runs: of all first drafts, of all second ones, ...


NO_DRAFTS = DraftCounts()
