"""Matches the tensors of an adapter with the matrices of a model, by name and shape."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from facet.model.adapters.adapter_config import AdapterConfig
from facet.model.checkpoint import DECODER_PREFIXES, STORED_DTYPES, is_other_part
from facet.model.stored_tensor import StoredTensor
from facet.model.weight_files import WeightFiles
from facet.model.weight_map import PER_LAYER_TABLE, TensorTarget, is_unused, tensor_targets
from facet.model_spec import ModelSpec

_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.default)?\.weight")
# PEFT wraps the experts of a layer once for each of their two matrices, and names no matrix: shapes tell which it is.
_EXPERTS = re.compile(r"(layers\.\d+\.experts)(?:\.base_layer)*")
_OF_EXPERTS = ("gate_up_proj", "down_proj")
# The last is of models that were loaded without a head.
_PREFIXES = (*DECODER_PREFIXES, "language_model.")
# Whose rows are looked up, or which are multiplied where rows are logits.
_NOT_ADAPTED = ("embedding", "head", PER_LAYER_TABLE)

_Halves = dict[str, StoredTensor]  # by A and B


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


@dataclass(slots=True)
class Match:
    """What became of an adapter's tensors."""

    pairs: dict[str, LowRankPair] = field(default_factory=dict)  # by the names of the model's matrices, in their order
    num_unused: int = 0  # beside matrices that the model does not use
    unexpected: list[str] = field(default_factory=list)  # names of those that have no place
    misfits: list[str] = field(default_factory=list)  # modules whose tensors are not what they should be, and why


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


def match_adapter(stored: Mapping[str, StoredTensor], config: AdapterConfig, spec: ModelSpec) -> Match:
    targets, found = adaptable_targets(spec), Match()
    modules: dict[str, _Halves] = {}
    for name, tensor in stored.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            found.unexpected.append(name)
        else:
            modules.setdefault(match[1], {})[match[2]] = tensor
    for called, halves in modules.items():
        inside = called.removeprefix(next((prefix for prefix in _PREFIXES if called.startswith(prefix)), ""))
        candidates = _candidates(inside, targets)
        if candidates:
            _add_pair(found, called, halves, candidates, config)
        elif _is_beside_nothing(inside, spec) or (is_other_part(called) and _is_untrained(halves)):
            found.num_unused += len(halves)
        else:
            found.unexpected += [tensor.name for tensor in halves.values()]
    in_order = (target.name for target in targets.values())
    found.pairs = {name: found.pairs[name] for name in in_order if name in found.pairs}
    return found


def _candidates(module: str, targets: Mapping[str, TensorTarget]) -> list[TensorTarget]:
    """The matrices that a module may mean."""
    experts = _EXPERTS.fullmatch(module)
    if experts is not None:
        return [targets[name] for part in _OF_EXPERTS if (name := f"{experts[1]}.{part}") in targets]
    return [targets[module]] if module in targets and not is_of_experts(targets[module]) else []


def _add_pair(
    found: Match, called: str, halves: _Halves, candidates: list[TensorTarget], config: AdapterConfig
) -> None:
    """`called`: the name that the adapter has for the module."""
    reason: str | None = None
    pair: LowRankPair | None = None
    missing = [half for half in ("A", "B") if half not in halves]
    wrong_types = {tensor.dtype for tensor in halves.values()} - set(STORED_DTYPES)
    if missing:
        reason = f"without lora_{missing[0]}"
    elif any(len(tensor.shape) != 2 for tensor in halves.values()):
        reason = f"{_shapes(halves)} are no matrices"
    elif wrong_types:
        reason = f"{', '.join(wrong_types)}, not one of {', '.join(STORED_DTYPES)}"
    elif len(candidates) > 1:
        pairs = (_expert_pair(called, halves, target, config) for target in candidates)
        pair = next((pair for pair in pairs if pair is not None), None)
        reason = f"{_shapes(halves)} fit neither matrix of {candidates[0].shape[0]} experts"
    else:
        (target,), rank = candidates, config.rank_of(called)
        num_outputs, num_inputs = target.shape
        if halves["A"].shape == (rank, num_inputs) and halves["B"].shape == (num_outputs, rank):
            scale = config.scale_of(called, rank)
            pair = LowRankPair(target=target, down=halves["A"], up=halves["B"], scale=scale)
        reason = f"{_shapes(halves)} instead of {[rank, num_inputs]} and {[num_outputs, rank]}"
    if pair is None or pair.target.name in found.pairs:
        found.misfits.append(f"{called} ({reason if pair is None else 'twice'})")
    else:
        found.pairs[pair.target.name] = pair


def _expert_pair(called: str, halves: _Halves, target: TensorTarget, config: AdapterConfig) -> LowRankPair | None:
    """None: they are beside the other matrix of experts."""
    num_experts, num_outputs, num_inputs = target.shape
    down, up = halves["A"], halves["B"]
    rank, rest = divmod(down.shape[0], num_experts)
    for is_swapped, (last, first) in enumerate(((num_inputs, num_outputs), (num_outputs, num_inputs))):
        if rest == 0 < rank and down.shape[1:] == (last,) and up.shape == (first, down.shape[0]):
            name = f"{called.partition('.base_layer')[0]}.{target.name.rpartition('.')[2]}"
            scale = config.scale_of(name, rank)
            return LowRankPair(target=target, down=down, up=up, scale=scale, is_swapped=bool(is_swapped))
    return None


def _shapes(halves: _Halves) -> str:
    return f"{list(halves['A'].shape)} and {list(halves['B'].shape)}"


def _is_beside_nothing(module: str, spec: ModelSpec) -> bool:
    """Whether a module is one that checkpoints have and nobody uses: keys of a layer that reads another's."""
    return module.startswith("layers.") and is_unused(spec, f"{module}.weight")


def _is_untrained(halves: _Halves) -> bool:
    """Whether a pair is as it was before training, as those of towers are where training had text alone."""
    if len(halves) < 2:
        return False
    with WeightFiles() as files:
        return not bool(files.read(halves["B"]).any())
