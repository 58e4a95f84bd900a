"""Puts media into a rendered prompt: each placeholder of the template becomes boundary and soft tokens, and a span.

Only what the template itself wrote counts as a placeholder. The words of one in a message stay text, since the prompt
says which of its characters came from outside.

    Gemma 4     ... <|image> <|image|> x n <image|> ...                             nothing added
                ...00:00 <|image> <|video|> x n <image|> 00:01 <|image> ...         the times of a video's frames
    Gemma 3, 3n ...\n\n<start_of_image> <image_soft_token> x n <end_of_image>\n\n...

Times and blank lines are text: they are joined with what stands before and behind them and encoded together with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from facet.errors import RequestError
from facet.media.spec import MediaSpec, MediaTokens
from facet.media_span import MediaKind, MediaSpan
from facet.prepared_media import PreparedMedia
from facet.tokens import Tokenizer
from facet.tokens.prompt_text import PromptText

_WHOLE_AND_CROPS = ("Here is the original image ", " and here are some crops to help you see better ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedPrompt:
    token_ids: tuple[int, ...]
    media: tuple[PreparedMedia, ...] = ()  # in the order of their spans
    spans: tuple[MediaSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class Item:
    """What stands in place of one placeholder: a picture with its crops, a clip, the frames of a video."""

    kind: MediaKind
    media: tuple[PreparedMedia, ...]


def expand(
    prompt: PromptText,
    items: Sequence[Item],
    spec: MediaSpec,
    tokenizer: Tokenizer,
    *,
    adds_special_tokens: bool,
    is_rendered: bool = True,
) -> ExpandedPrompt:
    """The prompt's token ids with every item in its place. `items` are in the order of the messages.

    `is_rendered`: a template wrote the prompt and its placeholders, and not the caller."""
    places = _placeholders(prompt, spec, tokenizer)
    _check_counts([kind for _, _, kind in places], items, None if is_rendered else spec, tokenizer)
    waiting = {kind: iter([item.media for item in items if item.kind == kind]) for kind in spec.kinds}
    texts: list[list[PromptText]] = [[]]  # what stands before, between and behind the blocks, in parts to be joined
    blocks: list[tuple[PreparedMedia, MediaTokens]] = []
    end = 0
    for start, stop, kind in places:
        texts[-1].append(prompt.part(end, start))
        end = stop
        tokens, item = spec.tokens[kind], next(waiting[kind])
        for before, media in zip(_texts_before(kind, item), item, strict=True):
            texts[-1].append(PromptText(before + tokens.text_around))
            blocks.append((media, tokens))
            texts.append([PromptText(tokens.text_around)])
    texts[-1].append(prompt.part(end, len(prompt.text)))
    return _assembled([PromptText.joined(parts) for parts in texts], blocks, tokenizer, adds_special_tokens)


def _assembled(
    texts: Sequence[PromptText],
    blocks: Sequence[tuple[PreparedMedia, MediaTokens]],
    tokenizer: Tokenizer,
    adds_special_tokens: bool,
) -> ExpandedPrompt:
    before, after = (tokenizer.added_before, tokenizer.added_after) if adds_special_tokens else ([], [])
    token_ids = [*before, *tokenizer.encode_prompt(texts[0])]
    spans: list[MediaSpan] = []
    for (media, tokens), text in zip(blocks, texts[1:], strict=True):
        token_ids.append(tokens.begin)
        spans.append(media.span(len(token_ids)))
        token_ids += [tokens.soft] * media.num_tokens
        token_ids += [tokens.end, *tokenizer.encode_prompt(text)]
    return ExpandedPrompt(token_ids=(*token_ids, *after), media=tuple(media for media, _ in blocks), spans=tuple(spans))


def _placeholders(prompt: PromptText, spec: MediaSpec, tokenizer: Tokenizer) -> list[tuple[int, int, MediaKind]]:
    """The places where the template wrote placeholders: start, end and kind of each."""
    control = tokenizer.control_tokens
    kinds: Mapping[int, MediaKind] = {tokens.placeholder: kind for kind, tokens in spec.tokens.items()}
    own_text = prompt.text if prompt.own_text is None else prompt.own_text
    places = [(start, end, kinds.get(control.id_of[own_text[start:end]])) for start, end in control.find(own_text)]
    return [(start, end, kind) for start, end, kind in places if kind is not None]


def _check_counts(
    written: Sequence[MediaKind], items: Sequence[Item], own: MediaSpec | None, tokenizer: Tokenizer
) -> None:
    """`own`: what callers may write themselves, where no template does it."""
    sent = [item.kind for item in items]
    for kind in {*written, *sent}:
        if written.count(kind) == sent.count(kind):
            continue
        if own is None:
            raise RequestError(
                f"The messages hold {sent.count(kind)} of kind {kind}, but the model's chat template has places for "
                f"{written.count(kind)}. Put them into messages of the user.",
                field="messages",
            )
        placeholder = tokenizer.decode([own.tokens[kind].placeholder], skip_special_tokens=False)
        raise RequestError(
            f"multi_modal_data holds {sent.count(kind)} of kind {kind}, but the prompt has places for "
            f"{written.count(kind)}. Write {placeholder} where each belongs.",
            field="prompt",
        )


def _texts_before(kind: MediaKind, media: Sequence[PreparedMedia]) -> list[str]:
    """The text before each part of an item, where a model expects one."""
    if kind == "video":
        times = [_minutes_and_seconds(frame.timestamp or 0.0) for frame in media]
        return [f"{'' if index == 0 else ' '}{time} " for index, time in enumerate(times)]
    if kind == "image" and len(media) > 1:
        return [*_WHOLE_AND_CROPS, *[" "] * (len(media) - 2)]
    return [""] * len(media)


def _minutes_and_seconds(seconds: float) -> str:
    return f"{int(seconds // 60):02}:{int(seconds % 60):02}"
