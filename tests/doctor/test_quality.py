"""The meter for quantized weights: its figures by an independent count, its words, and the prompts it takes."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from facet.doctor.config import DoctorConfig
from facet.doctor.examine import examine
from facet.doctor.findings import Finding
from facet.doctor.quality import CHECK, Text, meaning, measure
from facet.errors import ConfigError
from facet.kernels import quantized
from facet.kernels.quantized import QuantizedMatrix, reference
from facet.model.original_weights import original_weights
from tests.model.paged_model import PagedSequence, load
from tests.model.quantized_files import VARIANTS, wide, write_variant
from tests.tiny_checkpoints import random_tensors, write_checkpoint


def find(folder: Path, **settings: object) -> Finding:
    config = DoctorConfig(model=str(folder), device="cpu", quick=True, quality_only=True, **settings)  # type: ignore[arg-type]
    (finding,) = [finding for finding in examine(config).findings if finding.check == CHECK]
    return finding


def test_figures_by_hand(tmp_path: Path) -> None:
    """Two texts of a prompt and an answer, scored by two models that are loaded apart."""
    folder = write_checkpoint(tmp_path, wide("Gemma 4 E4B"), random_tensors(wide("Gemma 4 E4B")))
    loaded, dense = load(folder, quantization="int4", dtype="float32"), load(folder, dtype="float32")
    generator = torch.Generator().manual_seed(1)
    texts = [Text(tuple(torch.randint(3, 60, (length,), generator=generator).tolist()), 5) for length in (20, 33)]
    with original_weights(loaded.model, folder) as originals:
        distance = measure(loaded.model, originals, texts)
    divergences, agreements, of_prompts, num_same = [], [], [], 0
    for text in texts:
        got, expected = (
            PagedSequence(model, 40).run(list(text.token_ids)).log_softmax(-1) for model in (loaded.model, dense.model)
        )
        divergence = torch.nn.functional.kl_div(got, expected, reduction="none", log_target=True).sum(-1)
        agrees = got.argmax(-1) == expected.argmax(-1)
        # Rows 4 to the last but one choose the tokens of the answer.
        divergences += divergence[4:-1].tolist()
        agreements += agrees[4:-1].tolist()
        of_prompts += [*divergence[:4].tolist(), divergence[-1].item()]
        num_same += bool(agrees[4:-1].all())
    assert distance.mean_kl == pytest.approx(sum(divergences) / len(divergences), rel=1e-4)
    assert distance.largest_kl == pytest.approx(max(divergences), rel=1e-4)
    assert distance.agreement == pytest.approx(sum(agreements) / len(agreements))
    assert (distance.num_positions, distance.num_answers) == (15 + 28, 2)
    assert distance.num_same_answers == num_same
    assert distance.prompt_mean_kl == pytest.approx(sum(of_prompts) / len(of_prompts), rel=1e-4)
    assert distance.mean_kl > 1e-5


def test_more_bits_are_better(chatty_folder: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one two\nthree\nfour\n")
    found = {
        quantization: find(chatty_folder, dtype="float32", quantization=quantization, prompts=str(prompts))
        for quantization in ("int8", "fp8", "int4")
    }
    assert (found["int8"].status, found["fp8"].status) == ("pass", "pass")
    kl = {name: finding.figures["mean_kl"] for name, finding in found.items()}
    assert 0 < kl["int8"] < kl["fp8"] < kl["int4"]
    assert "compared with the weights that the checkpoint has" in found["int4"].explanation


def test_a_checkpoint_is_compared_with_its_own_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_variant(tmp_path, VARIANTS["int4 groups of 32"])
    finding = find(tmp_path / "quantized", dtype="float32")
    assert finding.status == "pass"
    assert finding.figures["mean_kl"] < 1e-6
    assert finding.figures["agreement"] == 1.0
    assert "the numbers that its codes stand for" in finding.explanation

    def wrong(x: Tensor, matrix: QuantizedMatrix, product: quantized.Product, *, in_one_chain: bool) -> Tensor:
        return reference.linear(x, matrix, product).roll(1, 0) if len(x) > 1 else reference.linear(x, matrix, product)

    monkeypatch.setattr(quantized, "linear", wrong)
    finding = find(tmp_path / "quantized", dtype="float32")
    assert finding.status == "fail"
    assert "a kernel computes something else" in finding.explanation


def test_inputs_that_are_rounded_count(tmp_path: Path) -> None:
    write_variant(tmp_path, VARIANTS["fp8 dynamic"])
    finding = find(tmp_path / "quantized", dtype="float32")
    assert finding.status == "pass"
    assert finding.figures["mean_kl"] > 1e-6


@pytest.mark.parametrize(("mean_kl", "word"), [(0.0, "As good"), (0.004, "Very close"), (0.2, "worse"), (3, "Broken")])
def test_words(mean_kl: float, word: str) -> None:
    assert word in meaning(mean_kl)
    assert "Broken" in meaning(float("nan"))


def test_prompts_of_the_user(chatty_folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "prompts.txt"
    text.write_text("one two\n\nthree\n")
    lines = [{"prompt": "one two"}, {"messages": [{"role": "user", "content": "three"}]}]
    objects = tmp_path / "prompts.jsonl"
    objects.write_text("\n".join(map(json.dumps, lines)))
    found = [
        find(chatty_folder, dtype="float32", quantization="int4", prompts=str(path)).figures for path in (text, objects)
    ]
    assert found[0] == found[1]
    assert found[0]["num_answers"] == 2


def test_prompts_that_cannot_be(chatty_folder: Path, tmp_path: Path) -> None:
    def refusal(name: str, contents: str | None) -> str:
        path = tmp_path / name
        if contents is not None:
            path.write_text(contents)
        with pytest.raises(ConfigError) as caught:
            find(chatty_folder, dtype="float32", quantization="int4", prompts=str(path))
        return str(caught.value)

    assert "cannot be read" in refusal("missing.txt", None)
    assert "no line with a prompt" in refusal("empty.txt", " \n")
    assert "line 2 is not JSON" in refusal("a.jsonl", '{"prompt": "x"}\n{')
    assert 'line 1 must be an object with either "prompt"' in refusal("b.jsonl", '{"text": "x"}')
    assert "line 1: messages[0] has no role" in refusal("c.jsonl", '{"messages": [{"content": "x"}]}')


def test_nothing_is_quantized(chatty_folder: Path) -> None:
    with pytest.raises(ConfigError, match="--quality-only measures quantized weights, and this model has none"):
        find(chatty_folder, dtype="float32")
