"""Turns a trained drafter into the checkpoint that ships inside the bundled model's folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from facet.bundled_model import record_bundled_model
from tools.bundled_model.checkpoint import CHECKPOINT_PREFIX
from tools.bundled_model.drafting.model import Drafter
from tools.bundled_model.drafting.trainer import Acceptance
from tools.bundled_model.eight_bits import in_eight_bits
from tools.bundled_model.export import check_size

FOLDER = "assistant"  # inside the model's, where Facet looks for a drafter
_SECTION = "\n\n## Drafter\n\n"  # of the card, the last
_OUTSIDE = ("pre_projection.", "post_projection.")  # of the decoder, whose names have something in front


def drafter_tensors(drafter: Drafter) -> dict[str, Tensor]:
    """In bfloat16, under the names that a drafter of Gemma 4 gives them."""
    return {
        (name if name.startswith(_OUTSIDE) else CHECKPOINT_PREFIX + name): parameter.detach().bfloat16()
        for name, parameter in drafter.named_parameters()
    }


def export_drafter(drafter: Drafter, config: Mapping[str, Any], folder: Path, measured: Acceptance) -> None:
    """Writes it into the folder of its model, all matrices in eight bits, and records that folder again.

    `measured`: with the weights as they are stored, for the model's card.
    """
    tensors = drafter_tensors(drafter)
    matrices = sorted(name.removesuffix(".weight") for name, tensor in tensors.items() if tensor.dim() == 2)
    # Scales and codes come of the trained numbers, not of those that bfloat16 has rounded.
    exact = {name: parameter.detach() for name, parameter in zip(tensors, drafter.parameters(), strict=True)}
    stored, quantization = in_eight_bits(
        tensors | {f"{name}.weight": exact[f"{name}.weight"] for name in matrices}, matrices
    )
    output = folder / FOLDER
    output.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: stored[name].contiguous() for name in sorted(stored)}, output / "model.safetensors", {"format": "pt"}
    )
    (output / "model.safetensors").chmod(0o644)
    text = json.dumps({**config, "quantization_config": quantization}, indent=2)
    (output / "config.json").write_text(text + "\n", encoding="utf-8")
    card = folder / "README.md"
    before, _, _ = card.read_text(encoding="utf-8").partition(_SECTION)
    card.write_text(before.rstrip() + _SECTION + _words(measured), encoding="utf-8")
    record_bundled_model(folder)
    check_size(folder)


def _words(measured: Acceptance) -> str:
    shares = [f"the first {place} at {share:.1%}" for place, share in enumerate(measured.shares[1:], start=2)]
    return (
        f"`assistant` has a drafter for it. In dialogues that neither was trained on, its first draft is right at "
        f"{measured.shares[0]:.1%} of places, {', '.join(shares)}: {measured.tokens_per_step:.2f} tokens a step.\n"
    )


@torch.no_grad()
def round_as_stored(drafter: Drafter) -> None:
    """Changes the weights to those that its checkpoint will hold."""
    for parameter in drafter.parameters():
        if parameter.dim() == 2:
            stored, _ = in_eight_bits({"x.weight": parameter}, ["x"])
            parameter.copy_(stored["x.weight"].float() * stored["x.weight_scale"].float())
        else:
            parameter.copy_(parameter.bfloat16())
