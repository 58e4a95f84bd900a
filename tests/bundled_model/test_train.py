"""Training: it learns, it can be interrupted, it measures itself rightly, and it keeps to its limits."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.bundled_model.toy_examples import TINY_CONFIG, ToySource
from tools.bundled_model import trainer
from tools.bundled_model.held_out import score
from tools.bundled_model.model import Decoder
from tools.bundled_model.optimizer import Optimizer, orthogonal
from tools.bundled_model.settings import TrainSettings, add_flags, settings_of
from tools.bundled_model.shape import make_spec
from tools.bundled_model.stream import TARGET, Batch, BatchMaker, OwnBatches, pack
from tools.bundled_model.trainer import DeviceBatch, TokenLosses, rate_share, train

SMALLER = dict(
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=3,
    layer_types=["sliding_attention", "full_attention", "full_attention"],
    num_kv_shared_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY_CONFIG | SMALLER))
    return path


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Sums in one order: runs are compared bit by bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def settings(config_file: Path, **changes: Any) -> TrainSettings:
    usual: dict[str, Any] = dict(
        output=config_file.parent,
        config=config_file,
        device="cpu",
        rows=8,
        row_length=96,
        warmup_steps=10,
        report_seconds=1000.0,
        save_seconds=1000.0,
    )
    return TrainSettings(**(usual | changes))


def batches(first: int = 0) -> OwnBatches:
    return OwnBatches(BatchMaker(source=ToySource(3, 8), seed=1, num_rows=8, row_length=96), first)


def test_copying_is_learned(config_file: Path) -> None:
    """Tokens are random: without looking back for what was there before, no more than about 1 in 6 can be right."""
    result = train(settings(config_file, steps=40, warmup_steps=4, muon_rate=0.1, adamw_rate=0.02), batches())
    assert result.held_out.tokens > 0.4
    assert result.target_loss < 3.5  # of the whole run; guessing among all letters costs 4.0
    summary = json.loads((config_file.parent / "training.json").read_text())
    assert summary["num_steps"] == 40
    assert summary["num_tokens"] == 40 * 8 * 96


class Interrupted(OwnBatches):
    """Batches of which the fourth never comes."""

    def next(self) -> Batch:
        if self.num_fresh == 3:
            raise KeyboardInterrupt
        return super().next()


def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(config_file: Path) -> None:
    told = settings(config_file, steps=6, save_seconds=0.0)
    train(told, batches())
    whole = load_file(config_file.parent / "state.safetensors")

    with pytest.raises(KeyboardInterrupt):
        train(told, Interrupted(BatchMaker(source=ToySource(3, 8), seed=1, num_rows=8, row_length=96)))
    halfway = load_file(config_file.parent / "state.safetensors")
    train(settings(config_file, steps=6, resume=config_file.parent / "state.safetensors"), batches(first=3))
    resumed = load_file(config_file.parent / "state.safetensors")

    assert whole.keys() == resumed.keys()
    differing = [name for name in whole if not torch.equal(whole[name], resumed[name])]
    assert not differing
    assert not torch.equal(halfway["weights.embed_tokens.weight"], whole["weights.embed_tokens.weight"])


def test_weights_alone_start_a_run_of_their_own(config_file: Path) -> None:
    train(settings(config_file, steps=2), batches())
    weights = config_file.parent / "weights.safetensors"
    stored = load_file(weights)
    train(settings(config_file, steps=1, resume=weights, warmup_steps=10**9), batches())
    for name, tensor in load_file(weights).items():
        torch.testing.assert_close(tensor, stored[name], atol=1e-3, rtol=0, msg=name)


def test_a_run_that_is_done_is_not_resumed(config_file: Path) -> None:
    train(settings(config_file, steps=2), batches())
    with pytest.raises(ValueError, match="2 steps behind it, and 2 were asked for"):
        train(settings(config_file, steps=2, resume=config_file.parent / "state.safetensors"), batches())


def test_the_minutes_end_a_run_at_the_bottom_of_its_rate(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(settings(config_file, minutes=0.01, steps=10**6), batches())
    assert 0 < result.num_steps < 1000
    assert "0.01 minutes are over" in capsys.readouterr().out


def test_the_rate_rises_stays_and_falls() -> None:
    told = TrainSettings(warmup_steps=10, decay_from=0.5)
    assert rate_share(0, 0.0, told) == pytest.approx(0.1)
    assert rate_share(9, 0.01, told) == 1
    assert rate_share(100, 0.5, told) == 1
    assert rate_share(100, 0.75, told) == pytest.approx(0.5)
    assert rate_share(100, 0.999, told) == pytest.approx(0.002)


def test_a_way_that_fails_is_left_for_the_next(
    config_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(batch: DeviceBatch) -> Any:
        raise RuntimeError("no such\ninstruction")

    def ways(model: Decoder, told: TrainSettings) -> list[tuple[str, TokenLosses]]:
        return [("fast", fails), ("slow", trainer.dense_losses(model))]

    monkeypatch.setattr(trainer, "_ways", ways)
    train(settings(config_file, steps=1), batches())
    out = capsys.readouterr().out
    assert "fast: failed with RuntimeError: no such instruction; trying the next way" in out
    assert "slow: works" in out


def test_only_unbroken_runs_count_as_right() -> None:
    examples = list(zip(range(3), ToySource(4, 4)(1), strict=False))
    batch = pack([example for _, example in examples], 1, 40)
    is_right = np.ones(batch.token_ids.shape, bool)
    targets = np.argwhere(batch.label_kinds == TARGET)
    is_right[tuple(targets[2])] = False  # in the first run
    is_right[batch.label_kinds != TARGET] = False  # elsewhere it does not matter
    result = score(batch, is_right)
    assert (result.num_runs, result.num_long_runs) == (3, 0)
    assert result.runs == pytest.approx(2 / 3)
    assert result.tokens == pytest.approx(14 / 15)


@pytest.mark.parametrize("shape", [(2, 16, 16), (3, 8, 32), (1, 40, 10)])
def test_orthogonal_updates_stretch_all_directions_alike(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    before, after = torch.linalg.svdvals(matrices), torch.linalg.svdvals(orthogonal(matrices))
    assert float(before.min() / before.max()) < 0.6
    assert 0.5 < float(after.min()) < float(after.max()) < 1.3
    # and it keeps the directions themselves
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    assert float((left @ right * orthogonal(matrices)).sum() / shape[0] / min(shape[1:])) > 0.8


def give_gradients(model: Decoder) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)


def test_muon_steps_the_matrices_of_layers_and_adamw_the_rest() -> None:
    model = Decoder(make_spec(TINY_CONFIG | SMALLER), seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    give_gradients(model)
    Optimizer(model, muon_rate=0.1, adamw_rate=0.0, muon_decay=0.0).step(1.0)
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {name for name, value in before.items() if name.startswith("layers.") and value.dim() == 2}
    assert all(parameter.grad is None for parameter in model.parameters()), "gradients are used up"


def test_without_muon_adamw_steps_everything() -> None:
    model = Decoder(make_spec(TINY_CONFIG | SMALLER), seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    give_gradients(model)
    Optimizer(model, muon_rate=0.0, adamw_rate=0.1, muon_decay=0.0, use_muon=False).step(0.5)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert before.keys() - trained.keys() == {f"layers.{index}.layer_scalar" for index in range(3)}
    for name, value in trained.items():
        # The first step of Adam is as long as the learning rate, whatever the gradient.
        torch.testing.assert_close(value.detach(), before[name] - 0.05, msg=name)


def test_flags_are_the_settings() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    assert settings_of(parser.parse_args([])) == TrainSettings()
    told = ["--minutes", "8", "--output", "here", "--no-compile", "--attention", "sdpa", "--workers", "3"]
    changed = TrainSettings(minutes=8.0, output=Path("here"), compile=False, attention="sdpa", workers=3)
    assert settings_of(parser.parse_args(told)) == changed
    with pytest.raises(SystemExit):
        parser.parse_args(["--attention", "none"])
