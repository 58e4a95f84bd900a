"""The checkpoints of `tests/spec/make_quantized_models.py`, which public libraries have written or read: their numbers,
and logits that transformers computes from them.

Building them takes minutes and needs more packages than the other tests, so these run only where they have been built:

    pip install compressed-tensors==0.20.0 accelerate gguf
    python tests/spec/make_quantized_models.py --out DIR
    FACET_QUANTIZED_MODELS=DIR pytest tests/model/test_quantized_references.py

bitsandbytes is not read.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from facet.layers.linear import Linear
from facet.model.gguf.config import make_config
from facet.model.gguf.container import Gguf
from facet.model.loader import LoadedModel
from facet.model.weight_map import tensor_targets
from tests.model.paged_model import PagedSequence, load
from tests.model.test_quantized import round_nothing, values

ROOT = Path(os.environ.get("FACET_QUANTIZED_MODELS", "/nowhere"))
FOLDERS = sorted(
    folder for folder in ROOT.glob("*") if (folder / "reference.json").exists() and "bnb" not in folder.name
)

if not FOLDERS:
    pytest.skip("FACET_QUANTIZED_MODELS names no folder of checkpoints", allow_module_level=True)

# Whose inputs are rounded in the references as Facet rounds them. It rounds none to four bits; and the references leave
# those of routed experts alone.
ROUNDED = [
    folder
    for folder in FOLDERS
    if "cases_activations" in json.loads((folder / "reference.json").read_text())
    and "nvfp4" not in folder.name
    and "moe" not in folder.name
]


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedModel:
    folder: Path = request.param
    if not (folder / "model.gguf").exists():
        return load(folder, dtype="float32")
    # These files have no tokenizer and hardly any metadata: the config lies beside them.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    unfolded = tmp_path / "facet" / "gguf" / folder.name
    unfolded.mkdir(parents=True)
    config = json.loads((folder / "config.json").read_text())
    made = make_config([Gguf(folder / "model.gguf")])
    config |= {name: made[name] for name in ("quantization_config", "stores_whole_norm_weights") if name in made}
    (unfolded / "config.json").write_text(json.dumps(config))
    (unfolded / "model.gguf").symlink_to(folder / "model.gguf")
    return load(unfolded, dtype="float32")


def reference_of(folder: Path) -> Any:
    return json.loads((folder / "reference.json").read_text())


@pytest.mark.parametrize(
    ("folder", "loaded"), [(folder, folder) for folder in FOLDERS], ids=lambda f: f.name, indirect=["loaded"]
)
def test_numbers_and_logits(folder: Path, loaded: LoadedModel) -> None:
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
    for case in reference_of(folder)["cases"]:
        prompt, continuation = case["prompt"], case["continuation"]
        assert max(differences(loaded, case)) <= 2e-4
        found = PagedSequence(loaded.model, len(prompt) + len(continuation)).greedy(prompt, len(continuation))
        assert found == continuation


@pytest.mark.parametrize(
    ("folder", "loaded"), [(folder, folder) for folder in ROUNDED], ids=lambda f: f.name, indirect=["loaded"]
)
def test_logits_with_rounded_inputs(folder: Path, loaded: LoadedModel) -> None:
    """An input between two codes may fall on either for the last bit of a sum, and everything after it is then moved by
    up to a code. So half of the logits are close, and all are closer than without rounding."""
    cases = reference_of(folder)["cases_activations"]
    rounded = sorted(difference for case in cases for difference in differences(loaded, case))
    round_nothing(loaded.model)
    plain = sorted(difference for case in cases for difference in differences(loaded, case))
    middle = len(rounded) // 2
    assert rounded[middle] <= 0.5 * plain[middle]
    assert rounded[-1] <= 0.8 * plain[-1]
    assert rounded[-1] <= 0.15


def differences(loaded: LoadedModel, case: dict[str, Any]) -> list[float]:
    """Of the logits that a reference has, relative to the largest of a row."""
    logits = PagedSequence(loaded.model, len(case["prompt"])).run(case["prompt"])
    found = []
    for position, best in case["positions"].items():
        row = logits[int(position)]
        size = max(1.0, float(row.abs().max()))
        found += [abs(row[token].item() - value) / size for token, value in best]
    return found
