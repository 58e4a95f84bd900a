"""The checkpoints of `tests/spec/make_quantized_models.py`, which public libraries have written or read: their numbers,
and logits that transformers computes from them.

Building them takes minutes and needs more packages than the other tests, so these run only where they have been built:

    pip install compressed-tensors==0.20.0 accelerate
    python tests/spec/make_quantized_models.py --out DIR
    FACET_QUANTIZED_MODELS=DIR pytest tests/model/test_quantized_references.py

GGUF files and bitsandbytes are not read.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from facet.layers.linear import Linear
from facet.model.weight_map import tensor_targets
from tests.model.paged_model import PagedSequence, load
from tests.model.test_quantized import round_nothing, values

ROOT = Path(os.environ.get("FACET_QUANTIZED_MODELS", "/nowhere"))
FOLDERS = sorted(
    folder for folder in ROOT.glob("*") if (folder / "model.safetensors").exists() and "bnb" not in folder.name
)

if not FOLDERS:
    pytest.skip("FACET_QUANTIZED_MODELS names no folder of checkpoints", allow_module_level=True)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_numbers_and_logits(folder: Path) -> None:
    loaded = load(folder, dtype="float32")
    dense = load_file(folder / "dequantized.safetensors")
    prefix = next(p for p in ("model.language_model.", "model.") if f"{p}embed_tokens.weight" in dense)
    linears = {place: module for place, module in loaded.model.named_modules() if isinstance(module, Linear)}
    for target in tensor_targets(loaded.spec):
        if target.place in linears:
            linear = linears[target.place]
            rows = linear._rows(slice(None) if target.part is None else slice(target.part, target.part + 1))
            got = values(linear.weight)[..., rows, :]
            expected = dense[target.name if target.name == "lm_head.weight" else prefix + target.name]
            if "nvfp4" in folder.name:  # within a bit of float32: a divisor there is a factor here
                assert torch.allclose(got, expected, rtol=2**-22, atol=0), target.name
            else:
                assert torch.equal(got, expected), target.name
    round_nothing(loaded.model)
    for case in json.loads((folder / "reference.json").read_text())["cases"]:
        prompt, continuation = case["prompt"], case["continuation"]
        logits = PagedSequence(loaded.model, len(prompt)).run(prompt)
        for position, best in case["positions"].items():
            row = logits[int(position)]
            for token, value in best:
                assert row[token].item() == pytest.approx(value, abs=2e-4 * max(1.0, float(row.abs().max())))
        found = PagedSequence(loaded.model, len(prompt) + len(continuation)).greedy(prompt, len(continuation))
        assert found == continuation
