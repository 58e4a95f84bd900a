"""What a drafter learns from: dialogues as the model reads them, and how the model itself goes on at every place.

A *lesson* is a batch of documents, padded to the longest, with all that the model computed of them and a drafter
reads. It is computed once and used many times.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from facet.model_spec import AttentionKind, ModelSpec
from tools.bundled_model.attention import dense_attend
from tools.bundled_model.model import Decoder, KeysAndValues
from tools.bundled_model.stream import Example

NOT_COUNTED = -100  # a label that cross-entropy passes over
STORED = torch.bfloat16  # keys, values and hidden states, which take most of the memory
_DOCUMENTS_SORTED = 512  # so that those of a lesson are about as long and have about as many places
_ABOUT = 64  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """B documents of at most T tokens, Q places of each, K drafts from each place."""

    places: Tensor  # [B, Q]: of the hidden states from which the tokens that drafts follow were chosen
    hidden: Tensor  # [B, Q, width]: those states
    token_ids: Tensor  # [B, Q, K]: the token that each draft follows
    labels: Tensor  # [B, Q, K]: what the model itself would choose there, or NOT_COUNTED
    stored: Mapping[int, KeysAndValues]  # by layer of the model, [B, heads, T, dim]

    @property
    def length(self) -> int:
        return next(iter(self.stored.values()))[0].shape[2]

    @property
    def num_places(self) -> int:
        return int((self.labels[:, :, 0] != NOT_COUNTED).sum())


def make_lessons(
    target: Decoder, examples: Iterable[Example], *, num_drafts: int, tokens_per_lesson: int, longest: int
) -> Iterator[Lesson]:
    """Lessons of about so many tokens each, as long as there are examples; those that are longer are passed over."""
    for group in _groups(examples, tokens_per_lesson, longest):
        yield make_lesson(target, group, num_drafts)


@torch.no_grad()
def make_lesson(target: Decoder, examples: list[Example], num_drafts: int) -> Lesson:
    num_documents, length = len(examples), max(len(example.token_ids) for example in examples)
    token_ids = torch.zeros(num_documents, length + num_drafts, dtype=torch.int64)
    is_own = torch.zeros(num_documents, length + num_drafts + 1, dtype=torch.bool)  # tokens the model must produce
    for row, example in enumerate(examples):
        token_ids[row, : len(example.token_ids)] = torch.tensor(example.token_ids)
        is_own[row, : len(example.token_ids)] = torch.tensor(example.is_target)
    given = token_ids[:, :length]
    # Padding lies behind every token, where no one sees it.
    state, stored = target.states(given, torch.arange(length).expand_as(given), dense_attend(torch.zeros_like(given)))

    # From p, the first draft follows token p + 1 and should be what the model chooses there, as token p + 2.
    is_place = is_own[:, 1 : length + 1] & is_own[:, 2 : length + 2]
    num_places = max(1, int(is_place.sum(dim=1).max()))
    order = is_place.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    places = order[:, :num_places]
    is_real = is_place.gather(1, places)
    follows = places[:, :, None] + 1 + torch.arange(num_drafts)
    chosen = torch.zeros_like(token_ids)
    # Tens of megabytes of logits at a time, not gigabytes.
    for row in range(num_documents):
        chosen[row, :length] = target.logits(state[row]).argmax(dim=-1)
    # As long as the model is at it: where its reply ends, so do the drafts.
    counts = _gather(is_own, follows + 1).cumprod(dim=2).bool() & is_real[:, :, None]
    return Lesson(
        places=places,
        hidden=state.gather(1, places[:, :, None].expand(-1, -1, state.shape[2])).to(STORED),
        token_ids=_gather(token_ids, follows),
        labels=_gather(chosen, follows).masked_fill(~counts, NOT_COUNTED),
        stored={
            layer: (own[0].to(STORED), own[1].to(STORED))
            for layer in layers_read(target.spec)
            if (own := stored[layer]) is not None
        },
    )


def layers_read(spec: ModelSpec) -> set[int]:
    """Whose keys drafters read: the last of each kind that owns some."""
    last: dict[AttentionKind, int] = {layer.attention: layer.index for layer in spec.layers if layer.owns_kv}
    return set(last.values())


def _gather(values: Tensor, places: Tensor) -> Tensor:
    """[B, T] at [B, Q, K]."""
    found: Tensor = values.gather(1, places.flatten(1)).view(places.shape)
    return found


def _groups(examples: Iterable[Example], num_tokens: int, longest: int) -> Iterator[list[Example]]:
    fitting = (example for example in examples if len(example.token_ids) <= longest)
    while chunk := list(islice(fitting, _DOCUMENTS_SORTED)):
        chunk.sort(key=lambda example: (len(example.token_ids) // _ABOUT, sum(example.is_target)))
        group: list[Example] = []
        for example in chunk:
            length = max(len(one.token_ids) for one in (*group, example))
            if group and (len(group) + 1) * length > num_tokens:
                yield group
                group = []
            group.append(example)
        yield group
