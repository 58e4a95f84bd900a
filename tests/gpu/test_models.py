"""Models of real widths and few layers: the GPU's logits against the reference kernels' on a CPU."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from facet.config import ModelConfig
from facet.kernels.arithmetic import USUAL, Arithmetic
from facet.layers.placement import Placement
from facet.model.gemma import Gemma
from facet.model.loader import build_model, load_model
from tests.model.paged_model import PagedSequence
from tests.published_configs import pattern, text_only
from tests.tiny_checkpoints import write_config

# Few layers with every trait: both kinds, shared keys, experts. A small vocabulary keeps the CPU's share short.
SHAPES = {
    "E4B": ("Gemma 4 E4B", dict(num_hidden_layers=12, layer_types=pattern(5, 12), num_kv_shared_layers=6)),
    "31B": ("Gemma 4 31B", dict(num_hidden_layers=6, layer_types=pattern(5, 6))),
    # All its experts in float32: a CPU takes long over six layers.
    "26B-A4B": ("Gemma 4 26B-A4B", dict(num_hidden_layers=2, layer_types=pattern(1, 2))),
}
VOCABULARY = dict(vocab_size=8192, vocab_size_per_layer_input=8192)
NUM_PROMPT = 1300  # past the largest window
NUM_SHORT_PROMPT = 200  # a CPU takes long over bfloat16
NUM_DECODED = 4


@pytest.fixture(scope="module", params=SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, changes = SHAPES[request.param]
    config = {**text_only(name), **changes, **VOCABULARY, "max_position_embeddings": 2048}
    return write_config(tmp_path_factory.mktemp("shape"), config)


def load(
    folder: Path, device: str, dtype: torch.dtype, weights: Gemma | None = None, arithmetic: Arithmetic = USUAL
) -> Gemma:
    """With random weights, which are drawn faster on the GPU, or with those of another."""
    config = ModelConfig(model=str(folder), load_format="dummy", device=device, dtype=str(dtype).removeprefix("torch."))
    if weights is None:
        return load_model(config).model
    placement = Placement(dtype=dtype, device=torch.device(device), arithmetic=arithmetic)
    model = build_model(weights.spec, weights.num_positions, placement)
    model.load_state_dict(weights.state_dict())
    return model.eval()


def logits_of(model: Gemma, num_prompt: int, kv_dtype: str | None = None) -> Tensor:
    """Of the last rows of a prompt in two chunks, then token by token."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, 8000, (num_prompt + NUM_DECODED,), generator=generator).tolist()
    sequence = PagedSequence(model, 2048, kv_dtype=kv_dtype or str(model.placement.dtype).removeprefix("torch."))
    first = 2 * num_prompt // 5
    parts = [sequence.run(tokens[:first], num_logit_rows=3, skip_upper=True)]
    parts.append(sequence.run(tokens[first:num_prompt], num_logit_rows=8))
    parts += [sequence.run([token], skip_upper=True) for token in tokens[num_prompt:]]
    return torch.cat(parts).float().cpu()


def test_same_logits_as_the_reference(folder: Path) -> None:
    """float32 to 2e-3 of the largest logit; bfloat16 no further from that than a bfloat16 reference is."""
    torch.set_num_threads(os.cpu_count() or 1)
    on_gpu = load(folder, "cuda", torch.float32)
    reference = load(folder, "cpu", torch.float32, on_gpu)
    exact = logits_of(reference, NUM_PROMPT)
    largest = float(exact.abs().max())
    error = float((logits_of(on_gpu, NUM_PROMPT) - exact).abs().max()) / largest
    short = logits_of(reference, NUM_SHORT_PROMPT)
    theirs, ours = (
        float((logits_of(load(folder, device, torch.bfloat16, reference), NUM_SHORT_PROMPT) - short).abs().mean())
        for device in ("cpu", "cuda")
    )
    print(f"\nfloat32 largest {error:.1e}; bfloat16 mean {ours / largest:.1e}, reference's own {theirs / largest:.1e}")
    assert error <= 2e-3
    assert ours <= 1.2 * theirs
