"""The defaults of fields that a config leaves out, by the type of its text decoder.

Published configs omit whatever equals the default of the class that wrote them, so those defaults are part of the
format.
"""

from dataclasses import dataclass

from facet.model_spec import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDefaults:
    """What a text config of this `model_type` means where it says nothing."""

    family: Family
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_layers: int = 30
    num_heads: int = 8
    num_kv_heads: int = 4
    window: int = 512
    vocab_size: int = 262_144
    max_positions: int = 131_072
    pattern: int = 6  # every so-many-th layer is global
    softcap: float | None = None
    num_kv_shared_layers: int = 0
    per_layer_input_width: int = 0
    bidirectional: str | None = None


DEFAULTS: dict[str, FamilyDefaults] = {
    "gemma3_text": FamilyDefaults(family="gemma3", num_layers=26, window=4096, vocab_size=262_208),
    "gemma3n_text": FamilyDefaults(
        family="gemma3n",
        hidden_size=2048,
        intermediate_size=16_384,
        num_layers=35,
        num_kv_heads=2,
        vocab_size=262_400,
        max_positions=32_768,
        pattern=5,
        softcap=30.0,
        num_kv_shared_layers=15,
        per_layer_input_width=256,
    ),
    "gemma4_text": FamilyDefaults(family="gemma4", per_layer_input_width=256),
    "gemma4_unified_text": FamilyDefaults(family="gemma4", window=1024, max_positions=262_144, bidirectional="vision"),
}
