"""Trains a drafter on lessons: at every place it should draft what the model itself would choose."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tools.bundled_model.drafting.lessons import NOT_COUNTED, Lesson
from tools.bundled_model.drafting.model import Drafter, attend_from
from tools.bundled_model.model import Decoder
from tools.bundled_model.optimizer import Optimizer, clip_gradients

_MUON_RATE, _ADAMW_RATE, _MUON_DECAY = 0.02, 0.004, 0.01
_WARMUP_STEPS = 40
_DECAY_FROM = 0.4  # share of the run after which learning rates fall to nothing
_CLIP = 1.0
_WEIGHT_OF_THE_NEXT = 0.85  # of a draft's loss, beside the one before it: it counts only if that one is right
_LESSONS_PER_STEP = 4
_STEPS_PER_LINE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How often drafts are what the model chooses."""

    shares: tuple[float, ...]  # of places: the first draft is right, the first two are, and so on
    num_places: int

    @property
    def tokens_per_step(self) -> float:
        return 1 + sum(self.shares)

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.3f}" for share in self.shares)
        return f"right {shares}: {self.tokens_per_step:.2f} tokens a step"


def train(
    drafter: Drafter,
    target: Decoder,
    lessons: Sequence[Lesson],
    *,
    num_epochs: int,
    seed: int,
    report: Callable[[str], None],
) -> int:
    """Returns the number of steps."""
    optimizer = Optimizer(drafter, muon_rate=_MUON_RATE, adamw_rate=_ADAMW_RATE, muon_decay=_MUON_DECAY)
    shuffler = random.Random(seed)
    steps_per_epoch = -(-len(lessons) // _LESSONS_PER_STEP)
    num_steps, step, losses = num_epochs * steps_per_epoch, 0, list[float]()
    for _ in range(num_epochs):
        order = shuffler.sample(range(len(lessons)), len(lessons))
        for first in range(0, len(order), _LESSONS_PER_STEP):
            chosen = [lessons[index] for index in order[first : first + _LESSONS_PER_STEP]]
            num_places = max(1, sum(lesson.num_places for lesson in chosen))
            total = 0.0
            for lesson in chosen:
                loss = loss_of(drafter, target, lesson) / num_places
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
            clip_gradients(drafter.parameters(), _CLIP)
            optimizer.step(_rate(step, num_steps))
            step += 1
            losses.append(total)
            if step % _STEPS_PER_LINE == 0:
                report(f"step {step} of {num_steps}: loss {sum(losses) / len(losses):.3f}")
                losses.clear()
    return num_steps


def loss_of(drafter: Drafter, target: Decoder, lesson: Lesson) -> Tensor:
    """The sum over all drafts of all places, the later ones counting less."""
    labels = lesson.labels.unbind(dim=2)
    losses = [
        _WEIGHT_OF_THE_NEXT**place * cross_entropy(logits, labels[place][is_counted], reduction="sum")
        for place, (logits, is_counted) in enumerate(draft_logits(drafter, target, lesson))
    ]
    return torch.stack(losses).sum()


def draft_logits(drafter: Drafter, target: Decoder, lesson: Lesson) -> list[tuple[Tensor, Tensor]]:
    """By draft: logits of the places that count, and which these are [B, Q]. Each draft follows the right token."""
    dtype = target.dtype
    stored = {layer: (keys.to(dtype), values.to(dtype)) for layer, (keys, values) in lesson.stored.items()}
    kinds = {layer.attention for layer in drafter.spec.decoder.layers}
    angles = {kind: target.angles(kind)[lesson.places] for kind in kinds}
    attend, hidden = attend_from(lesson.places, lesson.length), lesson.hidden.to(dtype)
    found = []
    for place in range(lesson.labels.shape[2]):
        state, hidden = drafter(target.embed(lesson.token_ids[:, :, place]), hidden, angles, stored, attend)
        is_counted = lesson.labels[:, :, place] != NOT_COUNTED
        found.append((drafter.embed_tokens(state[is_counted]), is_counted))
    return found


@torch.no_grad()
def acceptance(drafter: Drafter, target: Decoder, lessons: Sequence[Lesson]) -> Acceptance:
    num_drafts = lessons[0].labels.shape[2]
    num_right, num_places = torch.zeros(num_drafts), 0
    for lesson in lessons:
        are_right = torch.ones(lesson.places.shape, dtype=torch.bool)
        for place, (logits, is_counted) in enumerate(draft_logits(drafter, target, lesson)):
            is_right = torch.zeros_like(are_right)
            is_right[is_counted] = logits.argmax(dim=-1) == lesson.labels[:, :, place][is_counted]
            are_right &= is_right
            num_right[place] += are_right.sum()
        num_places += lesson.num_places
    return Acceptance(shares=tuple((num_right / max(1, num_places)).tolist()), num_places=num_places)


def _rate(step: int, num_steps: int) -> float:
    done = step / num_steps
    return min(1.0, (step + 1) / _WARMUP_STEPS, (1.0 - done) / (1.0 - _DECAY_FROM))
