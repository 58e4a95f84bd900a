"""`facet plan`: what is printed, drawn and refused. The numbers themselves are tests/engine/test_memory_plan.py's."""

import importlib.util
import json
from pathlib import Path

import pytest

from facet.cli import main
from facet.cli.plan_plot import curves
from facet.engine.memory_plan import make_plan
from facet.engine.plan_config import PlanConfig
from tests.published_configs import PUBLISHED, published
from tests.tiny_checkpoints import write_config

THE_REPORTS_CASE = (
    *("--tensor-parallel-size", "2", "--weight-format", "int4", "--weight-group-size", "32"),
    *("--kv-cache-memory-bytes", "12390980648", "--max-model-len", "131072"),
)
QUANTIZED_GROUPS = {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_config(tmp_path, PUBLISHED["Gemma 4 31B"]))


def test_tables_fit_eighty_columns_and_cut_no_number(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for more in ((), ("--kv-cache-dtype", "global=int8_per_token_head,sliding=bfloat16")):
        assert main(["plan", model, *THE_REPORTS_CASE, *more]) == 0
        out = capsys.readouterr().out
        assert "…" not in out
        assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    for expected in (
        "weights 8.99 counted: int4, groups of 32 (7.67 GiB); 4.50 bits per quantized weight, 1.32 GiB unquantized",
        "bfloat16 409,600 20,480 406.2 6,400 16 / 320",
        "int8_per_token_head 208,000 10,320 206.3 3,250 16 / 320",
        "bfloat16 604,480 262,144 25 15 8 2",
        "int8_per_token_head 1,191,040 262,144 50 35 19 6",
        "a server would print: KV cache: 11.5",
        "Tensor parallel over 2 ranks: heads, MLPs, embeddings and the KV cache are divided; repeated: norms, "
        "towers for media.",
        "at once of the full context, 131,072 tokens.",
    ):
        assert expected in words


def test_json_has_the_same_numbers(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", model, *THE_REPORTS_CASE, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["weights"]["format"], plan["weights"]["group_size"], plan["num_gpus"]) == ("int4", 32, 2)
    found = plan["kv_cache"]["int8_per_token_head"]
    assert found["requests_at_once"] == {"2048": 50, "8192": 35, "32768": 19, "131072": 6}
    assert found["kinds"]["global"]["bytes_per_token"] + found["kinds"]["global"]["scale_bytes_per_token"] == 10_320
    assert found["num_pages"] * found["page_bytes"] == found["bytes"]
    assert set(plan["kv_cache"]) >= {"bfloat16", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head"}


def test_a_quantized_checkpoint_needs_no_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = published("Gemma 4 31B") | {
        "quantization_config": {"quant_method": "compressed-tensors", "config_groups": QUANTIZED_GROUPS}
    }
    arguments = ["plan", str(write_config(tmp_path, config)), "--gpu-memory", "48GiB", "--json"]
    assert main([*arguments, "--max-model-len", "8192"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["weights"]["format"], plan["weights"]["group_size"]) == ("int4", 32)
    memory = plan["gpu_memory"]
    held = ("bytes", "tower_bytes", "rotary_table_bytes")
    assert memory["weights"] == sum(plan["weights"][name] for name in held)
    assert memory["activations_estimated"] > 0


def test_the_cache_takes_all_that_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More than running requests can need: the rest keeps prefixes."""
    model = str(write_config(tmp_path, PUBLISHED["Gemma 3 1B"]))
    asked = ["plan", model, "--gpu-memory", "80GiB", "--max-model-len", "1024", "--max-num-seqs", "4", "--json"]
    assert main(asked) == 0
    plan = json.loads(capsys.readouterr().out)
    cache = plan["kv_cache"]["bfloat16"]
    assert 0 <= plan["gpu_memory"]["kv_cache"] - cache["bytes"] < cache["page_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu-memory", "24GiB", "--max-model-len", "4096"), "does not fit: "),
        (("--gpu-memory", "24GiB", "--max-model-len", "4096"), "It would fit with --"),
        (("--gpu-memory", "80GiB", "--max-num-seqs", "1"), "It would fit with --kv-cache-dtype fp8 or with --max-"),
        (("--gpu-memory", "4GiB"), "for keys and values. No setting changes that. Use larger GPUs,"),
        (
            ("--gpu-memory", "80GiB", "--max-num-batched-tokens", "9" * 12),
            "with --kv-cache-dtype fp8 --max-num-batched-tokens 2048.",
        ),
        (("--kv-cache-memory-bytes", "1"), "Give the cache more memory, or use a smaller model.\n"),
        (("--gpu-memory", "80GiB", "--max-num-seqs", "999999999"), "at most 65536 can run at once."),
        (("--gpu-memory", "24"), "GiB? Then write --gpu-memory 24GiB."),
        (("--kv-cache-memory-bytes", "1000000000"), "--max-model-len to 3200 or less"),
        (("--gpu-memory", "80GiB", "--kv-cache-dtype", "fp3"), "'fp3' is not a KV dtype"),
        (("--gpu-memory", "80GiB", "--weight-format", "int3"), "int3"),
        (("--gpu-memory", "80GiB", "--plot", "/nowhere/x.png"), "--plot"),
        ((), "--gpu-memory"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], words: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["plan", model, *arguments])
    except SystemExit as left:
        code = left.code  # type: ignore[assignment]
    err = capsys.readouterr().err
    assert code == 2
    assert words in err
    assert not ("No setting" in err and ("lower" in err or "would fit" in err))
    assert len(err.splitlines()) == 1


def test_help_lists_no_flags_of_servers_but_takes_them(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--help"])
    text = capsys.readouterr().out
    assert "--gpu-memory " in text
    assert "--port" not in text
    assert "--api-key" not in text
    assert main(["plan", model, *THE_REPORTS_CASE, "--port", "1", "--block-size", "16"]) == 0


def test_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", ""]) == 2
    assert "facet plan MODEL" in capsys.readouterr().err


def test_curves_fall_and_alike_dtypes_share_one(model: str) -> None:
    drawn = curves(make_plan(PlanConfig(model=model, gpu_memory="141GB")))
    assert list(drawn) == ["bfloat16", "fp8_e4m3, fp8_e5m2", "int8_per_token_head, fp8_per_token_head"]
    for points in drawn.values():
        assert points[0][0] == 512
        assert points[-1][0] == 262_144
        counts = [count for _, count in points]
        assert counts == sorted(counts, reverse=True)
    assert all(wide[1] <= narrow[1] for wide, narrow in zip(drawn["bfloat16"], [*drawn.values()][1], strict=True))


def test_a_plot_is_drawn_or_its_absence_explained(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.png"
    code = main(["plan", model, *THE_REPORTS_CASE, "--plot", str(path)])
    if importlib.util.find_spec("matplotlib") is None:
        assert code == 2
        assert "--plot needs matplotlib" in capsys.readouterr().err
    else:
        assert code == 0
        assert path.read_bytes().startswith(b"\x89PNG")


def test_flags_that_quantize_are_counted(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--gpu-memory", "48GiB", "--max-model-len", "8192", "--quantization", "int4", "--quantize-head", "--json"]
    assert main(["plan", model, *flags]) == 0
    weights = json.loads(capsys.readouterr().out)["weights"]
    assert (weights["format"], weights["group_size"]) == ("int4", 32)
    assert weights["unquantized_bytes"] < 0.01 * weights["bytes"]  # norms


def test_groups_that_gpus_would_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An MLP 2112 wide is 66 groups of 32: two GPUs can share them, four cannot."""
    model = str(write_config(tmp_path, PUBLISHED["Gemma 4 26B-A4B"]))
    flags = ["--gpu-memory", "24GiB", "--weight-format", "int4", "--max-model-len", "8192"]
    assert main(["plan", model, *flags, "--tensor-parallel-size", "2"]) == 0
    assert main(["plan", model, *flags, "--tensor-parallel-size", "4"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "-size 4 does not divide the 2112 inputs of layers.0.mlp.down_proj.weight (int4, groups of 32" in error
    assert "Sizes that do: 1, 2." in error
