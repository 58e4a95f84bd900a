"""Finds the best tokens, maxima and sums of rows of logits over the vocabulary, which ranks may share.

Each rank has the logits of a range of ids and keeps them. What ranks tell each other are maxima, sums and as many
candidates as the sampling of a row asks for; every rank combines them in the same order and so chooses the same tokens.
"""

import torch
from torch import Tensor

from facet.kernels.log_sum_exp import log_sum_exp
from facet.layers.rank_group import RankGroup
from facet.sampling.candidates import Best, Candidates, best_token, first_ranked, top_candidates


class Vocabulary:
    """A vocabulary all of whose `size` tokens are here."""

    held: range | None = None  # the ids of the logits' columns; None: all

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def ids(self) -> slice:
        """The token ids of the logits' columns."""
        return slice(None) if self.held is None else slice(self.held.start, self.held.stop)

    def best_token(self, values: Tensor) -> Best:
        """The first of the best tokens of each row."""
        return best_token(values)

    def top_candidates(self, logits: Tensor, k: int) -> Candidates:
        """The best k tokens of each row, best first."""
        return top_candidates(logits, k)

    def row_max(self, logits: Tensor) -> Tensor:
        """The largest logit of each row, [rows]: NaN where any logit is."""
        return logits.amax(-1)

    def sum(self, sums: Tensor) -> Tensor:
        """The sums over the vocabulary, of sums over columns."""
        return sums

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        """The logarithm of the sum of exponentials, [rows, 1] float32."""
        return log_sum_exp(logits)

    def logits_of(self, logits: Tensor, token_ids: Tensor) -> Tensor:
        """The logits of n tokens [rows, n] in each row."""
        return logits.gather(1, token_ids)


class SharedVocabulary(Vocabulary):
    """A vocabulary that ranks share: they have equal ranges of ids, in their order."""

    def __init__(self, size: int, group: RankGroup) -> None:
        super().__init__(size)
        assert size % group.rank.size == 0, "ranks have equal shares"
        self._group = group
        width = size // group.rank.size
        self.held = range(group.rank.index * width, (group.rank.index + 1) * width)

    def best_token(self, values: Tensor) -> Best:
        best = best_token(values)
        maxima, token_ids = self._gather(best.row_max.unsqueeze(1), best.token_ids.unsqueeze(1))
        # The first maximum, or the first NaN, has the lowest id: ranks are in the order of their ids.
        found = maxima.max(-1, keepdim=True)
        return Best(token_ids.gather(1, found.indices).squeeze(1), found.values.squeeze(1))

    def top_candidates(self, logits: Tensor, k: int) -> Candidates:
        own = top_candidates(logits, min(k, logits.shape[-1]))
        # The largest logit travels beside them: one that is no number need not be among the candidates.
        with_max = torch.cat((own.row_max.float().unsqueeze(1), own.logits), dim=1)
        values, token_ids = self._gather(with_max, torch.cat((own.token_ids[:, :1], own.token_ids), dim=1))
        per_rank = (len(logits), self._group.rank.size, -1)
        candidates, ids = (each.view(per_rank)[..., 1:].flatten(1) for each in (values, token_ids))
        places = first_ranked(candidates, ids, min(k, self.size))
        row_max = values.view(per_rank)[..., 0].amax(-1)
        return Candidates(candidates.gather(1, places), ids.gather(1, places), row_max)

    def row_max(self, logits: Tensor) -> Tensor:
        return self._group.gather(logits.amax(-1).float()).amax(0)

    def sum(self, sums: Tensor) -> Tensor:
        return self._group.sum(sums)

    def log_sum_exp(self, logits: Tensor) -> Tensor:
        return self._group.gather(log_sum_exp(logits)).logsumexp(0)

    def logits_of(self, logits: Tensor, token_ids: Tensor) -> Tensor:
        assert self.held is not None
        own = token_ids - self.held.start
        is_here = (own >= 0) & (own < len(self.held))
        found = logits.gather(1, torch.where(is_here, own, 0)).float()
        owner = token_ids // len(self.held)
        return self._group.gather(found).gather(0, owner.unsqueeze(0)).squeeze(0)

    def _gather(self, values: Tensor, own_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers and ids [rows, n] of every rank, side by side: [rows, ranks * n], in one message."""
        assert self.held is not None
        token_ids = (own_ids + self.held.start).to(torch.int32)
        message = torch.stack((values.float().view(torch.int32), token_ids))
        gathered = self._group.gather(message).permute(1, 2, 0, 3).flatten(2)
        return gathered[0].contiguous().view(torch.float32), gathered[1].to(torch.int64)


def make_vocabulary(size: int, group: RankGroup | None) -> Vocabulary:
    return Vocabulary(size) if group is None else SharedVocabulary(size, group)
