"""A request as the engine gets it, with token ids instead of text. Frozen; the scheduler tracks its progress."""

from dataclasses import dataclass
from typing import Literal

from facet.adapter import PlacedAdapter
from facet.grammar_spec import GrammarSpec
from facet.media_span import MediaSpan, check_spans
from facet.prepared_media import PreparedMedia, check_contents
from facet.sampling_params import SamplingParams
from facet.thoughts import ThoughtTokens

# "repetition" is the engine's word for a loop that its guard ended; a client is told "stop".
FinishReason = Literal["stop", "length", "repetition", "abort", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how to continue it. Two requests may share an id only one after the other."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0  # lower runs first
    arrival_time: float = 0.0  # within a priority, earlier runs first
    cache_salt: str | None = None  # only requests with the same salt share cached prefixes
    # The sampled id must be seen by the host before the next token may run (a grammar walks on it).
    needs_sampled_token_on_host: bool = False
    grammar: GrammarSpec | None = None  # the shape its answer must have
    thought: ThoughtTokens | None = None  # how its thoughts are marked; None: the model has none
    media: tuple[MediaSpan, ...] = ()  # the parts of the prompt that are no text, in order
    adapter: str | None = None  # the name of the adapter that changes its answers; None: they are the model's own
    placed_adapter: PlacedAdapter | None = None  # that adapter in the engine, which fills this in
    # What is there, each content once. Empty: spans are embedded as the tokens they have.
    contents: tuple[PreparedMedia, ...] = ()

    def __post_init__(self) -> None:
        if self.media:
            check_spans(self.media, len(self.prompt_token_ids))
        if self.contents:
            check_contents(self.media, self.contents)
