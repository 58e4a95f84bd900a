"""Names one of the processes that compute a model together.

With tensor parallelism every process, a *rank*, holds a share of each layer, of the embeddings and of the KV cache, and
all of them compute the same steps. Rank 0 plans.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One of `size` ranks."""

    index: int = 0
    size: int = 1
    gpu: int | None = None  # of those that its process sees; None: the one with the rank's own number

    def __post_init__(self) -> None:
        assert 0 <= self.index < self.size, f"rank {self.index} of {self.size}"

    @property
    def plans(self) -> bool:
        return self.index == 0


ALONE = Rank()
