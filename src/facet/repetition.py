"""Defines when an answer counts as a loop: the rule of the loop guard, and vLLM's `repetition_detection`."""

from dataclasses import dataclass, fields

from facet.errors import RequestError
from facet.field_values import as_int

_FIELD = "repetition_detection"
# Longer cycles would cost the scheduler more time per token than a step can spare.
MAX_PATTERN_SIZE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRule:
    """An output is a loop once it ends in a cycle of tokens that has come often enough and is long enough in all."""

    min_cycle: int
    max_cycle: int
    min_times: int
    min_tokens: int  # of all repetitions together

    def num_tokens(self, cycle: int) -> int:
        """How many tokens a cycle of this length must have filled."""
        return max(self.min_tokens, self.min_times * cycle)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetectionParams:
    """A client's own rule in place of the loop guard's: a pattern of tokens that comes `min_count` times in a row."""

    max_pattern_size: int = 0  # 0: no repetition ends the answer
    min_pattern_size: int = 0  # 0 means 1
    min_count: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            name = f"{_FIELD}.{field.name}"
            value = as_int(getattr(self, field.name), name)
            if value < 0:
                raise RequestError(f"{name} is {value}, but must be 0 or more.", field=name)
            object.__setattr__(self, field.name, value)
        if self.max_pattern_size > MAX_PATTERN_SIZE:
            raise RequestError(
                f"{_FIELD}.max_pattern_size is {self.max_pattern_size}, but must be at most {MAX_PATTERN_SIZE}.",
                field=f"{_FIELD}.max_pattern_size",
            )
        if self.min_pattern_size > self.max_pattern_size:
            raise RequestError(
                f"{_FIELD}.min_pattern_size is {self.min_pattern_size}, but max_pattern_size is "
                f"{self.max_pattern_size}. Lower the one or raise the other; with both 0 nothing is looked for.",
                field=f"{_FIELD}.min_pattern_size",
            )
        if self.max_pattern_size and self.min_count < 2:
            raise RequestError(
                f"{_FIELD}.min_count is {self.min_count}, but a pattern repeats from 2 times on. Raise it, or "
                "set max_pattern_size to 0 to look for nothing.",
                field=f"{_FIELD}.min_count",
            )

    @property
    def rule(self) -> LoopRule | None:
        if self.max_pattern_size == 0:
            return None
        return LoopRule(
            min_cycle=max(1, self.min_pattern_size),
            max_cycle=self.max_pattern_size,
            min_times=self.min_count,
            min_tokens=0,
        )


# The loop guard's rule. Real text has exact cycles too, such as indentation, the lines of tables and padding. Of 547
# files of source code, documentation and licences, 6 million tokens of the bundled model's vocabulary (4,096 tokens,
# so text takes far more of them than with Gemma's), 545 stay below half of what the rule asks for. One has 98% of it,
# a list of similar items; one would be ended, a table in which the same line comes 31 times in a row.
LOOP_GUARD = LoopRule(min_cycle=1, max_cycle=64, min_times=8, min_tokens=256)
