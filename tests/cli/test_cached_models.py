"""`facet pull`, `list` and `rm`, over a cache in a folder of its own."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save

from facet.cli import main
from tests.cached_models import write_cached_model
from tests.tiny_checkpoints import SHRUNK, random_tensors


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = {**SHRUNK["Gemma 3 1B"], "dtype": "bfloat16"}
    weights = save(random_tensors(config))
    write_cached_model(tmp_path, "google/tiny", {"config.json": json.dumps(config), "model.safetensors": weights})
    write_cached_model(tmp_path, "google/looked-at", {"config.json": json.dumps(config)})
    write_cached_model(tmp_path, "owner/q-GGUF", {"q-Q4_0.gguf": "x", "q-Q8_0.gguf": "x"})
    quantized = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "awq"}}
    write_cached_model(tmp_path, "owner/other", {"config.json": json.dumps(quantized), "model.safetensors": ""})
    return tmp_path


def test_list(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["list", "--download-dir", str(cache), "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(listed) == ["google/looked-at", "google/tiny", "owner/other", "owner/q-GGUF"]
    assert {name: entry["format"] for name, entry in listed.items()} == {
        "google/looked-at": "bfloat16",
        "google/tiny": "bfloat16",
        "owner/other": "awq",
        "owner/q-GGUF": "GGUF",
    }
    assert listed["google/tiny"]["bytes"] > 2048
    assert listed["google/tiny"]["fit"].startswith("fits")
    assert listed["google/looked-at"]["fit"] == "only its config; pull it"
    assert listed["owner/other"]["fit"] == "is not a model that Facet runs"
    assert listed["owner/q-GGUF"]["gguf_files"] == ["q-Q4_0.gguf", "q-Q8_0.gguf"]
    monkeypatch.setattr("facet.engine.fitting.free_host_bytes", lambda: 1 << 20)
    assert main(["list", "--download-dir", str(cache)]) == 0
    assert "does not fit" in " ".join(capsys.readouterr().out.split())


def test_pull_finds_what_is_there_and_rm_removes_it(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--download-dir", str(cache))
    assert main(["pull", "google/tiny", *at]) == 0
    assert "google/tiny: 0.00 GiB in " in capsys.readouterr().out
    assert main(["rm", "google/tiny", *at]) == 0
    assert "google/tiny is removed" in capsys.readouterr().out
    assert main(["rm", "google/tiny", *at]) == 2
    assert "no google/tiny in the cache. It has google/looked-at," in capsys.readouterr().err
    assert main(["pull", "google/tiny", *at]) == 2
    assert "Check the network" in capsys.readouterr().err
    file = next(path for path in cache.rglob("*") if path.is_file())
    for arguments in (("list",), ("pull", "google/tiny"), ("rm", "google/tiny")):
        assert main([*arguments, "--download-dir", str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"error: --download-dir {file} is a file. Name a folder, or")
    assert main(["rm", *at]) == 2
    assert "No model was named" in capsys.readouterr().err


def test_an_empty_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--download-dir", str(tmp_path / "none")]) == 0
    assert "No models are downloaded" in capsys.readouterr().out
