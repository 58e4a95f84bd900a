"""Defines what a client may ask for a picture, and what that means in soft tokens."""

from dataclasses import dataclass
from typing import Literal

from facet.media.spec import BUDGETS, PatchPictures

Detail = Literal["low", "auto", "high"]
_LARGEST_AUTO_BUDGET = 560


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureOptions:
    detail: Detail | None = None  # OpenAI's word; None: the model's own budget
    max_soft_tokens: int | None = None  # a budget in numbers, which wins over `detail`
    pan_and_scan: bool | None = None  # whether to add crops, in models that can; None: the model's own choice


def choose_budget(spec: PatchPictures, height: int, width: int, options: PictureOptions) -> int:
    """How many soft tokens a picture of this size may become."""
    if options.max_soft_tokens is not None:
        return options.max_soft_tokens
    match options.detail:
        case "low":
            return BUDGETS[0]
        case "high":
            return BUDGETS[-1]
        case "auto":
            # The smallest that does not shrink the picture. The largest budget is only for who asks for it.
            fitting = (budget for budget in BUDGETS if budget * spec.token_size**2 >= height * width)
            return min(next(fitting, BUDGETS[-1]), _LARGEST_AUTO_BUDGET)
        case None:
            return spec.budget
