"""Computes log-probabilities of tokens from the model's own logits, before any setting of the request changes them.

Used for sampled tokens (by the sampler), with the best k or with tokens that the request names, and for prompt tokens
(`prompt_logprobs`). Ranks start at 1 and follow the order of `candidates.py`, so a token listed among the best k has
the rank of its place there.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from facet.sampling.batch_seats import Arrival, BatchSeats, row_slices
from facet.sampling.vocabulary import Vocabulary
from facet.sampling_params import WHOLE_VOCABULARY
from facet.token_logprobs import TokenLogprobs
from facet.transfer import indices_on_device

# Requests for at most so many share one set of tensors; each larger one gets its own, so that one request for
# the whole vocabulary does not make its neighbours carry as much.
_SHARED_LIMIT = 64


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Log-probabilities of some rows. Column 0 is the token itself, columns 1 .. k the best k or the named ones."""

    places: tuple[int, ...]  # the rows of the step's logits these belong to
    num_others: tuple[int, ...]  # how many of the k columns each row asked for
    token_ids: Tensor  # [rows, 1 + k] int64
    logprobs: Tensor  # [rows, 1 + k] float32
    ranks: Tensor  # [rows, 1] int64 of the token itself, or [rows, 1 + k] if the others are not the best in order

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.token_ids, self.logprobs, self.ranks

    def with_tensors(self, token_ids: Tensor, logprobs: Tensor, ranks: Tensor) -> "LogprobTensors":
        return LogprobTensors(self.places, self.num_others, token_ids, logprobs, ranks)

    def to_list(self) -> list[TokenLogprobs]:
        """One entry per row; waits for the device if the tensors are on one."""
        rows = zip(self.num_others, self.token_ids.tolist(), self.logprobs.tolist(), self.ranks.tolist(), strict=True)
        return [
            TokenLogprobs(token_ids[: 1 + k], logprobs[: 1 + k], [*ranks, *range(1, 1 + k)][: 1 + k])
            for k, token_ids, logprobs, ranks in rows
        ]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a request asks for beside the token itself."""

    num_top: int
    named: tuple[int, ...] = ()


class Logprobs:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._wanted: dict[int, _Wanted] = {}  # by seat

    def add_request(self, arrival: Arrival) -> None:
        params = arrival.params
        if params.logprobs is not None:
            num_top = _resolve(params.logprobs, self._vocabulary.size)
            self._wanted[arrival.seat] = _Wanted(num_top, tuple(params.logprob_token_ids or ()))

    def remove_request(self, seat: int) -> None:
        self._wanted.pop(seat, None)

    def raw_logits(self, logits: Tensor, batch: BatchSeats, *, will_change: bool) -> "RawLogits | None":
        """What is needed of the logits before they change: only the rows of requests that ask, copied only if
        they are about to be overwritten. None where no request asks."""
        if not self._wanted:
            return None
        users = [(place, self._wanted[seat]) for place, seat in enumerate(batch.seats) if seat in self._wanted]
        if not users:
            return None
        places = tuple(place for place, _ in users)
        if len(users) < len(batch):
            logits = logits[indices_on_device(places, batch.device)]
        elif will_change:
            logits = logits.clone()
        return RawLogits(logits, places, tuple(wanted for _, wanted in users), self._vocabulary)


@dataclass(frozen=True, slots=True)
class RawLogits:
    """Rows of logits kept until their tokens are known."""

    logits: Tensor
    places: tuple[int, ...]
    wanted: tuple[_Wanted, ...]
    vocabulary: Vocabulary

    def of_tokens(self, token_ids: Tensor) -> tuple[LogprobTensors, ...]:
        """The log-probabilities of the tokens chosen for the whole batch."""
        best = [index for index, wanted in enumerate(self.wanted) if not wanted.named]
        named = [index for index, wanted in enumerate(self.wanted) if wanted.named]
        shared = [index for index in best if self.wanted[index].num_top <= _SHARED_LIMIT]
        groups = [[index] for index in best if self.wanted[index].num_top > _SHARED_LIMIT]
        found = [self._best(group, token_ids) for group in (shared, *groups) if group]
        return (*found, self._named(named, token_ids)) if named else tuple(found)

    def _best(self, group: list[int], token_ids: Tensor) -> LogprobTensors:
        num_top = tuple(self.wanted[index].num_top for index in group)
        return _token_logprobs(*self._rows(group, token_ids), self._places(group), num_top, self.vocabulary)

    def _named(self, group: list[int], token_ids: Tensor) -> LogprobTensors:
        named = tuple(self.wanted[index].named for index in group)
        return _named_logprobs(*self._rows(group, token_ids), self._places(group), named, self.vocabulary)

    def _places(self, group: list[int]) -> tuple[int, ...]:
        return tuple(self.places[index] for index in group)

    def _rows(self, group: list[int], token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of some rows, and the tokens chosen for them."""
        device, places = self.logits.device, self._places(group)
        logits = self.logits if len(group) == len(self.places) else self.logits[indices_on_device(group, device)]
        if len(places) < len(token_ids):
            token_ids = token_ids[indices_on_device(places, device)]
        return logits, token_ids


def prompt_logprobs(
    logits: Tensor, next_token_ids: Tensor, num_top: int, vocabulary: Vocabulary | None = None
) -> LogprobTensors:
    """The logprobs at consecutive prompt positions [positions, vocab] of the token that follows each [positions].

    `num_top` is the request's `prompt_logprobs`. The logits are not changed. `vocabulary`: whose share they are of;
    None: they are of all tokens.
    """
    vocabulary = vocabulary or Vocabulary(logits.shape[-1])
    num_positions = len(logits)
    counts = (_resolve(num_top, vocabulary.size),) * num_positions
    return _token_logprobs(logits, next_token_ids, tuple(range(num_positions)), counts, vocabulary)


def _resolve(num_top: int, vocab_size: int) -> int:
    return vocab_size if num_top == WHOLE_VOCABULARY else min(num_top, vocab_size)


def _token_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    places: tuple[int, ...],
    num_top: tuple[int, ...],
    vocabulary: Vocabulary,
) -> LogprobTensors:
    num_rows, num_columns = logits.shape
    k = max(num_top, default=0)
    all_ids = torch.empty(num_rows, 1 + k, dtype=torch.int64, device=logits.device)
    all_logprobs = torch.empty(num_rows, 1 + k, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(num_rows, 1, dtype=torch.int64, device=logits.device)
    own_ids = token_ids.unsqueeze(-1)
    all_ids[:, :1] = own_ids
    all_logprobs[:, :1] = vocabulary.logits_of(logits, own_ids)
    parts = list(row_slices(num_rows, num_columns, logits.device))
    # A few candidates take little memory for all rows at once; many take as much as a part may.
    for part in [] if k == 0 else [slice(None)] if k <= _SHARED_LIMIT else parts:
        best = vocabulary.top_candidates(logits[part], k)
        all_ids[part, 1:] = best.token_ids
        all_logprobs[part, 1:] = best.logits
    for part in parts:
        some_logits = logits[part].float()
        ranks[part] = _ranks(some_logits, own_ids[part], all_logprobs[part, :1], vocabulary)
        all_logprobs[part] -= vocabulary.log_sum_exp(some_logits)
    return LogprobTensors(places, num_top, all_ids, all_logprobs, ranks)


def _named_logprobs(
    logits: Tensor,
    token_ids: Tensor,
    places: tuple[int, ...],
    named: tuple[tuple[int, ...], ...],
    vocabulary: Vocabulary,
) -> LogprobTensors:
    counts = tuple(map(len, named))
    padded = [token_id for ids in named for token_id in (*ids, *[0] * (max(counts) - len(ids)))]
    columns = indices_on_device(padded, logits.device).view(len(named), max(counts))
    all_ids = torch.cat((token_ids.unsqueeze(-1), columns), dim=1)
    all_logprobs = vocabulary.logits_of(logits, all_ids).float()
    ranks = torch.empty_like(all_ids)
    for part in row_slices(len(named), logits.shape[-1], logits.device):
        some_logits = logits[part].float()
        for column in range(all_ids.shape[1]):
            one = slice(column, column + 1)
            ranks[part, one] = _ranks(some_logits, all_ids[part, one], all_logprobs[part, one], vocabulary)
        all_logprobs[part] -= vocabulary.log_sum_exp(some_logits)
    return LogprobTensors(places, counts, all_ids, all_logprobs, ranks)


def _ranks(logits: Tensor, token_ids: Tensor, token_logits: Tensor, vocabulary: Vocabulary) -> Tensor:
    """The rank of one token in each row [rows, 1]: how many come before it, and itself."""
    ids = torch.arange(vocabulary.size, dtype=torch.int32, device=logits.device)[vocabulary.ids]
    is_before = logits > token_logits
    is_before |= (logits == token_logits) & (ids < token_ids.to(torch.int32))
    return vocabulary.sum(is_before.sum(-1, keepdim=True)).add_(1)
