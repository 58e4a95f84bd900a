"""A grammar that the library has compiled, once or, where texts are bounded in length, with and without the bounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from facet.sampling.bounded_matcher import BoundedMatcher, Bounds

if TYPE_CHECKING:
    import xgrammar


class Matcher(Protocol):
    """The library's, or one with its methods: follows one answer."""

    def accept_token(self, token_id: int, /) -> bool: ...
    def is_terminated(self) -> bool: ...
    def fill_next_token_bitmask(self, mask: NDArray[np.int32], /) -> object: ...
    def fork(self) -> "Matcher": ...


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """`counting` has the bounds and `whole` has not; None: there are none."""

    whole: "xgrammar.CompiledGrammar"
    counting: "xgrammar.CompiledGrammar | None" = None
    bounds: Bounds | None = None

    @property
    def num_bytes(self) -> int:
        return sum(int(each.memory_size_bytes) for each in (self.whole, self.counting) if each is not None)

    def matcher(self, stop_token_ids: Sequence[int], *, is_triggered: bool) -> Matcher:
        """`is_triggered`: it ends where its text does, without a stop token."""
        import xgrammar

        def follow(grammar: "xgrammar.CompiledGrammar") -> "xgrammar.GrammarMatcher":
            return xgrammar.GrammarMatcher(
                grammar, override_stop_tokens=list(stop_token_ids) or None, terminate_without_stop_token=is_triggered
            )

        if self.counting is None or self.bounds is None:
            return follow(self.whole)
        return BoundedMatcher(follow(self.whole), follow(self.counting), self.bounds)
