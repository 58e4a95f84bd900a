"""Reads what an adapter's files say before their tensors are read: every tensor has a place, or is refused by name. An
adapter of which nothing fits would otherwise load and do nothing.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from facet.adapter import AdapterSource
from facet.errors import CheckpointError
from facet.model.adapters.adapter_config import CONFIG_FILE, read_adapter_config
from facet.model.adapters.matching import LowRankPair, Match, match_adapter
from facet.model.checkpoint import is_other_part
from facet.model.hub import HubAccess, local_folder
from facet.model.weight_files import read_headers, some_of
from facet.model_spec import ModelSpec

WEIGHTS_FILE = "adapter_model.safetensors"


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
    match = match_adapter(read_headers((weights,)), config, spec)
    _refuse_misfits(source, match)
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update((folder / CONFIG_FILE).read_bytes())
    return AdapterFile(
        source=source, key=digest.hexdigest(), pairs=tuple(match.pairs.values()), num_unused=match.num_unused
    )


def _refuse_misfits(source: AdapterSource, match: Match) -> None:
    if match.unexpected or match.misfits:
        findings = (("unexpected", match.unexpected), ("of other matrices", match.misfits))
        raise CheckpointError(
            f"{_called(source)} does not fit this model: "
            + "; ".join(f"{len(names)} {what}: {some_of(names)}" for what, names in findings if names)
            + f". {_advice(match.unexpected)}Nothing of it was loaded."
        )
    if not match.pairs:
        raise CheckpointError(
            f"{_called(source)} changes nothing: all of its {match.num_unused} tensors are beside matrices that this "
            "model does not use."
        )


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


def _called(source: AdapterSource) -> str:
    return f"The adapter {source.name} ({source.path})"
