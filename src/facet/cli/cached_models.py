"""`facet pull`, `facet list` and `facet rm`: the models in the Hugging Face cache."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from facet.cli.flags import add_common_flags, add_config_flags, config_from
from facet.config import setting
from facet.errors import ConfigError
from facet.large_imports import large_imports
from facet.model.hub import HubAccess, local_folder
from facet.model.hub_cache import cached_models, remove_model

if TYPE_CHECKING:
    from facet.model.hub_cache import CachedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Where the models are."""

    download_dir: str | None = setting(None, "folder of the models; default: the cache of Hugging Face")


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConfig(CacheConfig):
    """What to download."""

    name: str = setting("", "name of a model on the hub (owner/name), or of one of its GGUF files (owner/name:Q4_0)")
    revision: str | None = setting(None, "branch, tag or commit")
    hf_token: str | None = setting(None, "token for the hub; default: HF_TOKEN, or that of `hf auth login`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfig(CacheConfig):
    """How they are listed."""

    json: bool = setting(False, "print the list as JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveConfig(CacheConfig):
    """What to remove."""

    name: str = setting("", "name of a model in the cache (owner/name)")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    pull = commands.add_parser("pull", help="download a model, to serve it later")
    add_config_flags(pull, PullConfig, positional="name")
    pull.set_defaults(run=run_pull)
    listing = commands.add_parser("list", help="list the models that are downloaded, and whether they fit here")
    add_config_flags(listing, ListConfig, positional=None)
    listing.set_defaults(run=run_list)
    remove = commands.add_parser("rm", help="remove a downloaded model")
    add_config_flags(remove, RemoveConfig, positional="name")
    remove.set_defaults(run=run_remove)
    for parser in (pull, listing, remove):
        add_common_flags(parser)


def run_pull(options: argparse.Namespace) -> int:
    config = config_from(options, PullConfig)
    _check_folder(config)
    _require_name(config.name, "pull")
    access = HubAccess(config.download_dir, config.hf_token)
    folder = local_folder(config.name, revision=config.revision, access=access)
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{config.name}: {num_bytes / 2**30:.2f} GiB in {folder}")
    return 0


def run_list(options: argparse.Namespace) -> int:
    config = config_from(options, ListConfig)
    _check_folder(config)
    models = cached_models(HubAccess(config.download_dir))
    fits = _fits(models)
    if config.json:
        rows = [
            {
                "name": model.name,
                "bytes": model.num_bytes,
                "format": model.format,
                "gguf_files": list(model.gguf_files),
                "fit": fits[model.name],
            }
            for model in models
        ]
        print(json.dumps(rows, indent=2))
        return 0
    if not models:
        print("No models are downloaded. `facet pull google/gemma-4-E4B-it` downloads one.")
        return 0
    Console().print(_table(models, fits))
    return 0


def _fits(models: "list[CachedModel]") -> dict[str, str]:
    if not models:
        return {}
    # Only now: what fits is counted with torch's types, and loading torch takes seconds.
    with large_imports():
        from facet.engine.fitting import describe_fit

    return {model.name: describe_fit(model) for model in models}


def run_remove(options: argparse.Namespace) -> int:
    config = config_from(options, RemoveConfig)
    _check_folder(config)
    _require_name(config.name, "rm")
    num_bytes = remove_model(config.name, HubAccess(config.download_dir))
    print(f"{config.name} is removed: {num_bytes / 2**30:.2f} GiB are free again.")
    return 0


def _check_folder(config: CacheConfig) -> None:
    """Checks the folder. One that does not exist yet is an empty cache."""
    if config.download_dir is not None and Path(config.download_dir).expanduser().is_file():
        raise ConfigError(
            f"--download-dir {config.download_dir} is a file. Name a folder, or leave it out for the cache of Hugging "
            "Face."
        )


def _require_name(name: str, command: str) -> None:
    if not name:
        raise ConfigError(f"No model was named: facet {command} google/gemma-4-E4B-it.")


def _table(models: "list[CachedModel]", fits: dict[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for column in ("name", "GiB", "format", "here"):
        table.add_column(column, justify="right" if column == "GiB" else "left", overflow="fold")
    for model in models:
        format = f"GGUF: {', '.join(model.gguf_files)}" if model.gguf_files else model.format
        table.add_row(model.name, f"{model.num_bytes / 2**30:.2f}", format, fits[model.name])
    return table
