"""Every published model, cut to a few layers: prompts longer than any window in bfloat16, which has kernels of its own,
against float32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL
from facet.model.gemma import Gemma
from tests.gpu.test_models import NUM_PROMPT, VOCABULARY, load, logits_of
from tests.published_configs import PUBLISHED, pattern, text_only
from tests.tiny_checkpoints import write_config


def cut(name: str) -> dict[str, Any]:
    """All traits of its layers, and few of them."""
    if name in ("Gemma 4 E2B", "Gemma 4 E4B"):
        num_sliding = 4 if name == "Gemma 4 E2B" else 5
        num_layers = 2 * (num_sliding + 1)
        layers: dict[str, Any] = dict(
            layer_types=pattern(num_sliding, num_layers), num_kv_shared_layers=num_layers // 2
        )
    elif name.startswith("Gemma 3n"):
        num_layers, width = 10, text_only(name)["intermediate_size"]
        layers = dict(
            layer_types=pattern(4, num_layers),
            num_kv_shared_layers=num_layers // 2,
            activation_sparsity_pattern=[0.95] * 5 + [0.0] * 5,
            intermediate_size=width[:num_layers] if isinstance(width, list) else width,
        )
    else:
        num_layers = 6
        layers = dict(layer_types=pattern(5, num_layers))
    return {**text_only(name), "num_hidden_layers": num_layers, **layers, **VOCABULARY, "max_position_embeddings": 2048}


def tame(model: Gemma) -> None:
    """Random queries and keys score 16 or more, and softmax takes one key or another by how scores are rounded: in
    bfloat16, 6% of the largest logit, on a CPU too. Here scores are about 1."""
    for name, weight in model.named_parameters():
        if name.endswith("query_norm.weight"):
            weight.data.fill_(1.0 if model.spec.layers[0].attention_scale < 1 else weight.numel() ** -0.5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_long_prompts_in_bfloat16(name: str, tmp_path: Path) -> None:
    """With either arithmetic, and over a cache of eight bits."""
    folder = write_config(tmp_path, cut(name))
    exact = load(folder, "cuda", torch.float32)
    tame(exact)
    expected = logits_of(exact, NUM_PROMPT)
    # Rounding sends a few tokens to other experts: with them, 26B-A4B is 5.9e-3 off.
    most = 1e-2 if exact.spec.layers[0].moe is not None else 5e-3
    for arithmetic, kv_dtype, tolerance in (
        (USUAL, "bfloat16", most),
        (BATCH_INVARIANT, "bfloat16", most),
        (BATCH_INVARIANT, "fp8_e4m3", 2e-2),
    ):
        model = load(folder, "cuda", torch.bfloat16, exact, arithmetic)
        got = logits_of(model, NUM_PROMPT, kv_dtype)
        error = float((got - expected).abs().mean() / expected.abs().max())
        print(f"\n{name}, {kv_dtype}: mean {error:.1e} of the largest logit")
        assert error <= tolerance
