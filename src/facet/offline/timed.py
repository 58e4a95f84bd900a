"""An `LLM` that measures its calls, for offline benchmarks. Knows no dataset and prints nothing."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from facet.offline.llm import LLM, Conversation
from facet.offline.outputs import RequestOutput
from facet.offline.prompts import Prompt
from facet.sampling_params import SamplingParams
from facet.tokens import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """One call of `generate`, in numbers."""

    seconds: float
    num_prompt_tokens: int
    num_output_tokens: int
    errors: tuple[str, ...] = ()  # why answers failed, one for each that did


class TimedLLM(LLM):
    """Everything an `LLM` does between a call and its return counts: encoding, running, making text."""

    @property
    def max_model_len(self) -> int:
        return self._engine.info.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._engine.info.vocab_size

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._asked.tokenizer

    @property
    def start_lines(self) -> tuple[str, ...]:
        """The lines that the engine prints at start-up."""
        return self._engine.info.lines

    def timed(
        self, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams], *, show_progress: bool = False
    ) -> TimedRun:
        start = time.perf_counter()
        outputs = self.generate(prompts, sampling, use_tqdm=show_progress)
        return _counted(outputs, time.perf_counter() - start)

    def timed_chats(
        self, chats: Sequence[Conversation], sampling: Sequence[SamplingParams], *, show_progress: bool = False
    ) -> TimedRun:
        """Like `timed`; decoding and preparing media count, too."""
        start = time.perf_counter()
        outputs = self.chat(chats, sampling, use_tqdm=show_progress)
        return _counted(outputs, time.perf_counter() - start)


def _counted(outputs: Sequence[RequestOutput], seconds: float) -> TimedRun:
    answers = [answer for output in outputs for answer in output.outputs]
    return TimedRun(
        seconds=seconds,
        num_prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        num_output_tokens=sum(len(answer.token_ids) for answer in answers),
        errors=tuple(answer.error or "unknown" for answer in answers if answer.finish_reason == "error"),
    )
