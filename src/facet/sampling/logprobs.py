"""Computes log-probabilities of tokens from the model's own logits, before any setting of the request changes them.

Used for sampled tokens (by the sampler) and for prompt tokens (`prompt_logprobs`). Ranks start at 1 and
follow the order of `candidates.py`, so a token listed among the best k has the rank of its place there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.kernels.log_sum_exp import log_sum_exp
from facet.sampling.batch_seats import Arrival, BatchSeats, row_slices
from facet.sampling.candidates import top_candidates
from facet.sampling_params import WHOLE_VOCABULARY
from facet.token_logprobs import TokenLogprobs
from facet.transfer import indices_on_device

# Requests for at most so many share one set of tensors; each larger one gets its own, so that one request for
# the whole vocabulary does not make its neighbours carry as much.
_SHARED_LIMIT = 64


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Some rows' log-probabilities. Column 0 is the token itself, columns 1 .. k the best k in order."""

    places: tuple[int, ...]  # the rows of the step's logits these belong to
    num_top: tuple[int, ...]  # how many of the k columns each row asked for
    token_ids: Tensor  # [rows, 1 + k] int64
    logprobs: Tensor  # [rows, 1 + k] float32
    ranks: Tensor  # [rows] int64, of the token itself

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.token_ids, self.logprobs, self.ranks

    def with_tensors(self, token_ids: Tensor, logprobs: Tensor, ranks: Tensor) -> "LogprobTensors":
        return LogprobTensors(self.places, self.num_top, token_ids, logprobs, ranks)

    def to_list(self) -> list[TokenLogprobs]:
        """One entry per row; waits for the device if the tensors are on one."""
        columns = zip(self.num_top, self.token_ids.tolist(), self.logprobs.tolist(), self.ranks.tolist(), strict=True)
        return [
            TokenLogprobs(token_ids[: 1 + k], logprobs[: 1 + k], [rank, *range(1, 1 + k)])
            for k, token_ids, logprobs, rank in columns
        ]


class Logprobs:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._num_top: dict[int, int] = {}

    def add_request(self, arrival: Arrival) -> None:
        if arrival.params.logprobs is not None:
            self._num_top[arrival.seat] = _resolve(arrival.params.logprobs, self._vocab_size)

    def remove_request(self, seat: int) -> None:
        self._num_top.pop(seat, None)

    def raw_logits(self, logits: Tensor, batch: BatchSeats, *, will_change: bool) -> "RawLogits | None":
        """What is needed of the logits before they change: only the rows of requests that ask, copied only if
        they are about to be overwritten. None where no request asks."""
        if not self._num_top:
            return None
        users = [(place, self._num_top[seat]) for place, seat in enumerate(batch.seats) if seat in self._num_top]
        if not users:
            return None
        places = tuple(place for place, _ in users)
        if len(users) < len(batch):
            logits = logits[indices_on_device(places, batch.device)]
        elif will_change:
            logits = logits.clone()
        return RawLogits(logits, places, tuple(num_top for _, num_top in users))


@dataclass(frozen=True, slots=True)
class RawLogits:
    """Rows of logits kept until their tokens are known."""

    logits: Tensor
    places: tuple[int, ...]
    num_top: tuple[int, ...]

    def of_tokens(self, token_ids: Tensor) -> tuple[LogprobTensors, ...]:
        """The log-probabilities of the tokens chosen for the whole batch."""
        shared = [index for index, k in enumerate(self.num_top) if k <= _SHARED_LIMIT]
        groups = [[index] for index, k in enumerate(self.num_top) if k > _SHARED_LIMIT]
        return tuple(self._of_group(group, token_ids) for group in [shared, *groups] if group)

    def _of_group(self, group: list[int], token_ids: Tensor) -> LogprobTensors:
        places = tuple(self.places[index] for index in group)
        num_top = tuple(self.num_top[index] for index in group)
        device = self.logits.device
        logits = self.logits if len(group) == len(self.places) else self.logits[indices_on_device(group, device)]
        if len(places) < len(token_ids):
            token_ids = token_ids[indices_on_device(places, device)]
        return _token_logprobs(logits, token_ids, places, num_top)


def prompt_logprobs(logits: Tensor, next_token_ids: Tensor, num_top: int) -> LogprobTensors:
    """For consecutive prompt positions [positions, vocab] and the token that follows each [positions].

    `num_top` is the request's `prompt_logprobs`. The logits are not changed.
    """
    num_positions, vocab_size = logits.shape
    counts = (_resolve(num_top, vocab_size),) * num_positions
    return _token_logprobs(logits, next_token_ids, tuple(range(num_positions)), counts)


def _resolve(num_top: int, vocab_size: int) -> int:
    return vocab_size if num_top == WHOLE_VOCABULARY else min(num_top, vocab_size)


def _token_logprobs(
    logits: Tensor, token_ids: Tensor, places: tuple[int, ...], num_top: tuple[int, ...]
) -> LogprobTensors:
    num_rows, vocab_size = logits.shape
    k = max(num_top, default=0)
    all_ids = torch.empty(num_rows, 1 + k, dtype=torch.int64, device=logits.device)
    all_logprobs = torch.empty(num_rows, 1 + k, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    own_ids = token_ids.unsqueeze(-1)
    all_ids[:, :1] = own_ids
    all_logprobs[:, :1] = logits.gather(1, own_ids)
    parts = list(row_slices(num_rows, vocab_size, logits.device))
    # A few candidates take little memory for all rows at once; many take as much as a part may.
    for part in [] if k == 0 else [slice(None)] if k <= _SHARED_LIMIT else parts:
        best = top_candidates(logits[part], k)
        all_ids[part, 1:] = best.token_ids
        all_logprobs[part, 1:] = best.logits
    vocabulary = torch.arange(vocab_size, dtype=torch.int32, device=logits.device)
    for part in parts:
        some_logits = logits[part].float()
        own_logits = all_logprobs[part, :1].clone()
        all_logprobs[part] -= log_sum_exp(some_logits)
        is_before = some_logits > own_logits
        is_before |= (some_logits == own_logits) & (vocabulary < own_ids[part].to(torch.int32))
        ranks[part] = is_before.sum(-1).add_(1)
    return LogprobTensors(places, num_top, all_ids, all_logprobs, ranks)
