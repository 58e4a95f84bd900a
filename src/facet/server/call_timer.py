"""Times the answers of one call, for metrics, the log and traces."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from facet.request import Request
from facet.server.metrics import Metrics
from facet.server.traces import AnswerTrace, Traces

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Who hears of the answers of a call."""

    metrics: Metrics
    traces: Traces | None = None
    headers: Mapping[str, str] | None = None  # of the HTTP request; they may name a trace that this is part of
    log_as: str | None = None  # the id under which each answer gets a line in the log; None: no lines


@dataclass(slots=True)
class _Times:
    """One answer, on the clock of `time.monotonic`."""

    first: float
    last: float
    queue_seconds: float
    prefill_seconds: float


class CallTimer:
    def __init__(self, requests: Sequence[Request], observers: Observers, *, n: int) -> None:
        """`requests` are those of each prompt's n answers, one prompt after the other."""
        self.start, self._start_of_day = time.monotonic(), time.time()
        self._requests, self._n = requests, n
        self._observers = observers
        self._times: dict[int, _Times] = {}
        self._num_open = [n] * (len(requests) // n)  # answers by prompt
        self._longest = [0] * len(self._num_open)
        metrics, max_tokens = observers.metrics, requests[0].sampling.max_tokens
        metrics.asked_n.observe(n)
        if max_tokens is not None:
            metrics.asked_tokens.observe(max_tokens)

    def on_tokens(self, index: int, now: float, queue_seconds: float) -> None:
        """`queue_seconds` is what the engine says this answer waited for its first step."""
        metrics, times = self._observers.metrics, self._times.get(index)
        if times is None:
            prefill_seconds = max(0.0, now - self.start - queue_seconds)
            self._times[index] = _Times(now, now, queue_seconds, prefill_seconds)
            metrics.first_token.observe(now - self.start)
            metrics.queued.observe(queue_seconds)
            metrics.prefill.observe(prefill_seconds)
        else:
            metrics.between_tokens.observe(now - times.last)
            times.last = now

    def on_end(self, index: int, reason: str, num_tokens: int, *, num_cached_tokens: int, is_loop: bool) -> None:
        now, metrics, times = time.monotonic(), self._observers.metrics, self._times.get(index)
        num_prompt_tokens = len(self._requests[index].prompt_token_ids)
        metrics.count_end(reason)
        if is_loop:
            metrics.loops.inc()
        metrics.whole.observe(now - self.start)
        metrics.prompt_length.observe(num_prompt_tokens)
        metrics.computed_length.observe(num_prompt_tokens - num_cached_tokens)
        metrics.answer_length.observe(num_tokens)
        self._note_length(index // self._n, num_tokens)
        if times is not None:
            metrics.decode.observe(times.last - times.first)
            metrics.inference.observe(times.prefill_seconds + times.last - times.first)
            if num_tokens > 1:
                metrics.per_token.observe((now - times.first) / (num_tokens - 1))
        if self._observers.log_as is not None:
            adapter = self._requests[index].adapter
            logger.info(
                "%s[%d]: %d + %d tokens, %s, %.3f s%s",
                self._observers.log_as, index, num_prompt_tokens, num_tokens, reason, now - self.start,
                "" if adapter is None else f", with {adapter}",
            )  # fmt: skip
        if self._observers.traces is not None:
            self._trace(self._observers.traces, index, reason, num_tokens, now)

    def on_failure(self, reason: str, num_others: int) -> None:
        """The engine ended an answer for this reason, and with it as many others of the call that had not ended."""
        self._observers.metrics.count_end(reason)
        self.on_gone(num_others)

    def on_gone(self, num_open: int) -> None:
        """Takes note that nobody wants the rest of this many answers."""
        for _ in range(num_open):
            self._observers.metrics.count_end("abort")

    def _note_length(self, prompt: int, num_tokens: int) -> None:
        self._num_open[prompt] -= 1
        self._longest[prompt] = max(self._longest[prompt], num_tokens)
        if not self._num_open[prompt]:
            self._observers.metrics.longest_answer.observe(self._longest[prompt])

    def _trace(self, traces: Traces, index: int, reason: str, num_tokens: int, now: float) -> None:
        times = self._times.get(index)
        traces.record(
            AnswerTrace(
                request=self._requests[index],
                n=self._n,
                num_tokens=num_tokens,
                finish_reason=reason,
                start=self._start_of_day,
                seconds=now - self.start,
                seconds_to_first_token=None if times is None else times.first - self.start,
                queue_seconds=None if times is None else times.queue_seconds,
                prefill_seconds=None if times is None else times.prefill_seconds,
                decode_seconds=None if times is None else times.last - times.first,
            ),
            self._observers.headers or {},
        )
