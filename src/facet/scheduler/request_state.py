"""The progress of one request, except the counts that change in every step (`running_seats`)."""

import time
from dataclasses import dataclass, field

from facet.kv_cache.prefix_chain import PrefixChain
from facet.media_span import MediaSpan, uncuttable
from facet.request import FinishReason, Request
from facet.scheduler.loop_guard import LoopGuard

# Who comes first: lower priority number, then earlier arrival, then earlier submission. The same order decides who
# computes first, who is admitted first and, read from its end, who is preempted first. A preempted request keeps its
# place, so it returns to the head of its class.
OrderKey = tuple[int, float, int]


@dataclass(slots=True, eq=False, kw_only=True)
class RequestState:
    number: int
    request: Request
    max_num_tokens: int  # prompt and output together
    chain: PrefixChain | None  # of the prompt; None: prefixes are not cached
    priority: int = 0  # of the request, unless the server lets none overtake
    output_token_ids: list[int] = field(default_factory=list)
    seat: int | None = None  # None: waiting
    num_pending: int = 0  # while waiting: tokens that were sampled before a preemption and are not yet known
    num_cached_tokens: int = 0
    num_logits_done: int = 0  # prompt positions whose logits were already computed for prompt_logprobs
    was_admitted: bool = False
    submitted_at: float = field(default_factory=time.monotonic)
    queue_seconds: float = 0.0  # until it was first admitted
    order_key: OrderKey = field(init=False)
    stop_token_ids: frozenset[int] = field(init=False)
    num_tokens_before_stop: int = field(init=False)
    max_num_outputs: int = field(init=False)
    uncuttable: tuple[MediaSpan, ...] = field(init=False)  # of the prompt's media, what is computed in one step
    encoded: tuple[MediaSpan, ...] = field(init=False)  # of the prompt's media, what towers make the rows of
    loop_guard: LoopGuard | None = field(init=False)
    next_check: int = field(init=False)  # shorter outputs neither fill their room nor are looked at by the guard

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.order_key = (self.priority, self.request.arrival_time, self.number)
        eos_token_ids = () if sampling.ignore_eos else self.request.eos_token_ids
        self.stop_token_ids = frozenset((*eos_token_ids, *sampling.stop_token_ids))
        self.num_tokens_before_stop = sampling.min_tokens
        self.max_num_outputs = self.max_num_tokens - len(self.request.prompt_token_ids)
        self.uncuttable = uncuttable(self.request.media)
        self.encoded = self.request.media if self.request.contents else ()
        self.loop_guard, self.next_check = None, self.max_num_outputs
        if sampling.loop_rule is not None:
            self.loop_guard = LoopGuard(sampling.loop_rule, min_outputs=sampling.min_tokens, phase=self.number)
            self.next_check = min(self.max_num_outputs, self.loop_guard.due)

    @property
    def num_known(self) -> int:
        return len(self.request.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_logits_wanted(self) -> int:
        """Prompt positions whose logits are wanted whether or not they sample: each foretells the next prompt token."""
        if self.request.sampling.prompt_logprobs is None:
            return 0
        return len(self.request.prompt_token_ids) - 1

    @property
    def searchable_chain(self) -> PrefixChain | None:
        """What to look up in the prefix cache. None: a hit would leave out positions whose logits are wanted."""
        return self.chain if self.num_logits_wanted == 0 else None

    def append(self, token_id: int) -> FinishReason | None:
        """Appends a sampled token that has become known. Says whether it was the last one, and why."""
        outputs = self.output_token_ids
        outputs.append(token_id)
        if token_id in self.stop_token_ids and len(outputs) >= self.num_tokens_before_stop:
            return "stop"
        return None if len(outputs) < self.next_check else self._check_length()

    def _check_length(self) -> FinishReason | None:
        """Whether the output is as long as it may be, or a loop; and at which length to ask again."""
        if len(self.output_token_ids) >= self.max_num_outputs:
            return "length"
        assert self.loop_guard is not None, "there is nothing to check before the end"
        if self.loop_guard.sees_loop(self.output_token_ids):
            return "repetition"
        self.next_check = min(self.max_num_outputs, self.loop_guard.due)
        return None

    def append_run(self, token_ids: tuple[int, ...]) -> tuple[int, FinishReason | None]:
        """Appends several tokens that became known at once. Says how many of them count: none behind the last one."""
        outputs = self.output_token_ids
        if len(outputs) + len(token_ids) < self.next_check and self.stop_token_ids.isdisjoint(token_ids):
            outputs += token_ids
            return len(token_ids), None
        for count, token_id in enumerate(token_ids, 1):
            reason = self.append(token_id)
            if reason is not None:
                return count, reason
        return len(token_ids), None

    def extend_chain(self) -> None:
        """Let the chain name the output too: the next turn of a chat begins with it."""
        if self.chain is not None:
            self.chain.extend(self.output_token_ids)
