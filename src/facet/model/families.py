"""Makes a `ModelSpec` from a `config.json`: identifies the family, reads the fields, refuses what is not supported.

`family_defaults.py` has what a config leaves out, `layer_config.py` reads what it says about layers. Everything that
Facet does not support is refused by name.
"""

from collections.abc import Mapping
from typing import Any

from facet.errors import ConfigError, UnsupportedModelError
from facet.model.config_fields import ConfigFields, shown
from facet.model.family_defaults import DEFAULTS
from facet.model.layer_config import read_layers
from facet.model_spec import (
    AltUpSpec,
    AttentionKind,
    Family,
    ModelSpec,
    PerLayerInputSpec,
)

MOST_POSITIONS = 2**24  # angles are float32, which tells neighbouring whole numbers apart up to here

# What only some families compute. Elsewhere these fields would be read and then silently mean nothing.
_ONLY_IN: dict[str, tuple[Family, ...]] = {
    "attention_k_eq_v": ("gemma4",),
    "enable_moe_block": ("gemma4",),
    "use_double_wide_mlp": ("gemma4",),
    "num_kv_shared_layers": ("gemma3n", "gemma4"),
    "hidden_size_per_layer_input": ("gemma3n", "gemma4"),
}
_FAMILY_NAMES: dict[Family, str] = {"gemma3": "Gemma 3", "gemma3n": "Gemma 3n", "gemma4": "Gemma 4"}


# The architectures a checkpoint may name, and the text config inside. "ForConditionalGeneration" checkpoints wrap
# the decoder with vision and audio towers and keep its config under text_config.
ARCHITECTURES = {
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3_text",
    "Gemma3nForCausalLM": "gemma3n_text",
    "Gemma3nForConditionalGeneration": "gemma3n_text",
    "Gemma4ForCausalLM": "gemma4_text",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "Gemma4UnifiedForCausalLM": "gemma4_unified_text",
    "Gemma4UnifiedForConditionalGeneration": "gemma4_unified_text",
}

# Placeholders, and the tokens before and after them: the beginning and end of an image, of audio.
_MEDIA_TOKENS = ("image", "boi", "eoi", "audio", "boa", "eoa", "video")


def read_model_spec(config: Mapping[str, Any]) -> ModelSpec:
    """The text decoder that a `config.json` describes."""
    top = ConfigFields(config)
    architecture, model_type = _identify(top)
    text = top.section("text_config") if "text_config" in top else top
    defaults = DEFAULTS[model_type]
    _refuse_what_we_do_not_compute(text)
    _refuse_what_the_family_has_not(text, defaults.family)

    bidirectional = text.raw("use_bidirectional_attention")
    if bidirectional is None and "use_bidirectional_attention" not in text.names():
        bidirectional = defaults.bidirectional
    image_layers: tuple[AttentionKind, ...] = ()
    if bidirectional == "vision":
        image_layers = ("sliding",)
    elif model_type == "gemma3_text" and "text_config" in top:
        image_layers = ("sliding", "global")

    per_layer_width = text.integer("hidden_size_per_layer_input", defaults.per_layer_input_width, least=0)
    vocab_size = text.integer("vocab_size", defaults.vocab_size)
    is_3n = defaults.family == "gemma3n"
    if is_3n and not per_layer_width:
        raise text.wrong("hidden_size_per_layer_input", "at least 1: every Gemma 3n has per-layer inputs")
    return ModelSpec(
        family=defaults.family,
        architecture=architecture,
        hidden_size=text.integer("hidden_size", defaults.hidden_size),
        vocab_size=vocab_size,
        layers=read_layers(text, defaults),
        norm_eps=text.number("rms_norm_eps", 1e-6),
        # A GGUF file of Gemma 3 has them whole; the field is our own, for the config made of its metadata.
        norm_weights_offset=1.0
        if defaults.family == "gemma3" and not text.boolean("stores_whole_norm_weights")
        else 0.0,
        has_layer_scalar=defaults.family == "gemma4",
        per_layer_input=PerLayerInputSpec(
            width=per_layer_width,
            vocab_size=text.integer("vocab_size_per_layer_input", 262_144),
        )
        if per_layer_width
        else None,
        altup=AltUpSpec(
            num_streams=text.integer("altup_num_inputs", 4, least=2),
            laurel_rank=text.integer("laurel_rank", 64),
        )
        if is_3n
        else None,
        logit_softcap=text.optional_number("final_logit_softcapping", defaults.softcap),
        tied_embeddings=text.boolean("tie_word_embeddings", top.boolean("tie_word_embeddings", True)),
        max_positions=text.integer("max_position_embeddings", defaults.max_positions, most=MOST_POSITIONS),
        bidirectional_image_layers=image_layers,
        eos_token_ids=top.token_ids("eos_token_id") or text.token_ids("eos_token_id") or (1,),
        media_token_ids=_media_token_ids(top, vocab_size),
        checkpoint_dtype=_read_dtype(top, text),
    )


def _identify(top: ConfigFields) -> tuple[str, str]:
    """The architecture, by its name or by the model type, and the text config's type. They must agree."""
    named = top.raw("architectures")
    supported = ", ".join(ARCHITECTURES)
    if named is not None and not (isinstance(named, list) and named and isinstance(named[0], str)):
        raise top.wrong("architectures", "a list of names")
    model_type = top.raw("model_type")
    if named is None:
        by_type = {
            kind if name.endswith("CausalLM") else kind.removesuffix("_text"): name
            for name, kind in ARCHITECTURES.items()
        }
        if not isinstance(model_type, str) or model_type not in by_type:
            raise UnsupportedModelError(
                f"config.json names no architecture and its model_type is {shown(model_type)}. Supported: {supported}."
            )
        return by_type[model_type], ARCHITECTURES[by_type[model_type]]
    architecture = named[0]
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(f"The architecture {shown(architecture)} is not supported. Supported: {supported}.")
    text_type = ARCHITECTURES[architecture]
    for found in (model_type, top.section("text_config").raw("model_type")):
        if found is not None and found not in (text_type, text_type.removesuffix("_text")):
            raise ConfigError(
                f"config.json contradicts itself: architecture {architecture} beside model_type {shown(found)}."
            )
    return architecture, text_type


def _refuse_what_we_do_not_compute(text: ConfigFields) -> None:
    if text.text("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise text.wrong("hidden_activation", "gelu_pytorch_tanh, the only activation of the family")
    if text.boolean("attention_bias"):
        raise text.wrong("attention_bias", "false: no published Gemma has attention biases")
    if "attn_logit_softcapping" in text:
        raise text.wrong("attn_logit_softcapping", "null: Gemma 3 and later do not cap attention logits")
    if text.raw("use_bidirectional_attention") not in (None, False, "vision"):
        raise text.wrong("use_bidirectional_attention", "null, false or 'vision': encoders are not served")
    if text.integer("altup_active_idx", 0, least=0) != 0:
        raise text.wrong("altup_active_idx", "0")
    if not text.boolean("altup_correct_scale", True):
        raise text.wrong("altup_correct_scale", "true")


def _refuse_what_the_family_has_not(text: ConfigFields, family: Family) -> None:
    for name, families in _ONLY_IN.items():
        if family not in families and text.raw(name):
            raise text.wrong(name, f"absent: {_FAMILY_NAMES[family]} has nothing of the kind")


def _read_dtype(top: ConfigFields, text: ConfigFields) -> str | None:
    for fields in (top, text):
        for name in ("dtype", "torch_dtype"):
            if name in fields:
                return fields.text(name, "").removeprefix("torch.")
    return None


def _media_token_ids(top: ConfigFields, vocab_size: int) -> tuple[int, ...]:
    """What stands for media in a prompt, and what encloses it; in Gemma 3n, every id whose embedding a tower has.
    Files say `..._id` or `..._index`."""
    names = [f"{token}_token_{suffix}" for token in _MEDIA_TOKENS for suffix in ("id", "index")]
    found = {token_id for name in names for token_id in top.token_ids(name)}
    for section in ("vision_config", "audio_config"):
        tower = top.section(section)
        if "vocab_offset" in tower:
            first = tower.integer("vocab_offset", 0)
            found |= set(range(first, first + tower.integer("vocab_size", 128)))
    return tuple(sorted(token_id for token_id in found if token_id < vocab_size))
