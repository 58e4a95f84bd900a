"""`LLM`: a model to call from Python."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from facet.bundled_model import find_bundled_model
from facet.chat.template import ChatTemplate
from facet.config import EngineConfig
from facet.engine.client import EngineClient, RemoteEngine
from facet.engine.local_engine import LocalEngine
from facet.engine.messages import Refused, Stats, Token
from facet.errors import EngineError, RequestError
from facet.model.generation_config import read_generation_config
from facet.offline.collector import Collector
from facet.offline.outputs import CompletionOutput, RequestOutput
from facet.offline.prompts import Prompt, as_list, text_or_ids
from facet.progress import Advance, Bars, Progress, Silent
from facet.request import Request
from facet.sampling_params import MODEL_CONTEXT, SamplingParams
from facet.tokens import Tokenizer
from facet.tokens.bad_words import bad_words_token_ids

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """Loads a model and answers prompts, all of a call at once.

        llm = LLM("google/gemma-4-E4B-it")
        print(llm.generate("The capital of France is")[0].outputs[0].text)

    Without a name it is the bundled model. Settings are those of `EngineConfig`. `separate_process` runs the engine in
    a process of its own, as a server does.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        skip_tokenizer_init: bool = False,
        separate_process: bool = False,
        show_progress: bool = True,
        **settings: Any,
    ) -> None:
        config = EngineConfig(model=str(find_bundled_model()) if model is None else model, **settings)
        self._progress: Progress = Bars() if show_progress else Silent()
        self._engine: EngineClient = (
            RemoteEngine(config, show_progress=show_progress)
            if separate_process
            else LocalEngine(config, self._progress)
        )
        folder = Path(self._engine.info.folder)
        generation = read_generation_config(folder)
        self._eos_token_ids = generation.eos_token_ids or self._engine.info.eos_token_ids
        self._sampling_defaults = generation.sampling_defaults()
        self._tokenizer = None if skip_tokenizer_init else Tokenizer.from_folder(folder)
        self._template = None
        if self._tokenizer is not None:
            self._template = ChatTemplate.from_folder(folder, special_tokens=self._tokenizer.special_tokens)
        self._ids = itertools.count()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend; used where a call gives no settings."""
        return SamplingParams(**self._sampling_defaults)

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise RequestError("This LLM was made with skip_tokenizer_init=True and knows token ids only.")
        return self._tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt: text, a list of token ids, or {"prompt_token_ids": [...]}. Outputs in their order."""
        items = [text_or_ids(prompt) for prompt in as_list(prompts)]
        return self._run(items, sampling_params, add_special_tokens=True, use_tqdm=use_tqdm, priority=priority)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered with the model's own template."""
        if self._template is None:
            raise RequestError("This model has no chat template. Use generate() with a prompt in its own format.")
        conversations: Any = messages if messages and not isinstance(messages[0], Mapping) else [messages]
        texts = [
            self._template.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                variables=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self._run(list(texts), sampling_params, add_special_tokens=False, use_tqdm=use_tqdm)

    def stats(self) -> Stats:
        """The engine's counters."""
        return self._engine.stats()

    def close(self) -> None:
        """End the engine; a process of its own is stopped."""
        self._engine.close()

    def _run(
        self,
        items: Sequence[str | list[int]],
        sampling_params: Params,
        *,
        add_special_tokens: bool,
        use_tqdm: bool,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        params = self._params_for(sampling_params, len(items))
        if priority is not None and len(priority) != len(items):
            raise RequestError(f"{len(priority)} priorities for {len(items)} prompts.", field="priority")
        collector = Collector(self._tokenizer)
        outputs, requests = [], []
        for index, (item, sampling) in enumerate(zip(items, params, strict=True)):
            token_ids = self._encode(item, sampling, add_special_tokens=add_special_tokens)
            made = self._requests(token_ids, sampling, 0 if priority is None else priority[index])
            outputs.append(_empty_output(made[0].request_id, item, token_ids, sampling))
            collector.expect(outputs[-1], made)
            requests += made
        progress = self._progress if use_tqdm else Silent()
        with progress.task("Generating", len(requests)) as advance:
            self._serve(requests, collector, advance)
        return outputs

    def _serve(self, requests: Sequence[Request], collector: Collector, advance: Advance) -> None:
        """Submit everything and collect until all of it has ended. A request that is refused ends the whole call."""
        try:
            for request in requests:
                self._engine.submit(request)
            num_pending = len(requests)
            while num_pending:
                for answer in self._engine.receive():
                    if isinstance(answer, Refused):
                        raise answer.as_error()
                    if isinstance(answer, Token) and collector.feed(answer):
                        self._engine.cancel(answer.request_id)
                still_pending = len(collector.pending_ids)
                advance(num_pending - still_pending)
                num_pending = still_pending
        except EngineError:
            raise
        except BaseException:
            for request_id in collector.pending_ids:
                self._engine.cancel(request_id)
            raise

    def _params_for(self, given: Params, count: int) -> list[SamplingParams]:
        if given is None:
            return [self.get_default_sampling_params()] * count
        if isinstance(given, SamplingParams):
            return [given] * count
        if len(given) != count:
            raise RequestError(f"{len(given)} sampling settings for {count} prompts.", field="sampling_params")
        return list(given)

    def _encode(self, item: str | list[int], sampling: SamplingParams, *, add_special_tokens: bool) -> list[int]:
        limit = sampling.truncate_prompt_tokens
        if limit == MODEL_CONTEXT:
            limit = self._engine.info.max_model_len - (sampling.max_tokens or 1)
        if isinstance(item, list):
            return item if limit is None else item[-limit:]
        tokenizer = self.get_tokenizer()
        return tokenizer.encode(item, add_special_tokens=add_special_tokens, max_tokens=limit, keep="end")

    def _requests(self, token_ids: list[int], sampling: SamplingParams, priority: int) -> list[Request]:
        """One request for each of the n answers; only the first computes prompt log-probabilities."""
        if sampling.bad_words and not sampling.bad_words_token_ids:
            spelled = bad_words_token_ids(sampling.bad_words, self.get_tokenizer())
            sampling = replace(sampling, bad_words_token_ids=spelled)
        requests = []
        for index in range(sampling.n):
            settings = sampling.for_output(index)
            if index:
                settings = replace(settings, prompt_logprobs=None)
            requests.append(
                Request(
                    request_id=str(next(self._ids)),
                    prompt_token_ids=tuple(token_ids),
                    sampling=settings,
                    eos_token_ids=self._eos_token_ids,
                    priority=priority,
                    arrival_time=time.monotonic(),
                )
            )
        return requests


def _empty_output(
    request_id: str, item: str | list[int], token_ids: list[int], sampling: SamplingParams
) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        prompt=item if isinstance(item, str) else None,
        prompt_token_ids=token_ids,
        prompt_logprobs=None if sampling.prompt_logprobs is None else [None],
        outputs=[CompletionOutput(index=index) for index in range(sampling.n)],
    )
