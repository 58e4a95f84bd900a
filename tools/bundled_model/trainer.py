"""The training loop: takes batches, updates weights, saves them, and prints figures.

Knows nothing of dialogues or text. Whatever may fail on an untested machine (compiling, flex attention) has a slower
fallback that is used automatically, with a line that says so.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import cross_entropy

from tools.bundled_model.attention import Attend, dense_attend, flex_attend
from tools.bundled_model.checkpoint import resume_training, save_training
from tools.bundled_model.figures import Clock, Figures, Pace
from tools.bundled_model.flash import flash_attend
from tools.bundled_model.held_out import HeldOutScore, score
from tools.bundled_model.model import Decoder
from tools.bundled_model.optimizer import Optimizer, clip_gradients
from tools.bundled_model.seeing.shape import make_seeing_config, make_vision_spec
from tools.bundled_model.settings import TrainSettings
from tools.bundled_model.shape import BUNDLED_CONFIG, make_spec
from tools.bundled_model.stream import PROMPT, TARGET, Batch
from tools.bundled_model.tower import PictureTensors


class Batches(Protocol):
    """Where batches come from."""

    num_fresh: int
    num_repeated: int

    def next(self) -> Batch: ...
    def held_out(self) -> Batch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBatch:
    token_ids: Tensor
    document_ids: Tensor
    positions: Tensor
    label_kinds: Tensor
    document_starts: Tensor  # for `flash_attend`
    pictures: PictureTensors | None

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> "DeviceBatch":
        def copied(array: NDArray[Any]) -> Tensor:
            return _copied(torch.from_numpy(array), device)

        # int32: torch can do little with unsigned numbers
        names = ("token_ids", "document_ids", "positions", "label_kinds", "document_starts")
        tensors = {name: copied(getattr(batch, name).astype(np.int32)) for name in names}
        pictures = None
        if batch.pictures is not None:
            pictures = PictureTensors(*(copied(getattr(batch.pictures, name)) for name in PictureTensors._fields))
        return cls(**tensors, pictures=pictures)


# A batch in; the loss of each place [rows, row length] and whether its most likely token was the right one.
TokenLosses = Callable[[DeviceBatch], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    num_steps: int
    num_tokens: int
    seconds: float  # since the first step
    target_loss: float  # mean over the last stretch between two reports
    held_out: HeldOutScore


def train(settings: TrainSettings, batches: Batches) -> TrainResult:
    """Trains until the steps or the minutes are used up; saves on the way and at the end."""
    started = time.monotonic()
    device = _device(settings.device)
    config = _config(settings)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Decoder(make_spec(config), settings.seed, dtype, vision=make_vision_spec(config)).to(device)
    optimizer = Optimizer(
        model,
        muon_rate=settings.muon_rate,
        adamw_rate=settings.adamw_rate,
        muon_decay=settings.muon_decay,
        use_muon=settings.optimizer == "muon",
    )
    first_step = 0 if settings.resume is None else resume_training(settings.resume, model, optimizer)
    if first_step >= settings.steps:
        raise ValueError(
            f"{settings.resume} has {first_step} steps behind it, and {settings.steps} were asked for. Raise --steps."
        )
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{num_parameters:,} parameters on {device}, from step {first_step}", flush=True)
    held_out = batches.held_out()
    token_losses = _first_that_works(model, settings, DeviceBatch.of(held_out, device))
    print(f"first step after {time.monotonic() - started:.0f} s", flush=True)

    clock = Clock(settings)
    figures = Figures(device)
    pace = Pace(device)
    step = first_step

    def save() -> TrainResult:
        seconds = clock.seconds
        save_training(settings.output, model, optimizer, step)
        result = TrainResult(
            num_steps=step,
            num_tokens=(step - first_step) * held_out.num_tokens,
            seconds=seconds,
            target_loss=figures.take(or_last=True)["target"],
            held_out=_score(token_losses, held_out, device),
        )
        _write_summary(settings.output, result, batches, device)
        return result

    while (progress := clock.progress(step)) < 1:
        batch = DeviceBatch.of(batches.next(), device)
        share = rate_share(step, progress, settings)
        losses, is_right = token_losses(batch)
        loss = _weighted(losses, batch.label_kinds, settings.prompt_weight)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip_gradients(model.parameters(), settings.clip)
        optimizer.step(share)
        figures.add(losses, is_right, batch.label_kinds, norm)
        step += 1
        pace.wait()
        if clock.is_time("report", settings.report_seconds):
            print(_report(step, clock.seconds, share, figures.take(), batches), flush=True)
        if clock.is_time("save", settings.save_seconds):
            # A run that is broken off leaves what it has, and says how far it came.
            line = save().held_out.line()
            print(f"  saved; held out: {line}", flush=True)
    result = save()
    reason = "all steps are done" if step >= settings.steps else f"{settings.minutes} minutes are over"
    print(
        f"done: {reason}. {step} steps, {result.num_tokens / 1e6:.0f} M tokens in {result.seconds:.0f} s; "
        f"held out: {result.held_out.line()}; weights in {settings.output / 'weights.safetensors'}",
        flush=True,
    )
    return result


def _config(settings: TrainSettings) -> Mapping[str, Any]:
    """With --pictures, the tokenizer that the run has written says which tokens stand for them."""
    config = BUNDLED_CONFIG if settings.config is None else json.loads(settings.config.read_text())
    if settings.pictures and "vision_config" not in config:
        config = make_seeing_config(tokenizers.Tokenizer.from_file(str(settings.output / "tokenizer.json")), config)
    return config


def rate_share(num_steps: int, progress: float, settings: TrainSettings) -> float:
    """The learning rate as a share of the largest: it rises, stays, and falls to nothing at the end of the run.

    It falls by the progress of the whole run, time or steps whichever is further, so a run on a slow machine is not
    broken off at a high rate.
    """
    rise = min(1.0, (num_steps + 1) / settings.warmup_steps)
    fall = min(1.0, (1 - progress) / (1 - settings.decay_from))
    return rise * fall


def dense_losses(model: Decoder) -> TokenLosses:
    """With an explicit mask, keeping little: slow on a GPU, but needs neither much memory nor a compiler."""
    recompute = model.embed_tokens.weight.is_cuda
    return lambda batch: _token_losses(
        model, batch.token_ids, batch.positions, dense_attend(batch.document_ids), batch.pictures, recompute
    )


def _token_losses(
    model: Decoder,
    token_ids: Tensor,
    positions: Tensor,
    attend: Attend,
    pictures: PictureTensors | None,
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    logits = model(token_ids, positions, attend, pictures, recompute=recompute)
    # The last place of a row has a wrong label here; it is an ignored one.
    labels = token_ids.roll(-1, dims=1)
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten().long(), reduction="none").view_as(token_ids)
    return losses, logits.argmax(dim=-1) == labels


def _ways(model: Decoder, settings: TrainSettings) -> Iterator[tuple[str, TokenLosses]]:
    """How losses may be computed here, the fastest first."""
    is_cuda = model.embed_tokens.weight.is_cuda

    def flash(
        token_ids: Tensor, document_starts: Tensor, positions: Tensor, pictures: PictureTensors | None
    ) -> tuple[Tensor, Tensor]:
        return _token_losses(model, token_ids, positions, flash_attend(document_starts), pictures)

    def flex(
        token_ids: Tensor, document_ids: Tensor, positions: Tensor, pictures: PictureTensors | None
    ) -> tuple[Tensor, Tensor]:
        return _token_losses(model, token_ids, positions, flex_attend(document_ids), pictures)

    if is_cuda and settings.attention in ("auto", "flash"):
        if settings.compile:
            compiled_flash = torch.compile(flash, dynamic=False)
            yield (
                "compiled, flash attention",
                lambda batch: compiled_flash(batch.token_ids, batch.document_starts, batch.positions, batch.pictures),
            )
        yield (
            "not compiled, flash attention",
            lambda batch: flash(batch.token_ids, batch.document_starts, batch.positions, batch.pictures),
        )
    if is_cuda and settings.attention in ("auto", "flex"):
        if settings.compile:
            compiled = torch.compile(flex, dynamic=False)
            yield (
                "compiled, flex attention",
                lambda batch: compiled(batch.token_ids, batch.document_ids, batch.positions, batch.pictures),
            )
        attention: Any = torch.compile(flex_attention, dynamic=False)
        yield (
            "not compiled, flex attention",
            lambda batch: _token_losses(
                model,
                batch.token_ids,
                batch.positions,
                flex_attend(batch.document_ids, attention),
                batch.pictures,
                recompute=True,
            ),
        )
    yield "not compiled, dense attention", dense_losses(model)


def _first_that_works(model: Decoder, settings: TrainSettings, batch: DeviceBatch) -> TokenLosses:
    """Tries each way forwards and backwards on a batch. The last one's error is raised."""
    ways = list(_ways(model, settings))
    for name, token_losses in ways:
        began = time.monotonic()
        try:
            losses, _ = token_losses(batch)
            _weighted(losses, batch.label_kinds, settings.prompt_weight).backward()  # type: ignore[no-untyped-call]
            is_finite = all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
            model.zero_grad(set_to_none=True)
            if not is_finite:
                raise FloatingPointError("gradients are not finite")
        except Exception as error:
            model.zero_grad(set_to_none=True)
            if token_losses is ways[-1][1]:
                raise
            words = " ".join(str(error).split())[:300]
            print(f"{name}: failed with {type(error).__name__}: {words}; trying the next way", flush=True)
            continue
        print(f"{name}: works, {time.monotonic() - began:.0f} s for the first time", flush=True)
        return token_losses
    raise AssertionError("unreachable: the last way raises")


def _weighted(losses: Tensor, label_kinds: Tensor, prompt_weight: float) -> Tensor:
    weights = (label_kinds == TARGET).float() + prompt_weight * (label_kinds == PROMPT).float()
    return (losses * weights).sum() / weights.sum()


def _score(token_losses: TokenLosses, batch: Batch, device: torch.device) -> HeldOutScore:
    # With gradients on, although none are wanted: without, a compiled model would be compiled once more.
    _, is_right = token_losses(DeviceBatch.of(batch, device))
    return score(batch, is_right.cpu().numpy())


def _report(step: int, seconds: float, share: float, figures: dict[str, float], batches: Batches) -> str:
    return (
        f"step {step:5d}  {seconds:5.0f} s  {figures['tokens_per_second'] / 1e6:.2f} M tokens/s  "
        f"target {figures['target']:.4f}  right {figures['right']:.2%}  prompt {figures['prompt']:.3f}  "
        f"norm {figures['norm']:.2f}  rate {share:.3f}  new batches {batches.num_fresh}, again {batches.num_repeated}"
    )


def _write_summary(folder: Path, result: TrainResult, batches: Batches, device: torch.device) -> None:
    """What the model card says about the training."""
    summary = dict(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        num_steps=result.num_steps,
        num_tokens=result.num_tokens,
        minutes=round(result.seconds / 60, 1),
        share_of_new_batches=round(batches.num_fresh / max(1, batches.num_fresh + batches.num_repeated), 3),
        target_loss=round(result.target_loss, 4),
        held_out_tokens_right=round(result.held_out.tokens, 4),
        held_out_answers_right=round(result.held_out.runs, 4),
    )
    (folder / "training.json").write_text(json.dumps(summary, indent=2) + "\n")


def _copied(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting there for the steps before it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        torch.set_float32_matmul_precision("high")
    return torch.device(wanted)
