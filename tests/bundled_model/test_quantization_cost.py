"""What quantizing costs: figures that are in the order that they must be in."""

from pathlib import Path

import torch

from facet.bundled_model import FOLDER
from tools.bundled_model.quantization_cost import ROWS, Row, dialogues, load, logits, measure
from tools.bundled_model.text_only import write_text_model


def test_fewer_bits_cost_more(tmp_path: Path) -> None:
    write_text_model(FOLDER, tmp_path)
    unquantized = load(tmp_path, Row("unquantized", None))
    texts = dialogues(tmp_path, 200)
    assert texts == dialogues(tmp_path, 200)
    assert sum(text.num_rows for text in texts) >= 200
    nothing = measure(unquantized, unquantized, texts)
    assert (nothing.mean_kl, nothing.largest_kl, nothing.agreement, nothing.logit_error) == (0, 0, 1, 0)
    costs = {row.name: measure(load(tmp_path, row), unquantized, texts) for row in ROWS if not row.quantizes_head}
    errors = [costs[name].logit_error for name in ("int8, weights only", "int8", "fp8", "int4")]
    assert errors == sorted(errors)
    assert errors[0] > 0
    assert costs["fp8, weights only"].logit_error < costs["fp8"].logit_error
    assert all(0 < cost.mean_kl < cost.largest_kl for cost in costs.values())


def test_logits_are_those_of_one_dialogue_at_a_time(tmp_path: Path) -> None:
    write_text_model(FOLDER, tmp_path)
    model, texts = load(tmp_path, Row("unquantized", None)), dialogues(tmp_path, 400)
    found = list(logits(model, texts))
    assert [len(each) for each in found] == [text.num_rows for text in texts]
    (alone,) = logits(model, texts[-1:])
    torch.testing.assert_close(alone, found[-1])
