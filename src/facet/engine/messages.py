"""The messages between a front process and the engine process, as frozen values.

Encoded with msgpack. The types are closed unions, so that a message of any other shape is an error where it arrives.
"""

import msgspec

from facet.adapter import AdapterInfo, AdapterSource
from facet.arena_picture import ArenaPicture
from facet.draft_counts import NO_DRAFTS, DraftCounts
from facet.errors import CapacityError, EngineDeadError, FacetError, RequestError
from facet.faults import Fault
from facet.media_span import MediaKind
from facet.request import FinishReason, Request
from facet.token_logprobs import TokenLogprobs


class Submit(msgspec.Struct, frozen=True, tag=True):
    request: Request


class Cancel(msgspec.Struct, frozen=True, tag=True):
    request_id: str


class AskStats(msgspec.Struct, frozen=True, tag=True):
    """Answered with `Stats`."""


class AskLiveView(msgspec.Struct, frozen=True, tag=True):
    """Answered with `LiveView`."""

    max_cells: int  # of the picture


class ResetPrefixCache(msgspec.Struct, frozen=True, tag=True):
    """Forget cached prefixes."""


class Sleep(msgspec.Struct, frozen=True, tag=True):
    """Give the memory of weights and cache back. Answered with `SleepState`."""

    level: int


class WakeUp(msgspec.Struct, frozen=True, tag=True):
    """Answered with `SleepState`."""


class LoadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Load an adapter under a name that is free. Answered with `AdapterState`."""

    source: AdapterSource


class UnloadAdapter(msgspec.Struct, frozen=True, tag=True):
    """Forget an adapter: requests that have it are finished, new ones are refused. Answered with `AdapterState`."""

    name: str


class LoadGrammars(msgspec.Struct, frozen=True, tag=True):
    """Load what grammars need, in the background, before the first one comes."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End the loop; requests still running are not finished."""


ToEngine = (
    Submit
    | Cancel
    | AskStats
    | AskLiveView
    | ResetPrefixCache
    | Sleep
    | WakeUp
    | LoadAdapter
    | UnloadAdapter
    | LoadGrammars
    | Shutdown
)


class CacheInfo(msgspec.Struct, frozen=True, array_like=True):
    """How large the cache is."""

    num_blocks: int = 0
    block_bytes: int = 0
    tokens_per_block: tuple[tuple[str, int], ...] = ()  # by kind of layer

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.block_bytes


class EngineInfo(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message of an engine that is ready."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    folder: str
    lines: tuple[str, ...]  # what to tell the user at start-up
    media_kinds: tuple[MediaKind, ...] = ()  # what the model has towers for
    cache: CacheInfo = CacheInfo()
    start_times: tuple[tuple[str, float], ...] = ()  # seconds of each part of the start
    num_weight_bytes: int = 0  # of the first rank, as is the next
    num_gpu_bytes: int = 0  # weights and cache on its GPU; 0: on a CPU
    adapters: tuple[AdapterInfo, ...] = ()  # that are loaded
    num_adapter_places: int = 0  # for those and others


class NewTokens(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, array_like=True):
    """What a step brought one request: tokens, prompt log-probabilities, an end, or several of these.

    The fields are those of `TokenEvent`, in its order.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None  # one for each token
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None  # why, where finish_reason is "error"
    queue_seconds: float = 0.0  # between submission and the first step
    num_drafts: int = 0  # that the step computed for it; all tokens but the last were among them

    @property
    def is_contradiction(self) -> bool:
        """Whether it ended because the settings of its request leave it no token."""
        return self.error == Fault.NOTHING_ALLOWED.value


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request that was not accepted: what a direct call would have raised."""

    request_id: str
    message: str
    field: str | None
    is_capacity: bool

    @classmethod
    def of(cls, request_id: str, error: FacetError) -> "Refused":
        return cls(request_id, str(error), getattr(error, "field", None), isinstance(error, CapacityError))

    def as_error(self) -> FacetError:
        if self.is_capacity:
            return CapacityError(self.message)
        return RequestError(self.message, field=self.field)


class Stats(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine at one moment, for log lines and metrics."""

    num_running: int
    num_waiting: int
    num_preemptions: int
    num_steps: int
    num_computed_tokens: int
    num_sampled_tokens: int
    num_corrupted_requests: int
    num_blocks: int
    num_blocks_in_tables: int
    num_blocks_cached: int
    num_prompt_tokens: int
    num_prompt_tokens_hit: int
    num_blocks_by_kind: tuple[tuple[str, int], ...] = ()
    # Upper bounds of the tokens in a step, and how many steps are within each but not within the one before.
    num_steps_by_size: tuple[tuple[int, int], ...] = ()
    drafts: DraftCounts = NO_DRAFTS
    num_short_steps: int = 0  # whose prompts got fewer rows so that they end in time
    num_long_steps: int = 0  # that took longer than they should all the same


class LiveView(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine at one moment, for the page, which computes rates from two of them."""

    seconds: float  # on the engine's clock, which only ever goes forward
    busy_seconds: float  # spent in steps, ever
    stats: Stats
    arena: ArenaPicture


class SleepState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    is_asleep: bool
    error: str | None = None  # why it does not sleep, or wake up, as it was told to
    adapters: tuple[AdapterInfo, ...] = ()  # that are loaded: some may be lost on the way


class AdapterState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The outcome of `LoadAdapter` or `UnloadAdapter`."""

    adapters: tuple[AdapterInfo, ...]  # that are loaded now
    error: str | None = None  # why nothing was loaded or unloaded


class Died(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine's last message: why it stopped."""

    reason: str
    is_users_to_fix: bool = False

    def as_error(self) -> EngineDeadError:
        return EngineDeadError(f"The engine stopped: {self.reason}")


# A turn of the loop sends everything it has to say at once, as a list.
FromEngine = EngineInfo | NewTokens | Refused | Stats | LiveView | SleepState | AdapterState | Died
