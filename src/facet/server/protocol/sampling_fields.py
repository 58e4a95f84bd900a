"""The fields that the APIs share, and which of them are settings of `SamplingParams`.

None means "not sent": the model's defaults then apply. Names are vLLM's, which include OpenAI's.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from facet.errors import RequestError
from facet.repetition import RepetitionDetectionParams
from facet.structured_outputs import StructuredOutputsParams

# What a message to the engine can hold; JSON itself knows no limit.
Int = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

# Handed to SamplingParams under the same name.
_PLAIN_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "bad_words",
    "allowed_token_ids",
    "min_tokens",
    "ignore_eos",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "seed",
    "max_tokens",
    "prompt_logprobs",
    "logprob_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "thinking_token_budget",
    "loop_guard",
)


# Other names of structured outputs: older ones, which clients with typed structures send empty, and llama.cpp's.
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
_OTHER_NAMES = {**_GUIDED, "grammar": "grammar", "json_schema": "json"}


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """One constraint, which `StructuredOutputsParams` checks."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    any_whitespace: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class RepetitionDetection(msgspec.Struct, frozen=True):
    """What counts as a loop; checked by `RepetitionDetectionParams`."""

    max_pattern_size: Int = 0
    min_pattern_size: Int = 0
    min_count: Int = 0


class AnswerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What may be asked of an answer in every API; the APIs have names of their own for some of it beside these."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[Int] | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    include_stop_str_in_output: bool | None = None
    seed: Int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    thinking_token_budget: Int | None = None
    loop_guard: bool | None = None
    repetition_detection: RepetitionDetection | None = None
    priority: Int | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None
    # Older names, and llama.cpp's, for some of the structured outputs.
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None

    # Known but not supported: refused by name if they would change the answer.
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    logits_processors: list[Any] | None = None
    prompt_embeds: Any = None
    vllm_xargs: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class ChatSettings(AnswerSettings, frozen=True, kw_only=True):
    """Settings of an answer in a conversation."""

    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None


class SamplingFields(AnswerSettings, frozen=True, kw_only=True):
    """The fields that chat completions and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    request_id: str | None = None

    n: Int | None = None
    max_tokens: Int | None = None
    prompt_logprobs: Int | None = None
    logprob_token_ids: list[Int] | None = None
    truncate_prompt_tokens: Int | None = None
    truncation_side: str | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None

    @property
    def wants_usage_at_end(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_always(self) -> bool:
        return self.wants_usage_at_end and bool(self.stream_options and self.stream_options.continuous_usage_stats)


_INSTEAD = {
    "use_beam_search": "Leave it out, or use n with a temperature.",
    "logits_processors": "Use logit_bias, bad_words or allowed_token_ids.",
    "prompt_embeds": "Send prompt as text or token ids.",
    "vllm_xargs": "Leave it out.",
    "kv_transfer_params": "Leave it out.",
}


def refuse_unsupported(fields: msgspec.Struct, instead: Mapping[str, str] = _INSTEAD) -> None:
    """Refuses fields that Facet does not support and that would change the answer.

    Empty values would not: clients with typed structures send them for all that is not set.
    """
    for name, advice in instead.items():
        if getattr(fields, name) not in (None, False, "", [], {}):
            raise RequestError(f"{name} is not supported. {advice}", field=name)


def sampling_settings(fields: SamplingFields) -> dict[str, Any]:
    """The settings of `SamplingParams` that were sent; the model's defaults decide about the rest."""
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options needs stream to be true.", field="stream_options")
    if fields.stream and fields.prompt_logprobs:
        raise RequestError("prompt_logprobs cannot be streamed. Set stream to false.", field="prompt_logprobs")
    if fields.truncation_side not in (None, "left"):
        raise RequestError(
            f"truncation_side is {fields.truncation_side!r}, but a prompt is only ever cut on the left, where it is "
            "oldest. Leave it out.",
            field="truncation_side",
        )
    return answer_settings(fields)


def answer_settings(fields: AnswerSettings) -> dict[str, Any]:
    """The settings that every API has."""
    given = {name: value for name in _PLAIN_FIELDS if (value := getattr(fields, name, None)) is not None}
    if fields.logit_bias:
        given["logit_bias"] = dict(_biases(fields.logit_bias.items()))
    if (wanted := _structured_outputs(fields)) is not None:
        given["structured_outputs"] = wanted
    if fields.repetition_detection is not None:
        given["repetition_detection"] = RepetitionDetectionParams(**msgspec.structs.asdict(fields.repetition_detection))
    return given


def media_settings(
    mm_processor_kwargs: dict[str, Any] | None, media_io_kwargs: dict[str, dict[str, Any]] | None
) -> dict[str, Any] | None:
    """How media are prepared: the former, and the frames that the latter asks for."""
    frames: dict[str, Any] = {}
    for kind, options in (media_io_kwargs or {}).items():
        for name, value in options.items():
            if (kind, name) != ("video", "num_frames"):
                raise RequestError(
                    f"media_io_kwargs names {name!r} of {kind!r}. Known: num_frames of video.", field="media_io_kwargs"
                )
            frames[name] = value
    return frames or None if mm_processor_kwargs is None else frames | mm_processor_kwargs


def _structured_outputs(fields: AnswerSettings) -> StructuredOutputsParams | None:
    """The constraint, under any of its names."""
    names = ("structured_outputs", *_OTHER_NAMES)
    given = [name for name in names if (value := getattr(fields, name)) is not None and (value or name not in _GUIDED)]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} all constrain the answer. Send one of them.", field=given[-1])
    if fields.structured_outputs is not None:
        return StructuredOutputsParams(**msgspec.structs.asdict(fields.structured_outputs))
    if not given:
        return None
    constraint: dict[str, Any] = {_OTHER_NAMES[given[0]]: getattr(fields, given[0])}
    return StructuredOutputsParams(**constraint)


def _biases(items: Iterable[tuple[str, float]]) -> Iterable[tuple[int, float]]:
    for token_id, bias in items:
        if not token_id.removeprefix("-").isdecimal():
            raise RequestError(
                f"logit_bias maps token ids to numbers, and {token_id!r} is not a token id.", field="logit_bias"
            )
        yield int(token_id), bias
