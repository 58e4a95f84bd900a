"""The settings of a training run. Kept apart from the trainer, so that worker processes need no torch."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

Attention = Literal["auto", "flash", "flex", "sdpa"]
MatrixOptimizer = Literal["muon", "adamw"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Every field is a flag; the words beside its type are the flag's help."""

    output: Annotated[Path, "folder for what the run writes"] = Path("build/bundled")
    minutes: Annotated[float | None, "stop after this long, counted from the first step"] = None
    steps: Annotated[int, "stop after this many steps"] = 4500
    seed: Annotated[int, "of the data and of the first weights"] = 1
    resume: Annotated[Path | None, "go on from a state.safetensors, or anew from a weights.safetensors"] = None
    config: Annotated[Path | None, "a config.json to train in place of the bundled model's"] = None
    tokenizer: Annotated[Path | None, "a tokenizer.json; else the bundled model's, or a new one"] = None

    pictures: Annotated[float, "share of examples about pictures; with any, the model has a tower"] = 0.0
    rows: Annotated[int, "rows of a batch"] = 16
    row_length: Annotated[int, "tokens of a row; longer examples are left out"] = 8192
    prompt_weight: Annotated[float, "what a prompt's token counts in the loss; a target's counts 1"] = 0.15
    optimizer: Annotated[MatrixOptimizer, "what steps the matrices inside layers; adamw steps the rest"] = "muon"
    muon_rate: Annotated[float, "largest learning rate of what muon steps"] = 0.02
    muon_decay: Annotated[float, "weight decay of what muon steps, times the learning rate"] = 0.01
    adamw_rate: Annotated[float, "largest learning rate of what adamw steps"] = 0.003
    warmup_steps: Annotated[int, "steps over which learning rates rise"] = 60
    decay_from: Annotated[float, "share of the run after which learning rates fall to nothing"] = 0.5
    clip: Annotated[float, "largest norm of all gradients together"] = 1.0

    device: Annotated[str, "cuda, cpu, or auto: cuda where there is one"] = "auto"
    attention: Annotated[Attention, "auto is flash on a GPU, flex where that fails, and sdpa where both do"] = "auto"
    compile: Annotated[bool, "do not compile the model"] = True
    workers: Annotated[int | None, "processes that make data; 0: this one; else one per core, less 1"] = None
    most_uses: Annotated[int, "how often a batch may be used while workers fall behind"] = 4
    report_seconds: Annotated[float, "between two lines of figures"] = 10.0
    save_seconds: Annotated[float, "between two savings, each with figures from held-out data"] = 60.0


def add_flags(parser: ArgumentParser) -> None:
    defaults = TrainSettings()
    for name, hint in get_type_hints(TrainSettings, include_extras=True).items():
        kind, words = get_args(hint)
        flag, default = name.replace("_", "-"), getattr(defaults, name)
        if kind is bool:
            parser.add_argument(f"--no-{flag}", dest=name, action="store_false", help=words)
        else:
            parser.add_argument(f"--{flag}", default=default, help=f"{words} ({default})", **_parsing(kind))


def settings_of(arguments: Namespace) -> TrainSettings:
    return TrainSettings(**vars(arguments))


def _parsing(kind: Any) -> dict[str, Any]:
    """How argparse reads a value of this type: one of some words, or a type that may be optional."""
    options = get_args(kind)
    if options and all(isinstance(option, str) for option in options):
        return {"choices": options}
    return {"type": options[0] if options else kind}
