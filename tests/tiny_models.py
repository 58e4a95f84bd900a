"""Tiny random checkpoints of every Gemma, and the transformers model that each is the checkpoint of.

`tests/spec/make_tiny_models.py` has the base shapes; the variants here change seed and shape, so that nothing fits
by accident: head counts, widths, windows, where sharing begins, how many experts, how the rope is spelled.
"""

import copy
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

SPEC_SCRIPT = Path(__file__).parent / "spec" / "make_tiny_models.py"


@cache
def spec_script() -> ModuleType:
    """The script as a module. Cached: importing transformers takes seconds."""
    module_spec = importlib.util.spec_from_file_location("make_tiny_models", SPEC_SCRIPT)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def _pattern(*counts: int) -> list[str]:
    """(3, 2): three sliding and a full layer, then two sliding and a full one."""
    return [name for count in counts for name in ["sliding_attention"] * count + ["full_attention"]]


# What each variant changes of its base. "own" keys are only for this table.
VARIANTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "e2b_narrow": (
        "gemma4_e2b",
        11,
        dict(hidden_size=64, num_attention_heads=2, head_dim=16, sliding_window=8),
    ),
    "e2b_uneven": (
        "gemma4_e2b",
        32,
        dict(layer_types=_pattern(3, 2, 3), num_hidden_layers=11, num_kv_shared_layers=4, num_key_value_heads=2),
    ),
    "e4b_more_heads": (
        "gemma4_e4b",
        13,
        dict(head_dim=16, global_head_dim=32, num_attention_heads=8, num_key_value_heads=4),
    ),
    "e4b_short_window": (
        "gemma4_e4b",
        14,
        dict(sliding_window=5, num_kv_shared_layers=7, layer_types=_pattern(2, 2, 2, 2)),
    ),
    "31b_one_head": ("gemma4_31b", 15, dict(num_global_key_value_heads=1, sliding_window=20)),
    "31b_default_heads": (
        "gemma4_31b",
        16,
        dict(num_global_key_value_heads=None, layer_types=_pattern(2, 2, 5)),
    ),
    "26b_few_experts": ("gemma4_26b_a4b", 17, dict(num_experts=5, top_k_experts=5, moe_intermediate_size=16)),
    "26b_many_experts": ("gemma4_26b_a4b", 18, dict(num_experts=64, top_k_experts=2, hidden_size=64)),
    "12b_narrow": ("gemma4_12b", 19, dict(hidden_size=64, intermediate_size=96, sliding_window=12)),
    "12b_more_heads": ("gemma4_12b", 30, dict(num_attention_heads=8, num_key_value_heads=4)),
    "gemma3_plain_rope": ("gemma3", 21, dict(rope_scaling=None, sliding_window=10, query_pre_attn_scalar=32)),
    "gemma3_ends_sliding": (
        "gemma3",
        22,
        dict(num_hidden_layers=8, sliding_window_pattern=3, num_key_value_heads=1),
    ),
    "3n_two_streams": ("gemma3n", 33, dict(altup_num_inputs=2, laurel_rank=4, sliding_window=9)),
    "3n_all_sparse": ("gemma3n", 24, dict(activation_sparsity_pattern=[0.5] * 10, num_kv_shared_layers=3)),
}
# The families again, shallow and with a window of six tokens: six windows are a short prompt, and many requests quick.
# Those whose layers take longest, and the one that most tests use, have four; between them, the families have groups of
# one and of several layers, and layers that read others' keys in either.
_SHALLOW: dict[str, Any] = dict(sliding_window=6, num_hidden_layers=6, layer_types=_pattern(2, 2))
_SHALLOWER: dict[str, Any] = dict(sliding_window=6, num_hidden_layers=4, layer_types=_pattern(1, 1))
VARIANTS |= {
    f"{base}_small": (base, 40 + index, changes)
    for index, (base, changes) in enumerate(
        {
            "gemma4_e2b": _SHALLOWER | dict(num_kv_shared_layers=2),
            "gemma4_e4b": _SHALLOW | dict(num_kv_shared_layers=2),
            "gemma4_31b": _SHALLOW,
            "gemma4_26b_a4b": _SHALLOWER,
            "gemma4_12b": _SHALLOWER,
            "gemma3": _SHALLOW | dict(sliding_window_pattern=3, layer_types=None),
            "gemma3n": _SHALLOWER
            | dict(
                num_kv_shared_layers=2,
                intermediate_size=[128] * 4,
                activation_sparsity_pattern=[0.95] * 2 + [0.0] * 2,
            ),
        }.items()
    )
}
# Towers of other shapes: heads that are no multiple of 16, cells of four patches, one layer.
VARIANTS |= {
    "e2b_mm_other": ("gemma4_e2b_mm", 51, {"vision_config": dict(num_attention_heads=2, num_key_value_heads=2)}),
    "31b_mm_other": (
        "gemma4_31b_mm",
        52,
        {"vision_config": dict(head_dim=12, hidden_size=40, num_hidden_layers=1, pooling_kernel_size=2)},
    ),
    "12b_mm_other": ("gemma4_12b_mm", 53, {"vision_config": dict(patch_size=2, mm_embed_dim=56, output_proj_dims=56)}),
    "gemma3_mm_other": (
        "gemma3_mm",
        54,
        {"mm_tokens_per_image": 9, "vision_config": dict(image_size=84, num_attention_heads=3)},
    ),
}
# With towers, shallow as above, for many requests. Windows stay longer than a picture.
_SHALLOW_TEXT: dict[str, Any] = dict(num_hidden_layers=4, layer_types=_pattern(1, 1))
VARIANTS |= {
    "e2b_mm_shallow": ("gemma4_e2b_mm", 55, {"text_config": _SHALLOW_TEXT | dict(num_kv_shared_layers=2)}),
    "31b_mm_shallow": ("gemma4_31b_mm", 56, {"text_config": _SHALLOW_TEXT}),
    "gemma3_mm_shallow": (
        "gemma3_mm",
        57,
        {"text_config": dict(num_hidden_layers=4, sliding_window_pattern=2, layer_types=None)},
    ),
}
# Behind the servers of tests, which count on its words.
VARIANTS["gemma4_e2b_served"] = ("gemma4_e2b", 40, _SHALLOW | dict(num_kv_shared_layers=3))
SMALL_WINDOW_NAMES = tuple(name for name in VARIANTS if name.endswith("_small"))
BASE_NAMES = ("gemma4_e2b", "gemma4_e4b", "gemma4_31b", "gemma4_26b_a4b", "gemma4_12b", "gemma3", "gemma3n")
MULTIMODAL_NAMES = ("gemma4_e2b_mm", "gemma4_31b_mm", "gemma4_12b_mm")
VISION_NAMES = (*MULTIMODAL_NAMES, "gemma3_mm", "e2b_mm_other", "31b_mm_other", "12b_mm_other", "gemma3_mm_other")
SHALLOW_VISION_NAMES = tuple(name for name in VARIANTS if name.endswith("_mm_shallow"))
_FOR_MANY_REQUESTS = (*SMALL_WINDOW_NAMES, *SHALLOW_VISION_NAMES, "gemma4_e2b_served")
ALL_TEXT_NAMES = (*BASE_NAMES, *(name for name in VARIANTS if name not in (*_FOR_MANY_REQUESTS, *VISION_NAMES)))


@dataclass(frozen=True)
class TinyModel:
    """A checkpoint on disk and the oracle that computes it."""

    name: str
    folder: Path
    config: Mapping[str, Any]
    oracle_class: Any

    @cached_property
    def oracle(self) -> Any:
        """Read from disk when it is first asked: most tests never do."""
        return spec_script().eager(self.oracle_class.from_pretrained(self.folder, dtype=torch.float32))

    @property
    def window(self) -> int:
        window: int = self.config.get("text_config", self.config)["sliding_window"]
        return window

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(1000 * seed + length)
        return [2, *torch.randint(3, 490, (length - 1,), generator=generator).tolist()]

    @torch.no_grad()
    def oracle_logits(self, token_ids: list[int], oracle: Any = None) -> torch.Tensor:
        """Of a changed copy of the oracle, if one is given."""
        chosen = self.oracle if oracle is None else oracle
        logits: torch.Tensor = chosen(torch.tensor([token_ids]), use_cache=False).logits[0].float()
        return logits

    @torch.no_grad()
    def oracle_error(self, token_ids: list[int]) -> float:
        """How far the oracle's float32 logits are from its own float64 ones: the noise of the comparison."""
        exact = copy.deepcopy(self.oracle).double()
        exact.config._experts_implementation = "eager"  # the grouped product knows no float64
        logits = exact(torch.tensor([token_ids]), use_cache=False).logits[0]
        return float((logits - self.oracle_logits(token_ids)).abs().max())

    def oracle_greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        ids = list(token_ids)
        for _ in range(num_tokens):
            ids.append(int(self.oracle_logits(ids)[-1].argmax()))
        return ids[len(token_ids) :]


def _gemma3_with_vision(script: ModuleType) -> dict[str, tuple[str, dict[str, Any]]]:
    """What the script has not: Gemma 3 with its tower."""
    vision = dict(
        model_type="siglip_vision_model",
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=112,
        patch_size=14,
        layer_norm_eps=1e-6,
        hidden_act="gelu_pytorch_tanh",
        vision_use_head=False,
    )
    config = dict(
        model_type="gemma3",
        text_config=script.GEMMA3,
        vision_config=vision,
        mm_tokens_per_image=16,
        boi_token_index=500,
        image_token_index=501,
        eoi_token_index=502,
        tie_word_embeddings=True,
    )
    return {"gemma3_mm": ("Gemma3ForConditionalGeneration", config)}


def make_tiny_model(name: str, folder: Path) -> TinyModel:
    """Write the checkpoint of `name` into `folder`."""
    import transformers

    script = spec_script()
    base, seed, changes = VARIANTS.get(name, (name, 1234, {}))
    architecture, config = {**script.MODELS, **script.MM_MODELS, **_gemma3_with_vision(script)}[base]
    sections = {field: {**config[field], **value} for field, value in changes.items() if isinstance(value, dict)}
    config = {**config, **changes, **sections}
    oracle_class = getattr(transformers, architecture)
    model = oracle_class(oracle_class.config_class.from_dict(copy.deepcopy(config))).float()
    script.fill_weights(model, seed, config["model_type"].startswith("gemma3_"))
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    text = json.dumps({**config, "architectures": [architecture], "dtype": "float32"}, indent=1)
    (folder / "config.json").write_text(text)
    return TinyModel(name=name, folder=folder, config=config, oracle_class=oracle_class)
