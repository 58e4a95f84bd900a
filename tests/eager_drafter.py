"""What drafters in tests have in common: they draft whenever they can and do not learn."""

from collections.abc import Mapping, Sequence

from facet.scheduler.drafting import Draftable
from facet.step import StepPlan, StepResult


class EagerDrafter:
    def could_gain(self, num_running: int) -> bool:
        return True

    def num_ahead(self, num_running: int) -> int:
        return 0

    def num_unseen(self, requests: Sequence[Draftable]) -> Mapping[int, int]:
        return {}

    def is_worth_waiting(self, requests: Sequence[Draftable]) -> bool:
        return True

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        """Nothing."""

    def hear(self, plan: StepPlan, guesses: Sequence[Sequence[int]]) -> None:
        """Nothing."""

    def draftable(self, requests: Sequence[Draftable]) -> list[Draftable]:
        return [request for request in requests if request.max_num_drafts and not request.num_pending]
