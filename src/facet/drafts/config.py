"""Reads `--speculative-config`: how drafts are made. Fields are named as in vLLM."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from facet.errors import ConfigError

METHODS = ("suffix", "ngram")
NONE = {"method": "none"}  # not even by a drafter that lies beside the model
DRAFTS_OF_A_MODEL = 4  # where num_speculative_tokens does not say
_SUFFIX_FIELDS = (
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
    "suffix_decoding_max_cached_requests",
)
# More would cost rows of every step and be accepted almost never.
MOST_DRAFTS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixDrafts:
    """Continue as the request's own tokens went on where they ended in the longest run they now end in."""

    num_drafts: int
    max_match: int  # longer runs count as so long
    max_factor: float  # drafts for each token of the match
    min_share: float  # of the places found, how many must go on with the drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramDrafts:
    """Continue as the tokens did behind the first occurrence of the last few."""

    num_drafts: int
    min_match: int
    max_match: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDrafts:
    """Continue as a drafter says, which was made for the model, or as the text did before."""

    model: str  # a folder, or a name on the hub
    num_drafts: int
    from_text: SuffixDrafts | None = None  # where that promises more
    # For measurements with random weights: how often the first so many drafts of a run count as right, whatever they
    # are. Empty: they are right where they are.
    made_up_rates: tuple[float, ...] = ()


DraftConfig = SuffixDrafts | NgramDrafts | ModelDrafts


def read_draft_config(given: Mapping[str, Any] | None) -> DraftConfig | None:
    """How drafts are made. None: there are none. Fields that are not known, or not of this method, are refused by
    name."""
    if given is None or given == NONE:
        return None
    method = given.get("method")
    if "model" in given and method in (None, "mtp", "suffix"):
        return _model(given)
    if method == "suffix":
        return _suffix(given)
    if method == "ngram":
        return _ngram(given)
    named = "no method" if method is None else f"the method {method!r}"
    raise ConfigError(
        f"--speculative-config names {named}, but there are {', '.join(METHODS)} and none. Choose one, as in "
        '{"method": "suffix"}, or name a drafter: {"model": ...}.'
    )


def most_drafts(config: DraftConfig) -> int:
    """The most drafts of one request in one step."""
    if isinstance(config, ModelDrafts) and config.from_text is not None:
        return max(config.num_drafts, config.from_text.num_drafts)
    return config.num_drafts


def _model(given: Mapping[str, Any]) -> ModelDrafts:
    is_combined = given.get("method") == "suffix"
    _refuse_others(
        {"method": "mtp", **given}, ("model", *(_SUFFIX_FIELDS if is_combined else ("synthetic_acceptance_rates",)))
    )
    if not isinstance(given["model"], str) or not given["model"]:
        raise ConfigError(f"--speculative-config: model is {given['model']!r}, but must be a folder or a name.")
    num_drafts = _integer(given, "num_speculative_tokens", DRAFTS_OF_A_MODEL, most=MOST_DRAFTS)
    own = ("model", "num_speculative_tokens")
    from_text = _suffix({name: given[name] for name in given if name not in own}) if is_combined else None
    return ModelDrafts(
        model=given["model"], num_drafts=num_drafts, from_text=from_text, made_up_rates=_rates(given, num_drafts)
    )


def _rates(given: Mapping[str, Any], num_drafts: int) -> tuple[float, ...]:
    name = "synthetic_acceptance_rates"
    rates = given.get(name, ())
    if not isinstance(rates, list | tuple) or not all(
        isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= 1 for rate in rates
    ):
        raise ConfigError(f"--speculative-config: {name} is {rates!r}, but must be a list of numbers from 0 to 1.")
    if rates and (len(rates) != num_drafts or list(rates) != sorted(rates, reverse=True)):
        raise ConfigError(
            f"--speculative-config: {name} is {rates!r}, but must have num_speculative_tokens numbers, {num_drafts}, "
            "none greater than the one before it."
        )
    return tuple(map(float, rates))


def _suffix(given: Mapping[str, Any]) -> SuffixDrafts:
    _refuse_others(given, _SUFFIX_FIELDS)
    if given.get("suffix_decoding_max_cached_requests", 0) != 0:
        raise ConfigError(
            "--speculative-config: suffix_decoding_max_cached_requests must be 0: drafts come from a request's own "
            "tokens, never from other requests."
        )
    max_match = _integer(given, "suffix_decoding_max_tree_depth", 24, most=MOST_DRAFTS)
    return SuffixDrafts(
        num_drafts=_integer(given, "num_speculative_tokens", max_match, most=MOST_DRAFTS),
        max_match=max_match,
        max_factor=_number(given, "suffix_decoding_max_spec_factor", 1.0, most=float(MOST_DRAFTS)),
        min_share=_number(given, "suffix_decoding_min_token_prob", 0.1, most=1.0),
    )


def _ngram(given: Mapping[str, Any]) -> NgramDrafts:
    _refuse_others(given, ("prompt_lookup_min", "prompt_lookup_max"))
    if "num_speculative_tokens" not in given:
        raise ConfigError(
            "--speculative-config: the method ngram needs num_speculative_tokens. Say how many, such as 4."
        )
    default = given.get("prompt_lookup_min", given.get("prompt_lookup_max", 5))
    max_match = _integer(given, "prompt_lookup_max", default, most=MOST_DRAFTS)
    min_match = _integer(given, "prompt_lookup_min", max_match, most=MOST_DRAFTS)
    if min_match > max_match:
        raise ConfigError(
            f"--speculative-config: prompt_lookup_min is {min_match}, more than prompt_lookup_max, {max_match}."
        )
    return NgramDrafts(
        num_drafts=_integer(given, "num_speculative_tokens", 0, most=MOST_DRAFTS),
        min_match=min_match,
        max_match=max_match,
    )


def _refuse_others(given: Mapping[str, Any], own: Collection[str]) -> None:
    known = ("method", "num_speculative_tokens", *own)
    for name in given:
        if name not in known:
            raise ConfigError(
                f"--speculative-config: {name} is not a field of the method {given['method']}. There are "
                f"{', '.join(known)}."
            )


def _integer(given: Mapping[str, Any], name: str, default: int, *, most: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"--speculative-config: {name} is {value!r}, but must be a number from 1 to {most}.")
    return value


def _number(given: Mapping[str, Any], name: str, default: float, *, most: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(f"--speculative-config: {name} is {value!r}, but must be a number from 0 to {most:g}.")
    return float(value)
