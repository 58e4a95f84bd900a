"""Matches the tensors of an adapter with the matrices of a model, by name and shape: every tensor has a place, or is
refused by name. An adapter of which nothing fits would otherwise load and do nothing.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from facet.adapter import AdapterSource
from facet.errors import CheckpointError
from facet.model.adapters.adapter_config import CONFIG_FILE, AdapterConfig, read_adapter_config
from facet.model.checkpoint import DECODER_PREFIXES, STORED_DTYPES, is_other_part
from facet.model.hub import HubAccess, local_folder
from facet.model.stored_tensor import StoredTensor
from facet.model.weight_files import read_headers, some_of
from facet.model.weight_map import PER_LAYER_TABLE, TensorTarget, is_unused, tensor_targets
from facet.model_spec import ModelSpec

WEIGHTS_FILE = "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight")
# Whose rows are looked up, or multiplied with rows that have left the pass.
_NOT_ADAPTED = ("embedding", "head", PER_LAYER_TABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankPair:
    """The two matrices beside one of the model's."""

    target: TensorTarget
    down: StoredTensor  # [rank, inputs]
    up: StoredTensor  # [outputs, rank]
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def ending(self) -> str:
        return ending_of(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """An adapter that fits a model, with all that is known before its tensors are read."""

    source: AdapterSource
    key: str  # of its bytes
    pairs: tuple[LowRankPair, ...]
    num_unused: int  # tensors beside matrices that the model does not use

    @property
    def rank(self) -> int:
        return max(pair.rank for pair in self.pairs)

    @property
    def endings(self) -> tuple[str, ...]:
        """The last parts of the names of the matrices it changes, in the order of a layer."""
        return tuple(dict.fromkeys(pair.ending for pair in self.pairs))

    @property
    def line(self) -> str:
        """What it changes, for people."""
        names = (pair.target.name.split(".") for pair in self.pairs)
        num_layers = len({name[1] for name in names if name[0] == "layers"})
        unused = f"; {self.num_unused} tensors are beside matrices that the model does not use" * bool(self.num_unused)
        return f"rank {self.rank} beside {', '.join(self.endings)} in {num_layers} layers{unused}"


def find_adapter(source: AdapterSource, access: HubAccess) -> Path:
    """The folder of an adapter, downloaded first if its path is a name on the hub."""
    return local_folder(source.path, patterns=(CONFIG_FILE, WEIGHTS_FILE), access=access, needs_model=False)


def read_adapter_file(source: AdapterSource, folder: Path, spec: ModelSpec) -> AdapterFile:
    """Reads the config and the headers of an adapter, and checks them against a model."""
    weights = folder / WEIGHTS_FILE
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(f"{_called(source)} has no {CONFIG_FILE}. An adapter is a folder as PEFT saves it.")
    config = read_adapter_config(folder)
    if not weights.is_file():
        pickled = " Its .bin file is a program, which is not run: save it with safe_serialization=True." * any(
            folder.glob("adapter_model.bin")
        )
        raise CheckpointError(f"{_called(source)} has no {WEIGHTS_FILE}.{pickled}")
    pairs, num_unused = _match(source, config, read_headers((weights,)), spec)
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update((folder / CONFIG_FILE).read_bytes())
    return AdapterFile(source=source, key=digest.hexdigest(), pairs=pairs, num_unused=num_unused)


def adaptable_targets(spec: ModelSpec) -> dict[str, TensorTarget]:
    """The matrices that adapters may change, by their names in checkpoints, without `.weight`."""
    return {
        target.name.removesuffix(".weight"): target
        for target in tensor_targets(spec)
        if len(target.shape) == 2 and not target.place.startswith(_NOT_ADAPTED)
    }


def ending_of(target: TensorTarget) -> str:
    """The last part of a matrix' name, such as q_proj."""
    return target.name.removesuffix(".weight").rpartition(".")[2]


def _match(
    source: AdapterSource, config: AdapterConfig, stored: Mapping[str, StoredTensor], spec: ModelSpec
) -> tuple[tuple[LowRankPair, ...], int]:
    targets = adaptable_targets(spec)
    halves: dict[str, dict[str, StoredTensor]] = {}
    modules: dict[str, str] = {}  # names as the adapter has them, by names inside the decoder
    unused, unexpected, misfits = 0, list[str](), list[str]()
    for name, tensor in stored.items():
        match = _TENSOR.fullmatch(name)
        module = _inside(match[1]) if match else None
        if match is None or module is None:
            unexpected.append(name)
        elif module in targets:
            halves.setdefault(module, {})[match[2]] = tensor
            modules[module] = match[1]
        elif is_unused(spec, f"{module}.weight"):
            unused += 1
        else:
            unexpected.append(name)
    pairs = []
    for module, target in targets.items():
        found = halves.get(module, {})
        if not found:
            continue
        misfit = _misfit(found, target, config.rank_of(modules[module]))
        if misfit is None:
            scale = config.scale_of(modules[module], found["A"].shape[0])
            pairs.append(LowRankPair(target=target, down=found["A"], up=found["B"], scale=scale))
        else:
            misfits.append(f"{modules[module]} ({misfit})")
    if unexpected or misfits:
        raise CheckpointError(
            f"{_called(source)} does not fit this model: "
            + "; ".join(
                f"{len(names)} {what}: {some_of(names)}"
                for what, names in (("unexpected", unexpected), ("of other matrices", misfits))
                if names
            )
            + f". {_advice(unexpected)}Nothing of it was loaded."
        )
    if not pairs:
        raise CheckpointError(f"{_called(source)} changes nothing that this model computes ({len(stored)} tensors).")
    return tuple(pairs), unused


def _misfit(found: Mapping[str, StoredTensor], target: TensorTarget, rank: int) -> str | None:
    for half in ("A", "B"):
        if half not in found:
            return f"without lora_{half}"
        if found[half].dtype not in STORED_DTYPES:
            return f"lora_{half} is {found[half].dtype}, not one of {', '.join(STORED_DTYPES)}"
    num_outputs, num_inputs = target.shape
    down, up = found["A"].shape, found["B"].shape
    if down != (rank, num_inputs) or up != (num_outputs, rank):
        return f"{list(down)} and {list(up)} instead of {[rank, num_inputs]} and {[num_outputs, rank]}"
    return None


def _advice(unexpected: Iterable[str]) -> str:
    """What to do about tensors that have no place."""
    joined = " ".join(unexpected)
    if ".experts" in joined:
        return "Adapters of experts are not supported: merge it into the weights. "
    if "lora_embedding" in joined or "embed_tokens" in joined or "lm_head" in joined:
        return "Adapters of the embedding and the head are not supported: merge it into the weights. "
    if any(is_other_part(name) for name in re.findall(r"base_model\.model\.(\S+)", joined)):
        return "Adapters of the towers for media are not supported: train the language model's layers alone. "
    return "Was it trained for another model? "


def _inside(module: str) -> str | None:
    """A module's name inside the decoder; None: it is outside."""
    prefix = next((prefix for prefix in DECODER_PREFIXES if module.startswith(prefix)), None)
    return None if prefix is None else module.removeprefix(prefix)


def _called(source: AdapterSource) -> str:
    return f"The adapter {source.name} ({source.path})"
