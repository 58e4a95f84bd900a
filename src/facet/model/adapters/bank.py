"""The adapters of a model: how much room they have, and their matrices beside the model's weights.

Room is made once, before steps are captured: for so many adapters, of so large a rank, beside so many matrices. Every
loaded adapter is there, so that no request waits for one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from facet.adapter import PlacedAdapter, read_adapter_sources
from facet.config import ModelConfig
from facet.errors import CapacityError, CheckpointError, ConfigError
from facet.kernels.low_rank.matrices import padded_rank
from facet.layers.adapted_weight import AdaptedExperts, AdaptedWeight
from facet.layers.linear import Linear
from facet.layers.weight import DenseWeight
from facet.model.adapters.adapter_file import AdapterFile, find_adapter, read_adapter_file
from facet.model.adapters.matching import LowRankPair, adaptable_targets, ending_of, is_of_experts
from facet.model.gemma import Gemma
from facet.model.hub import access_of
from facet.model.quantized.matching import cut_values
from facet.model.shard import Cut
from facet.model.stored_tensor import StoredTensor
from facet.model.weight_files import WeightFiles
from facet.model.weight_map import TensorTarget
from facet.model_spec import ModelSpec

MOST_ADAPTERS = 256  # whose memory is taken at the start, loaded or not
MOST_RANK = 512
_MANY, _RANK = 8, 16  # for whatever is loaded later


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRoom:
    """How much room adapters get, and which take it from the start."""

    num_adapters: int
    rank: int
    endings: tuple[str, ...]  # of the names of the matrices that may be changed
    files: tuple[AdapterFile, ...] = ()

    def check(self, file: AdapterFile) -> None:
        """Raises if there is no room for an adapter of this kind."""
        name = file.source.name
        if file.rank > self.rank:
            raise CapacityError(
                f"The adapter {name} has rank {file.rank}, but there is room for rank {self.rank}. Start with "
                f"--max-lora-rank {file.rank}."
            )
        others = [ending for ending in file.endings if ending not in self.endings]
        if others:
            raise CapacityError(
                f"The adapter {name} changes {', '.join(others)}, but there is room beside {', '.join(self.endings)} "
                f"only. Start with --lora-target-modules {' '.join((*self.endings, *others))}."
            )


def plan_room(config: ModelConfig, spec: ModelSpec) -> AdapterRoom | None:
    """Reads the adapters that a config names, as far as is needed to know their room. None: there are to be none."""
    sources = read_adapter_sources(config.lora_modules)
    if not sources and not config.enable_lora:
        _refuse_settings(config)
        return None
    access = access_of(config)
    files = tuple(read_adapter_file(source, find_adapter(source, access), spec) for source in sources)
    may_come = config.enable_lora  # others, later
    num_adapters = config.max_loras
    if num_adapters is None:
        num_adapters = len(files) + _MANY * may_come
    num_adapters = max(num_adapters, len(files))  # vLLM keeps the others in the host's memory
    rank = config.max_lora_rank
    if rank is None:
        rank = max((_RANK * may_come, *(file.rank for file in files)))
    for name, number, most in (("--max-loras", num_adapters, MOST_ADAPTERS), ("--max-lora-rank", rank, MOST_RANK)):
        if not 1 <= number <= most:
            raise ConfigError(f"{name} is {number}, but must be from 1 to {most}.")
    known = dict.fromkeys(ending_of(target) for target in adaptable_targets(spec).values())
    later = [ending for ending in known if may_come and ending != "experts"]  # whose room is a thousand times as large
    of_files = (ending for file in files for ending in file.endings)
    endings = config.lora_target_modules or tuple(dict.fromkeys((*later, *of_files)))
    unknown = [ending for ending in endings if ending not in known]
    if unknown:
        raise ConfigError(
            f"--lora-target-modules names {', '.join(unknown)}, which this model has not. It has "
            f"{', '.join(sorted(known))}."
        )
    room = AdapterRoom(num_adapters=num_adapters, rank=rank, endings=endings, files=files)
    for file in files:
        room.check(file)
    return room


def _refuse_settings(config: ModelConfig) -> None:
    for name in ("max_loras", "max_lora_rank", "lora_target_modules"):
        if getattr(config, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is about adapters, but there are none. Add --lora-modules NAME=PATH, or "
                "--enable-lora for those that are loaded later."
            )


def room_bytes(room: AdapterRoom, share: ModelSpec, value_bytes: int) -> int:
    """The bytes of the matrices of all adapters, beside what a rank holds of a model."""
    rank = padded_rank(room.rank)
    num_values = sum(
        rank
        * (len(parts) * parts[0].shape[-1] + sum(target.shape[-2] for target in parts))
        * (parts[0].shape[0] if is_of_experts(parts[0]) else 1)
        for parts in _places(share, room).values()
    )
    return room.num_adapters * num_values * value_bytes


class AdapterBank:
    """Puts adapters beside the weights of a model, each under a number from 1 on."""

    def __init__(self, model: Gemma, room: AdapterRoom, cuts: Mapping[str, Cut]) -> None:
        """Makes room beside every matrix that may be changed. `cuts`: what a rank holds of those that are divided."""
        self.room = room
        self._model = model
        self._cuts = cuts
        self._placed: dict[int, AdapterFile] = {}
        self._effective: set[int] = set()  # numbers of those that add something
        self._weights = _make_room(model, room)
        model.has_adapters = True

    @property
    def placed(self) -> Mapping[int, AdapterFile]:
        """Adapters by their numbers."""
        return self._placed

    @property
    def num_bytes(self) -> int:
        return sum(weight.down.nbytes + weight.up.nbytes for weight in self._weights.values())

    def place_of(self, number: int) -> PlacedAdapter:
        return PlacedAdapter(number, self._placed[number].key)

    def put(self, number: int, file: AdapterFile) -> None:
        """Reads an adapter, in the place of whichever had that number. Where a file turns out to be broken, nothing of
        it stays."""
        self.room.check(file)
        self.remove(number)
        try:
            with WeightFiles() as files:
                for pair in file.pairs:
                    cut = self._cuts.get(pair.target.name)
                    of_inputs = cut is not None and cut.is_of_inputs
                    down, up = _read_pair(files, pair)
                    if bool(down.any()) and bool(up.any()):
                        self._effective.add(number)
                    down = cut_values(down, cut if of_inputs else None)
                    up = cut_values(up, None if of_inputs else cut)
                    self._weights[pair.target.place].put(number, pair.target.part or 0, down, up)
        except BaseException:
            self.remove(number)
            raise
        self._placed[number] = file

    def all_ranks_have(self, key: str | None) -> bool:
        """Whether every rank that shares the model has the adapter of this key. All ask together. None: this one has
        none."""
        group, device = self._model.placement.group, self._model.placement.device
        if group is None:
            return key is not None
        number = -1 if key is None else int(key[:12], 16)
        least, most = group.least(number, device), -group.least(-number, device)
        return least == most != -1

    def has_effect(self, number: int) -> bool:
        """Whether any of an adapter's pairs adds something: both of its matrices have numbers."""
        return number in self._effective

    def remove(self, number: int) -> None:
        self._placed.pop(number, None)
        self._effective.discard(number)
        for weight in self._weights.values():
            weight.remove(number)

    def line(self) -> str:
        """What adapters take, for people."""
        room = self.room
        return (
            f"Adapters: room for {room.num_adapters} up to rank {room.rank} beside {', '.join(room.endings)} "
            f"({self.num_bytes / 2**20:,.1f} MiB)."
        )


def _make_room(model: Gemma, room: AdapterRoom) -> dict[str, AdaptedWeight]:
    """By the places of `Linear`s."""
    placement = model.placement
    weights: dict[str, AdaptedWeight] = {}
    for place, parts in _places(model.share, room).items():
        linear = model.get_submodule(place)
        assert isinstance(linear, Linear), "matrices are kept by products"
        base, rows, size = linear.weight, model.row_adapters, {"num_adapters": room.num_adapters, "rank": room.rank}
        if is_of_experts(parts[0]):
            if not isinstance(base, DenseWeight) or placement.group is not None:
                raise ConfigError(
                    "Adapters of experts need experts that are neither quantized nor divided among GPUs. Leave them "
                    "out, or merge them into the weights."
                )
            linear.weight = weights[place] = AdaptedExperts(base, rows, placement.arithmetic, **size)
            continue
        linear.weight = weights[place] = AdaptedWeight(
            base,
            rows,
            placement.arithmetic,
            **size,
            num_inputs=parts[0].shape[1],
            parts=[target.shape[0] for target in parts],
            dtype=placement.dtype,
            device=placement.device,
        )
    return weights


def _places(share: ModelSpec, room: AdapterRoom) -> dict[str, list[TensorTarget]]:
    """The `Linear`s beside which there is room, by their places, each with the matrices that are packed into it."""
    places: dict[str, list[TensorTarget]] = {}
    for target in adaptable_targets(share).values():
        places.setdefault(target.place, []).append(target)
    return {
        place: sorted(parts, key=lambda target: target.part or 0)
        for place, parts in places.items()
        if any(ending_of(target) in room.endings for target in parts)
    }


def _read_pair(files: WeightFiles, pair: LowRankPair) -> tuple[Tensor, Tensor]:
    """down [rank, inputs] and up [outputs, rank], scaled; of experts, both for each of them."""
    down, up = _read(files, pair.down), _read(files, pair.up, pair.scale)
    if not is_of_experts(pair.target):
        return down, up
    num_experts = pair.target.shape[0]
    down = down.view(num_experts, -1, down.shape[-1])
    up = up.view(len(up), -1, num_experts).permute(2, 0, 1)
    return (up.transpose(1, 2), down.transpose(1, 2)) if pair.is_swapped else (down, up)


def _read(files: WeightFiles, tensor: StoredTensor, scale: float = 1.0) -> Tensor:
    values = files.read(tensor).float() * scale
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(f"{tensor.file}: {tensor.name} holds numbers that are not finite.")
    return values
