"""The dtypes in which keys and values can be stored, and which layer uses which.

A quantized dtype stores one byte per number. Per-tensor ones only cast. Per-token-head ones keep a float32 scale for
every stored vector of a token and key head, so that the vector's largest number uses the whole range. The dtype of the
weights plays no part. This module knows names and numbers, no tensors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from facet.errors import ConfigError
from facet.model_spec import AttentionKind, ModelSpec

SCALE_BYTES = 4  # a float32

KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVDtype:
    """One way to store keys and values."""

    name: str
    stored_as: str  # torch's name for the numbers in the pages
    num_bytes: int  # of one number
    has_scales: bool = False
    # The compute capability a GPU must have; None: any that Facet runs on.
    least_capability: tuple[int, int] | None = None

    @property
    def is_quantized(self) -> bool:
        return self.num_bytes == 1


KV_DTYPES: Mapping[str, KVDtype] = {
    dtype.name: dtype
    for dtype in (
        KVDtype(name="bfloat16", stored_as="bfloat16", num_bytes=2, least_capability=(8, 0)),
        KVDtype(name="float16", stored_as="float16", num_bytes=2),
        KVDtype(name="float32", stored_as="float32", num_bytes=4),
        KVDtype(name="fp8_e4m3", stored_as="float8_e4m3fn", num_bytes=1, least_capability=(8, 9)),
        KVDtype(name="fp8_e5m2", stored_as="float8_e5m2", num_bytes=1),
        KVDtype(name="int8_per_token_head", stored_as="int8", num_bytes=1, has_scales=True),
        KVDtype(
            name="fp8_per_token_head",
            stored_as="float8_e4m3fn",
            num_bytes=1,
            has_scales=True,
            least_capability=(8, 9),
        ),
    )
}
_ALIASES = {"fp8": "fp8_e4m3"}
_KNOWN = ", ".join(("auto", *KV_DTYPES, *_ALIASES))
_KIND_ALIASES: Mapping[str, AttentionKind] = {"sliding_window": "sliding"}  # vLLM's word


def parse_kv_cache_dtype(text: str) -> dict[AttentionKind, str]:
    """What --kv-cache-dtype asks for, per kind of layer: a name of `KV_DTYPES`, or auto.

    One name sets both kinds; `global=NAME,sliding=NAME` sets each, and a kind left out stays auto.
    """
    flag = f"--kv-cache-dtype {text}"
    if "=" not in text:
        return dict.fromkeys(KINDS, _known_name(text, flag))
    asked: dict[AttentionKind, str] = {}
    for part in text.split(","):
        word, _, name = part.strip().partition("=")
        kind = next((kind for kind in KINDS if kind == word), None)
        if kind is None:
            raise ConfigError(f"{flag}: {word!r} is not a kind of layer. Kinds are {' and '.join(KINDS)}.")
        if kind in asked:
            raise ConfigError(f"{flag} names {kind} layers twice. Give each kind one dtype.")
        asked[kind] = _known_name(name, flag)
    return {kind: asked.get(kind, "auto") for kind in KINDS}


def _known_name(name: str, flag: str) -> str:
    name = _ALIASES.get(name, name)
    if name != "auto" and name not in KV_DTYPES:
        raise ConfigError(f"{flag}: {name!r} is not a KV dtype. Known: {_KNOWN}.")
    return name


def choose_kv_dtypes(
    spec: ModelSpec, *, asked: str, skip_layers: Sequence[str] = (), model_dtype: str
) -> dict[int, str]:
    """The dtype of every layer that owns keys. Skipped layers, and auto, are stored as the model computes."""
    per_kind = parse_kv_cache_dtype(asked)
    if "float32" in per_kind.values() and model_dtype != "float32":
        raise ConfigError(
            f"--kv-cache-dtype {asked}: the model computes in {model_dtype}, so float32 would store nothing more. "
            "Use auto."
        )
    skipped = _skipped_layers(spec, skip_layers)
    chosen = {}
    for layer in spec.layers:
        if layer.owns_kv:
            name = per_kind[layer.attention]
            chosen[layer.index] = model_dtype if name == "auto" or layer.index in skipped else name
    return chosen


def _skipped_layers(spec: ModelSpec, words: Sequence[str]) -> set[int]:
    """The layers to skip as indices, from indices and kinds."""
    skipped: set[int] = set()
    for word in words:
        kind = _KIND_ALIASES.get(word, word)
        if kind in KINDS:
            skipped |= {layer.index for layer in spec.layers if layer.attention == kind}
            continue
        if not (word.isascii() and word.isdecimal()) or int(word) >= spec.num_layers:
            raise ConfigError(
                f"--kv-cache-dtype-skip-layers: {word!r} is neither a layer of this model (0 to "
                f"{spec.num_layers - 1}) nor a kind of layer ({', '.join(KINDS)})."
            )
        layer = spec.layers[int(word)]
        if layer.kv_from_layer is not None:
            raise ConfigError(
                f"--kv-cache-dtype-skip-layers: layer {word} stores no keys, it reads those of layer "
                f"{layer.kv_from_layer}. Name that one."
            )
        skipped.add(layer.index)
    return skipped


def check_hardware(names: Iterable[str], *, device: str, capability: tuple[int, int] | None) -> None:
    """Refuse dtypes that a GPU of this compute capability cannot do. A CPU (capability None) has them all."""
    if capability is None:
        return
    works = [name for name, dtype in KV_DTYPES.items() if (dtype.least_capability or capability) <= capability]
    for name in names:
        if name not in works:
            major, minor = KV_DTYPES[name].least_capability or capability
            raise ConfigError(
                f"--kv-cache-dtype: {device} has compute capability {capability[0]}.{capability[1]}, but {name} needs "
                f"{major}.{minor}. On this GPU work: auto, {', '.join(works)}."
            )
