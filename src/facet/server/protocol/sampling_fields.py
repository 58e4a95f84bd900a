"""The fields that chat completions and completions share, and which of them are settings of `SamplingParams`.

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


class RepetitionDetection(msgspec.Struct, frozen=True):
    """Checked by `RepetitionDetectionParams`."""

    max_pattern_size: Int = 0
    min_pattern_size: Int = 0
    min_count: Int = 0


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of both endpoints for sampling and for the form of the answer."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    n: Int | None = None
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
    max_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    include_stop_str_in_output: bool | None = None
    seed: Int | None = None
    prompt_logprobs: Int | None = None
    logprob_token_ids: list[Int] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: Int | None = None
    thinking_token_budget: Int | None = None
    loop_guard: bool | None = None
    repetition_detection: RepetitionDetection | None = None

    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: Int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: dict[str, Any] | None = None
    # llama.cpp's names for two of the structured outputs.
    grammar: str | None = None
    json_schema: dict[str, Any] | str | None = None

    # Known but not supported: refused by name if they would change the answer.
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    logits_processors: list[Any] | None = None
    prompt_embeds: Any = None
    vllm_xargs: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

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
    "guided_json": "Use structured_outputs.json.",
    "guided_regex": "Use structured_outputs.regex.",
    "guided_choice": "Use structured_outputs.choice.",
    "guided_grammar": "Use structured_outputs.grammar.",
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
    if fields.stream and fields.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs cannot be streamed. Set stream to false.", field="prompt_logprobs")
    given = {name: value for name in _PLAIN_FIELDS if (value := getattr(fields, name)) is not None}
    if fields.logit_bias:
        given["logit_bias"] = dict(_biases(fields.logit_bias.items()))
    if (wanted := _structured_outputs(fields)) is not None:
        given["structured_outputs"] = wanted
    if fields.repetition_detection is not None:
        given["repetition_detection"] = RepetitionDetectionParams(**msgspec.structs.asdict(fields.repetition_detection))
    return given


def _structured_outputs(fields: SamplingFields) -> StructuredOutputsParams | None:
    """The constraint, under vLLM's or llama.cpp's name."""
    given = [name for name in ("structured_outputs", "grammar", "json_schema") if getattr(fields, name) is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} all constrain the answer. Send one of them.", field=given[-1])
    if fields.structured_outputs is not None:
        return StructuredOutputsParams(**msgspec.structs.asdict(fields.structured_outputs))
    return StructuredOutputsParams(grammar=fields.grammar, json=fields.json_schema) if given else None


def _biases(items: Iterable[tuple[str, float]]) -> Iterable[tuple[int, float]]:
    for token_id, bias in items:
        if not token_id.removeprefix("-").isdecimal():
            raise RequestError(
                f"logit_bias maps token ids to numbers, and {token_id!r} is not a token id.", field="logit_bias"
            )
        yield int(token_id), bias
