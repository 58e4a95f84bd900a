"""Defines what a client may ask about media, and what that means in soft tokens.

The same options may come with one part of a message, with a request, and with a flag: the nearest one wins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from facet.errors import RequestError
from facet.media.spec import BUDGETS, MediaSpec, PatchPictures

Detail = Literal["low", "auto", "high"]
_LARGEST_AUTO_BUDGET = 560
MOST_FRAMES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOptions:
    """What a request says of an item of media. None: nothing was said."""

    detail: Detail | None = None  # of a picture, in OpenAI's words
    max_soft_tokens: int | None = None  # of a picture or a frame, in numbers, which win over `detail`
    pan_and_scan: bool | None = None  # whether to add crops, in models that can
    num_frames: int | None = None  # of a video

    def over(self, others: "MediaOptions") -> "MediaOptions":
        """These, and the others' where nothing was said. A detail given here is not overruled by numbers of theirs."""
        says_size = self.detail is not None or self.max_soft_tokens is not None
        size = self if says_size else others
        return MediaOptions(
            detail=size.detail,
            max_soft_tokens=size.max_soft_tokens,
            pan_and_scan=others.pan_and_scan if self.pan_and_scan is None else self.pan_and_scan,
            num_frames=others.num_frames if self.num_frames is None else self.num_frames,
        )


def read_processor_kwargs(given: Mapping[str, Any] | None, field: str = "mm_processor_kwargs") -> MediaOptions:
    """The options in a request's `mm_processor_kwargs`, or a flag's, under the names of the models' processors."""
    if given is None:
        return MediaOptions()
    known = ("max_soft_tokens", "do_pan_and_scan", "num_frames")
    if unknown := sorted(set(given) - set(known)):
        raise RequestError(f"{field} names {unknown[0]!r}. Known: {', '.join(known)}.", field=field)
    return read_named_options(given, field, field)


def read_named_options(given: Mapping[Any, Any], where: str, field: str) -> MediaOptions:
    """The options among the entries of `given`, which stands at `where`, a place in `field`."""
    pan_and_scan = given.get("do_pan_and_scan")
    if pan_and_scan is not None and not isinstance(pan_and_scan, bool):
        raise RequestError(f"{where}.do_pan_and_scan must be true or false.", field=field)
    return MediaOptions(
        max_soft_tokens=read_budget(given.get("max_soft_tokens"), f"{where}.max_soft_tokens", field),
        pan_and_scan=pan_and_scan,
        num_frames=_read_num_frames(given.get("num_frames"), f"{where}.num_frames", field),
    )


def read_budget(value: object, name: str, field: str) -> int | None:
    if value is None or (type(value) is int and value in BUDGETS):
        return value
    raise RequestError(f"{name} is {str(value)[:40]}, but must be one of {', '.join(map(str, BUDGETS))}.", field=field)


def _read_num_frames(value: object, name: str, field: str) -> int | None:
    if value is None or (type(value) is int and 1 <= value <= MOST_FRAMES):
        return value
    raise RequestError(f"{name} is {str(value)[:40]}, but must be from 1 to {MOST_FRAMES}.", field=field)


def check_options(options: MediaOptions, spec: MediaSpec, field: str) -> None:
    """Refuses options that would mean nothing for this model. A detail is only a wish, which clients add unasked."""
    if options != MediaOptions() and not spec.kinds:
        raise RequestError(f"{field} is about media, but this server reads text only. Leave it out.", field=field)
    if options.max_soft_tokens is not None and not isinstance(spec.pictures, PatchPictures):
        raise RequestError(
            "max_soft_tokens is given, but every picture has the same number of tokens in this model. Leave it out.",
            field=field,
        )
    has_crops = spec.pictures is not None and getattr(spec.pictures, "pan_and_scan", None) is not None
    if options.pan_and_scan and not has_crops:
        raise RequestError("do_pan_and_scan is given, but this model shows no crops. Leave it out.", field=field)


def choose_budget(spec: PatchPictures, height: int, width: int, options: MediaOptions) -> int:
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
