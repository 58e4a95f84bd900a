"""Describes media in a prompt: stretches of placeholder tokens that stand for an image, a sound or a video frame.

A span's content becomes as many rows as the span has tokens before the decoder sees them. In some models the tokens of
an image see each other, not only those before them: such a span *attends both ways* and is computed in one step, since
its first row already needs the keys of its last.

    scheduler/    no chunk cuts such a span: it ends before it or contains it; `encoding.py` decides which contents
                  towers encode in a step, and which are kept
    kv_cache/     no prefix that is kept or found ends inside one
    runner/       `AttentionRows.last_visible` says how far ahead each row of a step sees; towers make the rows of its
                  content, which are kept by content key (`encoder_cache.py`)
    model/        layers of the kinds in `ModelSpec.bidirectional_image_layers` listen to that; the others are causal
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from facet.errors import RequestError

MediaKind = Literal["image", "audio", "video"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    first: int  # the position of its first token in the prompt
    length: int  # in tokens
    kind: MediaKind
    content_key: str  # the same content, prepared in the same way, has the same key, and nothing else has
    attends_both_ways: bool = False  # in the layers of the model that do so; the others are causal here too

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.first + self.length


def check_spans(spans: Sequence[MediaSpan], num_prompt_tokens: int) -> None:
    """Refuse spans that are not in order inside the prompt."""
    end = 0
    for index, span in enumerate(spans):
        name = f"Media span {index} (positions {span.first} to {span.end - 1})"
        if span.kind not in get_args(MediaKind):
            raise _refused(f"{name} is of kind {span.kind!r}. Known: {', '.join(get_args(MediaKind))}.")
        if not span.content_key:
            raise _refused(f"{name} has an empty content_key. Give one that names its content.")
        if span.length < 1:
            raise _refused(f"{name} has {span.length} tokens. Give at least one.")
        if span.first < end:
            raise _refused(f"{name} begins before position {end}. Give spans in order; they may not overlap.")
        if span.end > num_prompt_tokens:
            raise _refused(f"{name} ends behind the prompt, which has {num_prompt_tokens} tokens.")
        end = span.end


def check_attention(spans: Sequence[MediaSpan], *, some_layers_see_ahead: bool) -> None:
    """Refuse spans that attend both ways in a model whose layers are all causal."""
    span = next((span for span in spans if span.attends_both_ways), None)
    if span is not None and not some_layers_see_ahead:
        raise _refused(
            f"The {span.kind} at positions {span.first} to {span.end - 1} attends both ways, but every layer of this "
            "model is causal. Send it with attends_both_ways = false."
        )


def uncuttable(spans: Sequence[MediaSpan]) -> tuple[MediaSpan, ...]:
    """The spans that must be computed in one step."""
    return tuple(span for span in spans if span.attends_both_ways and span.length > 1)


def longest_length(spans: Sequence[MediaSpan]) -> int:
    """How many tokens a step must be able to compute where these spans are uncuttable: one, if there are none."""
    return max((span.length for span in spans), default=1)


def least_chunk(spans: Sequence[MediaSpan], start: int) -> int:
    """How few tokens may be computed from `start` on: one, or the span that begins there."""
    return next((span.length for span in spans if span.first == start), 1)


def largest_chunk(spans: Sequence[MediaSpan], start: int, most: int) -> int:
    """How many tokens, up to `most`, may be computed from `start` on. 0: a longer span begins there."""
    return end_before_cut(spans, start + most) - start


def end_before_cut(spans: Sequence[MediaSpan], end: int) -> int:
    """The last place up to `end` where a chunk may end and cut none of these spans."""
    return next((span.first for span in spans if span.first < end < span.end), end)


def _refused(message: str) -> RequestError:
    return RequestError(message, field="media")
