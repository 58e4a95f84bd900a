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
from facet.model.weight_files import WeightFiles, read_headers, some_of
from facet.model.weight_map import PER_LAYER_TABLE, TensorTarget, is_unused, tensor_targets
from facet.model_spec import ModelSpec

WEIGHTS_FILE = "adapter_model.safetensors"
# PEFT wraps the experts of a layer once for each of their two matrices, and names no matrix: shapes tell which it is.
_EXPERTS = re.compile(r"(layers\.\d+\.experts)(?:\.base_layer)*")
_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight")
# Whose rows are looked up, or multiplied with rows that have left the pass.
_NOT_ADAPTED = ("embedding", "head", PER_LAYER_TABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankPair:
    """The two matrices beside one of the model's, or beside those of all experts of a layer."""

    target: TensorTarget
    down: StoredTensor  # [rank, inputs]; of experts [experts * rank, inputs]
    up: StoredTensor  # [outputs, rank]; of experts [outputs, rank * experts]
    scale: float
    is_swapped: bool = False  # the two have each other's place, as in files of PEFT up to some version

    @property
    def rank(self) -> int:
        return self.down.shape[0] // (self.target.shape[0] if is_of_experts(self.target) else 1)

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
        unused = f"; {self.num_unused} tensors are beside matrices that are not used" * bool(self.num_unused)
        return f"rank {self.rank} beside {', '.join(self.endings)} in {num_layers} layers{unused}"


def find_adapter(source: AdapterSource, access: HubAccess) -> Path:
    """The folder of an adapter, downloaded first if its path is a name on the hub."""
    return local_folder(source.path, patterns=(CONFIG_FILE, WEIGHTS_FILE), access=access, needs_model=False)


def read_adapter_file(source: AdapterSource, folder: Path, spec: ModelSpec) -> AdapterFile:
    """Reads the config and the headers of an adapter, and checks them against a model."""
    weights = folder / WEIGHTS_FILE
    if not (folder / CONFIG_FILE).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG_FILE}"))
        hint = f" There is one in {some_of(inside, 3)}: name that folder." if inside else ""
        raise CheckpointError(f"{_called(source)} has no {CONFIG_FILE}.{hint} An adapter is a folder as PEFT saves it.")
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
        if len(target.shape) >= 2 and not target.place.startswith(_NOT_ADAPTED)
    }


def is_of_experts(target: TensorTarget) -> bool:
    return len(target.shape) == 3


def ending_of(target: TensorTarget) -> str:
    """The last part of a matrix' name that is no number, such as q_proj; experts are adapted together."""
    if is_of_experts(target):
        return "experts"
    return next(part for part in reversed(target.name.removesuffix(".weight").split(".")) if not part.isdecimal())


def _match(
    source: AdapterSource, config: AdapterConfig, stored: Mapping[str, StoredTensor], spec: ModelSpec
) -> tuple[tuple[LowRankPair, ...], int]:
    targets = adaptable_targets(spec)
    halves: dict[str, dict[str, StoredTensor]] = {}
    beside_others: dict[str, dict[str, StoredTensor]] = {}  # of towers, by names as the adapter has them
    modules: dict[str, str] = {}  # names as the adapter has them, by names inside the decoder
    unused, unexpected, misfits = 0, list[str](), list[str]()
    for name, tensor in stored.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            unexpected.append(name)
            continue
        module = _inside(match[1])
        if is_other_part(match[1]):
            beside_others.setdefault(match[1], {})[match[2]] = tensor
        elif (module in targets and not is_of_experts(targets[module])) or (
            (experts := _EXPERTS.fullmatch(module)) and f"{experts[1]}.gate_up_proj" in targets
        ):
            halves.setdefault(module, {})[match[2]] = tensor
            modules[module] = match[1]
        elif module.startswith("layers.") and is_unused(spec, f"{module}.weight"):  # a tied head is used
            unused += 1
        else:
            unexpected.append(name)
    for found in beside_others.values():
        if len(found) == 2 and _is_zero(found["B"]):  # as it was before training, which had no media
            unused += 2
        else:
            unexpected += [tensor.name for tensor in found.values()]
    pairs: dict[str, LowRankPair] = {}
    for module, found in halves.items():
        missing = [half for half in ("A", "B") if half not in found]
        pair = None if missing else _pair(modules[module], module, found, config, targets)
        if isinstance(pair, LowRankPair) and pair.target.name not in pairs:
            pairs[pair.target.name] = pair
        else:
            misfits.append(f"{modules[module]} ({f'without lora_{missing[0]}' if missing else pair or 'twice'})")
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
    return tuple(pairs[target.name] for target in targets.values() if target.name in pairs), unused


def _pair(
    called: str,
    module: str,
    found: Mapping[str, StoredTensor],
    config: AdapterConfig,
    targets: Mapping[str, TensorTarget],
) -> LowRankPair | str:
    """The pair of a module, or what is wrong with it. `called`: the name that the adapter has for it."""
    for half, tensor in found.items():
        if tensor.dtype not in STORED_DTYPES:
            return f"lora_{half} is {tensor.dtype}, not one of {', '.join(STORED_DTYPES)}"
    down, up = found["A"], found["B"]
    experts = _EXPERTS.fullmatch(module)
    if experts is None:
        target, rank = targets[module], config.rank_of(called)
        num_outputs, num_inputs = target.shape
        if down.shape != (rank, num_inputs) or up.shape != (num_outputs, rank):
            expected = f"{[rank, num_inputs]} and {[num_outputs, rank]}"
            return f"{list(down.shape)} and {list(up.shape)} instead of {expected}"
        return LowRankPair(target=target, down=down, up=up, scale=config.scale_of(called, rank))
    for name in ("gate_up_proj", "down_proj"):
        target = targets[f"{experts[1]}.{name}"]
        num_experts, num_outputs, num_inputs = target.shape
        rank, rest = divmod(down.shape[0], num_experts)
        for is_swapped, ends in enumerate(((num_inputs, num_outputs), (num_outputs, num_inputs))):
            if rest == 0 < rank and down.shape[1:] == ends[:1] and up.shape == (ends[1], down.shape[0]):
                scale = config.scale_of(f"{called.partition('.base_layer')[0]}.{name}", rank)
                return LowRankPair(target=target, down=down, up=up, scale=scale, is_swapped=bool(is_swapped))
    return f"{list(down.shape)} and {list(up.shape)} fit neither matrix of {num_experts} experts"


def _advice(unexpected: Iterable[str]) -> str:
    """What to do about tensors that have no place."""
    joined = " ".join(unexpected)
    if "lora_embedding" in joined or "embed_tokens" in joined or "lm_head" in joined:
        return (
            "Adapters of the embedding and the head are not supported: merge it into the weights, or save it with "
            "save_embedding_layers=False if these were not trained. "
        )
    if any(is_other_part(name) for name in re.findall(r"base_model\.model\.(\S+)", joined)):
        return "Adapters of the towers for media are not supported: train the language model's layers alone. "
    return "Was it trained for another model? "


def _inside(module: str) -> str:
    """A module's name inside the decoder, where it is there at all."""
    prefixes = (*DECODER_PREFIXES, "language_model.")  # the last is of models that were loaded without a head
    return module.removeprefix(next((prefix for prefix in prefixes if module.startswith(prefix)), ""))


def _is_zero(tensor: StoredTensor) -> bool:
    with WeightFiles() as files:
        return not bool(files.read(tensor).any())


def _called(source: AdapterSource) -> str:
    return f"The adapter {source.name} ({source.path})"
