"""Measures a training run: its progress, its speed and its losses."""

import time
from collections import deque

import torch
from torch import Tensor

from tools.bundled_model.settings import TrainSettings
from tools.bundled_model.stream import PROMPT, TARGET


class Clock:
    """How far the run is, and what is due. Starts when it is made."""

    def __init__(self, settings: TrainSettings) -> None:
        self._steps = settings.steps
        self._limit = None if settings.minutes is None else 60 * settings.minutes
        self._start = time.monotonic()
        self._last: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def progress(self, step: int) -> float:
        by_time = 0.0 if self._limit is None else self.seconds / self._limit
        return max(step / self._steps, by_time)

    def is_time(self, name: str, period: float) -> bool:
        if self.seconds - self._last.get(name, 0.0) < period:
            return False
        self._last[name] = self.seconds
        return True


class Pace:
    """Keeps the processor from running far ahead of a GPU, so that time measured here means something."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._events: deque[torch.cuda.Event] = deque()

    def wait(self) -> None:
        if not self._is_cuda:
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        if len(self._events) > 2:
            self._events.popleft().synchronize()


class Figures:
    """Sums over the steps since the last report, kept on the device until they are read."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)
        self._num_steps = 0
        self._num_tokens = 0
        self._since = time.monotonic()
        self._last: dict[str, float] = {}

    @torch.no_grad()
    def add(self, losses: Tensor, is_right: Tensor, label_kinds: Tensor, norm: Tensor) -> None:
        target, prompt = label_kinds == TARGET, label_kinds == PROMPT
        sums = [(losses * target).sum(), target.sum(), (losses * prompt).sum(), prompt.sum(), (is_right & target).sum()]
        self._sums += torch.stack([value.double() for value in (*sums, norm)])
        self._num_steps += 1
        self._num_tokens += losses.numel()

    def take(self, *, or_last: bool = False) -> dict[str, float]:
        """Means since the last call; with `or_last`, those taken before if there was no step since."""
        if or_last and not self._num_steps:
            return self._last
        target, num_target, prompt, num_prompt, num_right, norm = self._sums.tolist()
        now = time.monotonic()
        self._last = dict(
            target=target / max(1, num_target),
            prompt=prompt / max(1, num_prompt),
            right=num_right / max(1, num_target),
            norm=norm / max(1, self._num_steps),
            tokens_per_second=self._num_tokens / max(1e-9, now - self._since),
        )
        self._sums.zero_()
        self._num_steps = self._num_tokens = 0
        self._since = now
        return self._last
