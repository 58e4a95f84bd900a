"""Writes and reads what a training run saves: the weights as a checkpoint holds them, and the state to continue from.

`weights.safetensors` is bfloat16 under checkpoint names, `state.safetensors` everything in float32, the optimizer's
state and the number of steps. Each is written to a new file that then replaces the old one, so a run that is
killed while writing leaves the old one intact.
"""

import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tools.bundled_model.model import Decoder
from tools.bundled_model.optimizer import Optimizer

CHECKPOINT_PREFIX = "model."
DECODER_OF_SEVERAL = "language_model."  # where a checkpoint has a tower, too
_TOWER_NAMES = ("vision_tower.", "embed_vision.")
_STATE_WEIGHTS, _STATE_OPTIMIZER = "weights.", "optimizer."


def checkpoint_tensors(model: Decoder) -> dict[str, Tensor]:
    """The weights in bfloat16 under the names that a Gemma 4 checkpoint gives them."""
    return {
        checkpoint_name(name, sees=model.sees): parameter.detach().to("cpu", torch.bfloat16)
        for name, parameter in model.named_parameters()
    }


def checkpoint_name(name: str, *, sees: bool) -> str:
    """Of a parameter of the decoder, or of its tower."""
    is_nested = sees and not name.startswith(_TOWER_NAMES)
    return CHECKPOINT_PREFIX + (DECODER_OF_SEVERAL if is_nested else "") + name


def save_training(folder: Path, model: Decoder, optimizer: Optimizer, num_steps: int) -> None:
    _replace(folder / "weights.safetensors", checkpoint_tensors(model), num_steps)
    state = {_STATE_WEIGHTS + name: parameter.detach() for name, parameter in model.named_parameters()}
    state |= {_STATE_OPTIMIZER + name: tensor for name, tensor in optimizer.state().items()}
    _replace(
        folder / "state.safetensors", {name: tensor.cpu().contiguous() for name, tensor in state.items()}, num_steps
    )


def resume_training(path: Path, model: Decoder, optimizer: Optimizer) -> int:
    """Loads what `path` has and returns how many steps are done: none if it holds weights alone.

    A model that is to see may go on from the weights of one that reads text only; its tower then begins anew.
    """
    tensors = load_file(path)
    is_state = any(name.startswith(_STATE_WEIGHTS) for name in tensors)
    had_tower = any(name.removeprefix(CHECKPOINT_PREFIX).startswith(_TOWER_NAMES) for name in tensors)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_state:
                parameter.copy_(tensors[_STATE_WEIGHTS + name])
            elif had_tower or not name.startswith(_TOWER_NAMES):
                parameter.copy_(tensors[checkpoint_name(name, sees=had_tower)])
    if not is_state:
        return 0
    optimizer.load(
        {
            name.removeprefix(_STATE_OPTIMIZER): tensor
            for name, tensor in tensors.items()
            if name.startswith(_STATE_OPTIMIZER)
        }
    )
    return saved_steps(path)


def saved_steps(path: Path) -> int:
    """How many steps went into a file; 0 for an exported checkpoint, which does not say."""
    with safe_open(path, framework="pt") as file:
        return int((file.metadata() or {}).get("num_steps", 0))


def _replace(path: Path, tensors: dict[str, Tensor], num_steps: int) -> None:
    new = path.with_suffix(".new")
    save_file(tensors, new, metadata={"format": "pt", "num_steps": str(num_steps)})
    os.replace(new, path)
