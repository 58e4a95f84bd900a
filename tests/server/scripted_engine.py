"""An engine that says what it was told to say: token ids given in advance, behind the real server.

Its answers come from a thread of the bridge like those of a real one, a token of every request in each turn.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from facet.adapter import AdapterInfo, AdapterSource
from facet.arena_picture import ArenaPicture, PagesOfAKind
from facet.draft_counts import DraftCounts
from facet.engine.messages import (
    AdapterState,
    EngineInfo,
    FromEngine,
    LiveView,
    NewTokens,
    Refused,
    SleepState,
    Stats,
)
from facet.errors import EngineDeadError, RequestError
from facet.request import FinishReason, Request
from facet.token_logprobs import TokenLogprobs

Script = Callable[[Request], Sequence[int]]


@dataclass
class Speaking:
    request: Request
    token_ids: Sequence[int]
    position: int = 0


@dataclass
class ScriptedEngine:
    """`script` gives the tokens of each request; an end token ends it, as does max_tokens."""

    script: Script
    info: EngineInfo
    seconds_per_turn: float = 0.0
    tokens_per_turn: int = 1  # of each request, in one message
    gate: threading.Event = field(default_factory=threading.Event)  # clear: nothing is said
    last_reason: FinishReason = "length"  # why an answer ends whose script has run out
    fail_after: int | None = None  # tokens of a request, after which its logits are said to be broken
    submitted: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    num_resets: int = 0
    num_live_views: int = 0
    is_closed: bool = False
    sleeps: list[int] = field(default_factory=list)  # the levels it was told
    cannot_wake_up: str | None = None  # why
    adapters: dict[str, str] = field(default_factory=dict)  # that are loaded: the path of each by its name
    cannot_load: str | None = None  # why
    loses_what_it_replaces: bool = False  # where it cannot load

    def __post_init__(self) -> None:
        self.gate.set()
        self.adapters = dict(self.adapters)
        self.info = msgspec.structs.replace(self.info, adapters=self._adapter_infos)
        self._inbox: queue.SimpleQueue[Request | FromEngine | BaseException] = queue.SimpleQueue()
        self._speaking: dict[str, Speaking] = {}
        self._beginning = threading.Lock()  # an answer begins, or is cancelled before

    def submit(self, request: Request) -> None:
        self.submitted.append(request)
        if request.adapter is not None and request.adapter not in self.adapters:
            self._inbox.put(Refused.of(request.request_id, RequestError("It is gone.")))
        else:
            self._inbox.put(request)

    def cancel(self, request_id: str) -> None:
        with self._beginning:
            self.cancelled.append(request_id)
            self._speaking.pop(request_id, None)

    def refuse(self, refusal: Refused) -> None:
        self._inbox.put(refusal)

    def die(self) -> None:
        self._inbox.put(EngineDeadError("The engine stopped: it was told to."))

    def ask_stats(self) -> None:
        self._inbox.put(self.stats())

    def ask_live_view(self, max_cells: int) -> None:
        self.num_live_views += 1
        pages = PagesOfAKind(kind="sliding", num_pages=4, cells=(1, 1, 1, 1, 0, 0, 0, 0, 0, 0))
        arena = ArenaPicture(num_pages=10, page_bytes=1024, pages_per_cell=1, kinds=(pages,))
        self._inbox.put(LiveView(time.monotonic(), 0.25, self.stats(), arena))

    def reset_prefix_cache(self) -> None:
        self.num_resets += 1

    def load_grammars(self) -> None:
        """It has none."""

    def sleep(self, level: int) -> None:
        assert not self._speaking, "who speaks does not sleep"
        self.sleeps.append(level)
        self._inbox.put(SleepState(True, None, self._adapter_infos))

    def wake_up(self) -> None:
        self._inbox.put(SleepState(self.cannot_wake_up is not None, self.cannot_wake_up, self._adapter_infos))

    def load_adapter(self, source: AdapterSource) -> None:
        is_taken = source.name in self.adapters and not source.replaces
        error = f"There is an adapter {source.name}." if is_taken else self.cannot_load
        if error is None:
            self.adapters[source.name] = source.path
        elif self.loses_what_it_replaces:
            self.adapters.pop(source.name, None)
        self._inbox.put(AdapterState(self._adapter_infos, error))

    def unload_adapter(self, name: str) -> None:
        error = None if self.adapters.pop(name, None) is not None else f"There is no adapter {name}."
        self._inbox.put(AdapterState(self._adapter_infos, error))

    @property
    def _adapter_infos(self) -> tuple[AdapterInfo, ...]:
        return tuple(AdapterInfo(name, path, "scripted") for name, path in self.adapters.items())

    def stats(self) -> Stats:
        numbers = dict.fromkeys(Stats.__struct_fields__, 0)
        return Stats(
            **{
                **numbers,
                "num_running": len(self._speaking),
                "num_blocks": 10,
                "num_corrupted_requests": 3,
                "num_blocks_by_kind": (("sliding", 4), ("global", 1)),
                "num_steps": 7,
                "num_computed_tokens": 60,
                "num_short_steps": 2,
                "num_long_steps": 1,
                "num_steps_by_size": ((1, 3), (8, 2), (16, 1)),
                "drafts": DraftCounts(num_runs=5, num_drafts=10, num_accepted=4, num_accepted_by_place=(3, 1)),
            }
        )

    def close(self) -> None:
        self.is_closed = True

    def receive(self, timeout: float | None = None) -> Sequence[FromEngine]:
        answers: list[FromEngine] = []
        wait = None if timeout is None else (0.0 if self._speaking and self.gate.is_set() else min(timeout, 0.02))
        while True:
            try:
                item = self._inbox.get(timeout=wait) if wait else self._inbox.get_nowait()
            except queue.Empty:
                break
            wait = 0.0
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Request):
                with self._beginning:
                    if item.request_id not in self.cancelled:
                        self._speaking[item.request_id] = Speaking(item, self.script(item))
            else:
                answers.append(item)
        if self.gate.is_set():
            if self._speaking and self.seconds_per_turn:
                time.sleep(self.seconds_per_turn)
            answers += [self._say(speaking) for speaking in list(self._speaking.values())]
        return answers

    def _say(self, speaking: Speaking) -> NewTokens:
        """The next tokens, as many as a turn brings or fewer at the end."""
        request, sampling = speaking.request, speaking.request.sampling
        prompt_logprobs = None
        if sampling.prompt_logprobs is not None and speaking.position == 0:
            prompt_logprobs = [TokenLogprobs([token], [-1.0], [1]) for token in request.prompt_token_ids[1:]]
        token_ids: list[int] = []
        finish: FinishReason | None = None
        while finish is None and len(token_ids) < self.tokens_per_turn:
            if self.fail_after is not None and speaking.position == self.fail_after:
                self._speaking.pop(request.request_id, None)
                return NewTokens(request.request_id, finish_reason="error", error="the model's logits held NaN")
            token_ids.append(speaking.token_ids[speaking.position])
            speaking.position += 1
            if token_ids[-1] in request.eos_token_ids or token_ids[-1] in sampling.stop_token_ids:
                finish = "stop"
            elif speaking.position == len(speaking.token_ids):
                finish = self.last_reason
            elif speaking.position == sampling.max_tokens:
                finish = "length"
        if finish is not None:
            self._speaking.pop(request.request_id, None)
        logprobs = None
        if sampling.logprobs is not None:
            others = sampling.logprob_token_ids or range(300, 300 + sampling.logprobs)
            values = [-0.5 - place for place in range(1 + len(others))]
            ranks = [1, *range(1, 1 + len(others))]
            logprobs = [TokenLogprobs([token_id, *others], values, ranks) for token_id in token_ids]
        return NewTokens(request.request_id, tuple(token_ids), finish, 4, logprobs, prompt_logprobs)
