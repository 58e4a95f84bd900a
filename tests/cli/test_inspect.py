"""`facet inspect`: what it says about a model, and what it checks."""

from pathlib import Path

import pytest

from facet.cli import main
from facet.cli.inspect import layer_table
from facet.model.families import read_model_spec
from tests.model.quantized_files import VARIANTS, write_variant
from tests.published_configs import PUBLISHED
from tests.tiny_checkpoints import SHRUNK, random_tensors, write_checkpoint, write_config


def cells(name: str) -> list[tuple[str, ...]]:
    table = layer_table(read_model_spec(PUBLISHED[name]))
    return list(zip(*(list(column.cells) for column in table.columns), strict=True))


def test_runs_of_equal_layers_share_a_line() -> None:
    rows = cells("Gemma 4 E2B")
    assert rows[0] == ("0-3", "sliding", "512", "8", "1", "256", "separate", "6144")
    assert rows[1] == ("4", "global", "all", "8", "1", "512", "separate", "6144")
    assert rows[-1] == ("34", "global", "all", "8", "1", "512", "of layer 14", "12288")
    assert [row[0] for row in rows[4:8]] == ["10-13", "14", "15-18", "19"]


def test_experts_and_shared_vectors_are_shown() -> None:
    assert cells("Gemma 4 26B-A4B")[1] == (
        "5",
        "global",
        "all",
        "16",
        "2",
        "512",
        "shared",
        "2112 + 8 of 128 x 704",
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_layer_is_in_exactly_one_line(name: str) -> None:
    covered: list[int] = []
    for row in cells(name):
        first, _, last = row[0].partition("-")
        covered += range(int(first), int(last or first) + 1)
    assert covered == list(range(read_model_spec(PUBLISHED[name]).num_layers))


@pytest.mark.parametrize(
    ("name", "words"), [("Gemma 4 31B", "30.697 billion weights in 832"), ("Gemma 4 E4B", "7.463")]
)
def test_a_config_alone_is_enough(name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(write_config(tmp_path, PUBLISHED[name]))]) == 0
    out = capsys.readouterr().out
    assert words in out
    assert "All tensors" not in out
    assert "No weight files are here, so none were checked." in out


@pytest.mark.parametrize("num_shards", [1, 3])
def test_files_are_checked_where_there_are_any(
    num_shards: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = SHRUNK["Gemma 4 12B"]
    write_checkpoint(tmp_path, config, random_tensors(config), num_shards=num_shards)
    assert main(["inspect", str(tmp_path)]) == 0
    counted = "1 file." if num_shards == 1 else "3 files."
    out = capsys.readouterr().out
    assert f"All tensors are present, in {counted}" in out
    assert "No weight files" not in out
    assert main(["inspect", str(tmp_path), "--load-format", "dummy"]) == 0
    assert "No weight files" not in capsys.readouterr().out


@pytest.mark.usefixtures("with_bfloat16_products")
@pytest.mark.parametrize("name", PUBLISHED)
def test_every_family_loads_and_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_config(tmp_path, SHRUNK[name])
    assert main(["inspect", str(folder), "--load", "--load-format", "dummy", "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert "Loaded as bfloat16 on cpu" in captured.out
    assert "gave finite logits" in captured.out
    assert captured.err == ""


@pytest.mark.usefixtures("with_bfloat16_products")
@pytest.mark.parametrize("dtype", ["auto", "float32", "float16", "bfloat16"])
def test_dtypes(dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = SHRUNK["Gemma 3 1B"]
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(config).items()}
    write_checkpoint(tmp_path, config, tensors)
    assert main(["inspect", str(tmp_path), "--load", "--device", "cpu", "--dtype", dtype]) == 0
    assert f"Loaded as {'bfloat16' if dtype == 'auto' else dtype} on cpu" in capsys.readouterr().out


@pytest.mark.parametrize("vocab_size", [1, 2, 3])
def test_the_smallest_vocabularies_run(vocab_size: int, tmp_path: Path) -> None:
    folder = write_config(tmp_path, SHRUNK["Gemma 3 1B"] | {"vocab_size": vocab_size})
    assert main(["inspect", str(folder), "--load", "--load-format", "dummy", "--device", "cpu"]) == 0


def test_a_context_shorter_than_a_block_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_config(tmp_path, SHRUNK["Gemma 3 1B"])
    flags = ["--load", "--load-format", "dummy", "--device", "cpu", "--max-model-len", "3"]
    assert main(["inspect", str(folder), *flags]) == 0
    assert "One forward pass of 3 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [(), ("--load", "--device", "cpu", "--dtype", "float32")], ids=str)
def test_says_how_weights_are_quantized(
    flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_variant(tmp_path, VARIANTS["nvfp4"])
    assert main(["inspect", str(tmp_path / "quantized"), *flags]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "fp4, groups of 16 (" in words
    assert "bits per quantized weight" in words
    assert "activations in four bits; they stay as they are" in words


def test_says_what_is_left_unquantized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_variant(tmp_path, VARIANTS["int4 partly"])
    assert main(["inspect", str(tmp_path / "quantized")]) == 0
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "unquantized" in line]
    unquantized = {cells[0].strip(): cells[1].strip() for cells in lines if len(cells) > 2}
    assert unquantized == {
        "embed_tokens": "1",
        "self_attn.v_proj": "2",
        "mlp.gate_proj": "1",
        "self_attn.k_proj": "1",
    }


def test_says_what_a_flag_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_config(tmp_path, PUBLISHED["Gemma 4 E4B"])
    assert main(["inspect", str(folder), "--quantization", "int4"]) == 0
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    formats = {row[0]: row[2] for row in rows if len(row) == 5}
    assert formats["per_layer_input_gate"] == formats["per_layer_projection"] == "int4, groups of 32"
    words = " ".join(out.split())
    assert "Quantized while loading: int4, groups of 32 (" in words
    assert "4.50 bits per quantized weight" in words
