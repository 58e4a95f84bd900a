"""The class `LLM`, which loads a model and runs it from Python."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from facet.bundled_model import find_bundled_model
from facet.config import engine_config
from facet.engine.client import RemoteEngine
from facet.engine.local_engine import LocalEngine
from facet.engine.messages import Stats
from facet.errors import ConfigError
from facet.offline.arguments import (
    adds_special_tokens,
    as_conversations,
    as_documents,
    as_priorities,
    check_content_format,
    one_each,
)
from facet.offline.call_template import with_template
from facet.offline.collector import Collector
from facet.offline.given_values import require_bool, require_mapping, shown
from facet.offline.lora_request import GivenAdapter, LoRARequest, as_adapters
from facet.offline.model_tokenizer import ModelTokenizer
from facet.offline.outputs import RequestOutput
from facet.offline.prompts import Prompt, fields_beside, find_prompts, text_or_ids
from facet.offline.setting_types import require_switch
from facet.offline.settings import read_settings
from facet.offline.shared_engine import SharedEngine
from facet.prepared_media import PreparedMedia
from facet.progress import Bars, Progress, Silent
from facet.prompts import AskedModel, ChatQuestion, TextQuestion, make_asked_model, prepare, read_prompt_files
from facet.prompts.media_reading import NUM_THREADS, find_media, make_media_reader
from facet.request import Request
from facet.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None
Conversation = Sequence[Mapping[str, Any]]
Adapters = LoRARequest | Sequence[LoRARequest | None] | None  # one for all prompts, or one for each
Progressing = (
    bool | Callable[..., Any]
)  # vLLM's programs may bring a bar of their own; here it only says that one is shown


class LLM:
    """Loads a model and answers prompts, all of a call at once.

        llm = LLM("google/gemma-4-E4B-it")
        print(llm.generate("The capital of France is")[0].outputs[0].text)

    Without a name it is the bundled model. Settings are the flags of `facet serve` that are about the engine and
    prompts, with underscores; those of vLLM that set nothing here are taken, too. `separate_process` runs the engine in
    a process of its own, as a server does; ranks (`tensor_parallel_size`) always have processes of their own.

    Several threads may share one: calls wait for each other. `close` ends it, and so does the end of a `with`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        separate_process: bool = False,
        show_progress: bool = True,
        **settings: Any,
    ) -> None:
        require_switch("separate_process", separate_process)
        require_switch("show_progress", show_progress)
        config = read_settings(str(find_bundled_model()) if model is None else model, settings)
        files = read_prompt_files(config)
        of_engine = engine_config(config, files.folder)
        self._progress: Progress = Bars() if show_progress else Silent()
        self._engine = SharedEngine(
            RemoteEngine(of_engine, show_progress=show_progress)
            if separate_process or config.tensor_parallel_size > 1
            else LocalEngine(of_engine, self._progress)
        )
        info = self._engine.info
        try:
            self._asked = make_asked_model(
                config,
                files,
                max_model_len=info.max_model_len,
                eos_token_ids=info.eos_token_ids,
                media_kinds=info.media_kinds,
            )
            self._media = make_media_reader(config, self._asked.media)
        except BaseException:
            self._engine.close()
            raise
        self._ids = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def get_default_sampling_params(self) -> SamplingParams:
        """The settings that the model's authors recommend; used if a call gives none."""
        return self._asked.sampling({}, max_tokens=DEFAULT_MAX_TOKENS)

    def get_tokenizer(self) -> ModelTokenizer:
        return ModelTokenizer(self._asked)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: Progressing = True,
        lora_request: Adapters = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        split_special_tokens: bool = False,
    ) -> list[RequestOutput]:
        """Continue each prompt: text, a list of token ids, or {"prompt_token_ids": [...]}. Outputs in their order.

        {"prompt": "...", "multi_modal_data": {"image": picture}} is a text with a placeholder for each item. Special
        tokens written in a text are recognised, unless `split_special_tokens` makes it plain text only. One that begins
        with <bos> gets no other. `lora_request` names the adapter that answers, or is a list with one for each prompt.
        """
        adds = adds_special_tokens(tokenization_kwargs)
        given = find_prompts(prompts)
        items = [text_or_ids(prompt, where) for where, prompt in given.items()]
        adapters = as_adapters(lora_request, len(items))
        params = one_each(sampling_params, len(items)) or [self.get_default_sampling_params()] * len(items)
        require_bool(split_special_tokens, "split_special_tokens")
        questions = [
            TextQuestion(
                prompt=item,
                sampling=sampling,
                is_max_tokens_default=sampling_params is None,
                add_special_tokens=self._asked.adds_special_tokens(
                    item, wanted=adds, split_special_tokens=split_special_tokens
                ),
                split_special_tokens=split_special_tokens,
                priority=of_prompt,
                **fields_beside(prompt, mm_processor_kwargs),
            )
            for prompt, item, sampling, of_prompt in zip(
                given.values(), items, params, as_priorities(priority, len(items)), strict=True
            )
        ]
        return self._answer(questions, self._asked, adapters, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: Progressing = True,
        lora_request: Adapters = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        *,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        response_format: Mapping[str, Any] | None = None,
        reasoning_effort: str | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, as `/v1/chat/completions` does: the arguments are its fields.

        Each output has the parsed `reply` beside its `text`. Without sampling settings a reply may be as long as the
        context allows. `chat_template` is the text of a template, in place of the model's. `lora_request` names the
        adapter that answers, or is a list with one for each conversation.
        """
        check_content_format(chat_template_content_format)
        asked = with_template(self._asked, chat_template)
        adds = adds_special_tokens(tokenization_kwargs) or False
        conversations = as_conversations(messages)
        adapters = as_adapters(lora_request, len(conversations))
        for field, value in {
            "parallel_tool_calls": parallel_tool_calls,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
        }.items():
            require_bool(value, field)
        require_mapping(mm_processor_kwargs, "mm_processor_kwargs", '{"max_soft_tokens": 280}')
        default = self._asked.sampling({}, max_tokens=None)
        params = one_each(sampling_params, len(conversations)) or [default] * len(conversations)
        questions = [
            ChatQuestion(
                messages=conversation,
                sampling=sampling,
                is_max_tokens_default=sampling_params is None,
                response_format=response_format,
                tools=tools,
                tool_choice=tool_choice,
                parallel_tool_calls=parallel_tool_calls,
                reasoning_effort=reasoning_effort,
                chat_template_kwargs=chat_template_kwargs,
                documents=as_documents(documents),
                mm_processor_kwargs=mm_processor_kwargs,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                add_special_tokens=adds,
            )
            for conversation, sampling in zip(conversations, params, strict=True)
        ]
        return self._answer(questions, asked, adapters, use_tqdm=use_tqdm)

    def stats(self) -> Stats:
        """The engine's counters."""
        return self._engine.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes, so that the next prompts are computed from their first token on. Always true."""
        self._engine.reset_prefix_cache()
        return True

    def sleep(self, level: int = 1) -> None:
        """Give the memory of weights and cache back until `wake_up`; needs `enable_sleep_mode=True`.

        At level 1 weights wait in the host's memory, at level 2 they are read from files again.
        """
        if type(level) is not int or level not in (1, 2):  # True and 1.0 are in it, too
            raise ConfigError(
                f"There is no level {shown(level)} of sleep. Give 1 (weights wait in the host's memory) or 2."
            )
        self._engine.sleep(level)

    def wake_up(self) -> None:
        self._engine.wake_up()

    def close(self) -> None:
        """Ends the engine and every process that was started, and gives their memory back. It may be called twice."""
        self._engine.close()
        self._media.close()

    def _answer(
        self,
        questions: Sequence[TextQuestion | ChatQuestion],
        asked: AskedModel,
        adapters: Sequence[GivenAdapter | None],
        *,
        use_tqdm: Progressing,
    ) -> list[RequestOutput]:
        self._engine.require_open()
        collector = Collector(self._asked.tokenizer)
        outputs: list[RequestOutput] = []
        requests: list[Request] = []
        for question, adapter, media in zip(questions, adapters, self._read_media(questions), strict=True):
            ids = [str(next(self._ids)) for _ in range(question.sampling.n)]
            name = None if adapter is None else adapter.source.name
            prepared = prepare(question, asked.with_adapter(name), ids, media)
            outputs.append(collector.expect(prepared, None if adapter is None else adapter.given))
            requests += prepared.requests
        self._engine.load_adapters([adapter.source for adapter in adapters if adapter is not None])
        self._engine.answer(requests, collector, self._progress if use_tqdm else Silent())
        return outputs

    def _read_media(self, questions: Sequence[TextQuestion | ChatQuestion]) -> list[list[tuple[PreparedMedia, ...]]]:
        """What each question holds besides text, in its order. Several items are read at the same time."""
        parts = [find_media(question, self._asked, takes_values=True) for question in questions]
        if not any(parts):
            return [[] for _ in questions]
        with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="facet-media") as pool:
            reading = [[pool.submit(self._media.read, part) for part in found] for found in parts]
            try:
                return [[item.result() for item in items] for items in reading]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
