"""Random adapters of tiny models, as PEFT writes them, and the transformers model with an adapter merged into it."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.tiny_models import TinyModel


@dataclass(frozen=True)
class TinyAdapter:
    folder: Path
    pairs: Mapping[str, tuple[Tensor, Tensor]]  # by the modules of the transformers model: down, and up scaled
    expert_changes: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # by the parameters: what is added to all experts

    def merged(self, oracle: nn.Module) -> nn.Module:
        """A copy with weights that the adapter has been added to."""
        changed = copy.deepcopy(oracle)
        with torch.no_grad():
            for name, (down, up) in self.pairs.items():
                module = changed.get_submodule(name)
                assert isinstance(module, nn.Linear)
                module.weight += up @ down
            for name, change in self.expert_changes.items():
                changed.get_parameter(name).add_(change)
        return changed


def adaptable_modules(tiny: TinyModel, *endings: str) -> dict[str, tuple[int, int]]:
    """The products of the decoder, with their numbers of outputs and inputs; those whose names so end, if any are
    given."""
    return {
        name: (module.out_features, module.in_features)
        for name, module in tiny.oracle.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head" and (not endings or name.rpartition(".")[2] in endings)
    }


def expert_parameters(tiny: TinyModel) -> dict[str, tuple[int, int, int]]:
    """The matrices of experts, with their shapes."""
    return {
        name: (len(parameter), parameter.shape[1], parameter.shape[2])
        for name, parameter in tiny.oracle.named_parameters()
        if parameter.dim() == 3 and ".experts." in name
    }


def write_adapter(
    folder: Path,
    modules: Mapping[str, tuple[int, int]],
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    size: float = 0.3,
    prefix: str = "base_model.model.",
    more: Mapping[str, Tensor] | None = None,
    experts: Mapping[str, tuple[int, int, int]] | None = None,
    swaps_experts: bool = False,
    **config: Any,
) -> TinyAdapter:
    """`size`: of what it adds, compared with a product of numbers of size one. `more`: tensors besides. `experts`: the
    parameters of experts with their shapes; `swaps_experts`: as older versions of PEFT write those."""
    generator = torch.Generator().manual_seed(seed)
    pairs, tensors, expert_changes = {}, dict(more or {}), {}
    for name, (num_experts, num_outputs, num_inputs) in (experts or {}).items():
        module, _, parameter = name.rpartition(".")
        wrapper = f"{prefix}{module}{'.base_layer' * (parameter == 'gate_up_proj')}"
        ends = (num_outputs, num_inputs) if swaps_experts else (num_inputs, num_outputs)
        down = torch.randn(num_experts * rank, ends[0], generator=generator) * num_inputs**-0.5
        up = torch.randn(ends[1], rank * num_experts, generator=generator) * size * rank**-0.5 * (rank / alpha)
        tensors[f"{wrapper}.lora_A.weight"], tensors[f"{wrapper}.lora_B.weight"] = down, up
        # PEFT's own formula; in older files what is called an output is an input.
        by_expert = (up.view(ends[1], rank, num_experts) * (alpha / rank), down.view(num_experts, rank, ends[0]))
        expert_changes[name] = torch.einsum(f"ore,eri->{'eio' if swaps_experts else 'eoi'}", *by_expert)
    for name, (num_outputs, num_inputs) in modules.items():
        down = torch.randn(rank, num_inputs, generator=generator) * num_inputs**-0.5
        up = torch.randn(num_outputs, rank, generator=generator) * size * rank**-0.5 * (rank / alpha)
        tensors[f"{prefix}{name}.lora_A.weight"], tensors[f"{prefix}{name}.lora_B.weight"] = down, up
        pairs[name] = (down, up * (alpha / rank))
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return TinyAdapter(folder, pairs, expert_changes)
