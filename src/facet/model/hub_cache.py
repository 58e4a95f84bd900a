"""Lists and removes the models in the Hugging Face cache."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from facet.errors import CheckpointError
from facet.model.gguf.choosing import model_files
from facet.model.hub import AS_USUAL, HubAccess

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo, HFCacheInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """One model, with all its revisions that were downloaded."""

    name: str
    folder: Path  # of the newest revision
    num_bytes: int
    format: str  # how its weights are stored
    gguf_files: tuple[str, ...]  # where it has no config.json
    is_whole: bool  # weights and all; of some models only the config was looked at


def cached_models(access: HubAccess = AS_USUAL) -> list[CachedModel]:
    """The models in the cache, by name."""
    found = [_describe(repo) for repo in _scan(access).repos if repo.repo_type == "model" and repo.revisions]
    return sorted(found, key=lambda model: model.name.lower())


def remove_model(name: str, access: HubAccess = AS_USUAL) -> int:
    """Removes all revisions of a model and returns the bytes that are free again."""
    cache = _scan(access)
    repos = {repo.repo_id: repo for repo in cache.repos if repo.repo_type == "model"}
    if name not in repos:
        known = f"It has {', '.join(sorted(repos))}." if repos else "It is empty."
        raise CheckpointError(f"There is no {name} in the cache. {known}")
    plan = cache.delete_revisions(*(revision.commit_hash for revision in repos[name].revisions))
    plan.execute()
    return plan.expected_freed_size


def _scan(access: HubAccess) -> "HFCacheInfo":
    from huggingface_hub import HFCacheInfo, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(access.cache_dir)
    except CacheNotFound:
        return HFCacheInfo(size_on_disk=0, repos=frozenset(), incomplete_files=frozenset(), warnings=[])
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The cache cannot be read: {error}.") from None


def _describe(repo: "CachedRepoInfo") -> CachedModel:
    newest = max(repo.revisions, key=lambda revision: revision.last_modified)
    names = _names(newest)
    config = _read_config(newest.snapshot_path / "config.json")
    gguf = () if config is not None else tuple(model_files(names))
    return CachedModel(
        name=repo.repo_id,
        folder=newest.snapshot_path,
        num_bytes=repo.size_on_disk,
        format="GGUF" if gguf else _format_of(config or {}),
        gguf_files=gguf,
        is_whole=bool(gguf) or any(name.endswith(".safetensors") for name in names),
    )


def _names(revision: "CachedRevisionInfo") -> Sequence[str]:
    return [file.file_path.relative_to(revision.snapshot_path).as_posix() for file in revision.files]


def _read_config(path: Path) -> dict[str, Any] | None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _format_of(config: dict[str, Any]) -> str:
    """The method by which it is quantized, else its data type."""
    for part in (config, config.get("text_config")):
        if not isinstance(part, dict):
            continue
        quantized = part.get("quantization_config")
        if isinstance(quantized, dict) and quantized.get("quant_method"):
            return str(quantized["quant_method"])
    text = config.get("text_config")
    named = (part.get(key) for part in (config, text) if isinstance(part, dict) for key in ("dtype", "torch_dtype"))
    return next((str(name) for name in named if name), "unknown")
