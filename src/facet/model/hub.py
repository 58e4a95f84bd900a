"""Finds the folder of a model: a local path, what a GGUF file unfolds to, or a download from the Hugging Face hub."""

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from facet.config import ModelConfig
from facet.errors import CheckpointError, ConfigError
from facet.model.config_fields import PROCESSOR_FILES, shown
from facet.model.gguf.choosing import choose_file, model_files, tower_files

CONFIG_ONLY = ("config.json", "generation_config.json", "hf_quant_config.json")
WHOLE_MODEL = (
    *(*CONFIG_ONLY, *PROCESSOR_FILES),
    *("*.safetensors", "model.safetensors.index.json", "tokenizer*", "*.jinja", "special_tokens*"),
)
_FILE = re.compile(r"[A-Za-z0-9._/-]{1,200}")  # of a GGUF file in a repository, or a quantization
_HUB_NAME = re.compile(r"[A-Za-z0-9._-]{1,96}/[A-Za-z0-9._-]{1,96}")  # the hub itself is stricter yet

_NO_FILE = "-"  # a pattern that matches none: the folder is asked for as it is

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Where downloads are kept, and as whom the hub is asked; None: as Hugging Face's own programs do."""

    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)


AS_USUAL = HubAccess()

# A disk that takes nothing more, or nothing from this user.
_DISK_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT})


def folder_of(config: ModelConfig, *, config_only: bool = False) -> Path:
    """The folder of the model that a config names, with its weights unless they are not wanted."""
    if not config.model:
        raise ConfigError("No model was named. Give a folder or a name on the hub (owner/name).")
    patterns = CONFIG_ONLY if config_only or config.load_format == "dummy" else WHOLE_MODEL
    towers = None if config.language_model_only else config.mmproj
    return local_folder(
        config.model, revision=config.revision, patterns=patterns, access=access_of(config), towers=towers
    )


def access_of(config: ModelConfig) -> HubAccess:
    return HubAccess(config.download_dir, config.hf_token)


def local_folder(
    model: str,
    *,
    revision: str | None = None,
    patterns: tuple[str, ...] = WHOLE_MODEL,
    access: HubAccess = AS_USUAL,
    needs_model: bool = True,
    towers: str | None = "auto",
) -> Path:
    """The folder of `model`, downloaded first if it is not a path. Only files matching `patterns` are fetched.

    A GGUF file becomes a folder; so does one of a folder or of a repository that has no config.json, where it is the
    only one, or the one named behind a colon: owner/name:file.gguf, or owner/name:Q4_0. Where only a tokenizer is
    looked for, there need not be a model. `towers`: the GGUF file that holds those of a GGUF file; auto: one beside it;
    None: it is left without.
    """
    # os.path and not Path: these say no, where Path raises, to a user or a name that cannot exist.
    path = os.path.expanduser(model)
    if os.path.isdir(path):
        return _whole_or_unfolded(Path(path), towers) if needs_model else Path(path)
    if os.path.isfile(path) and path.endswith(".gguf"):
        return _unfolded(Path(path), towers, _beside(Path(path)))
    if os.path.isfile(path):
        raise CheckpointError(f"{model} is a file; give the folder that holds config.json, or a .gguf file.")
    name, colon, file = model.partition(":")
    is_name = _HUB_NAME.fullmatch(name) and not model.startswith(("./", "../"))
    if not is_name or (colon and not _FILE.fullmatch(file)):
        raise _not_a_model(model)
    if colon:
        return _download_file(name, revision, file, access, towers)
    folder = _download(name, revision, patterns, access)
    is_whole = not needs_model or (folder / "config.json").exists()
    if is_whole:
        _refuse_towers(model, towers)
        return folder
    return _download_file(name, revision, None, access, towers)


def _whole_or_unfolded(folder: Path, towers: str | None) -> Path:
    """A config.json beside a GGUF file alone is not what the file says: norms are stored in another way."""
    names = os.listdir(folder)
    found = model_files(names)
    if not found or any(name.endswith(".safetensors") for name in names):
        _refuse_towers(str(folder), towers)
        return folder
    chosen = folder / choose_file(found, None, str(folder))
    return _unfolded(chosen, towers, _beside(chosen), within=folder)


def _refuse_towers(model: str, towers: str | None) -> None:
    if towers not in (None, "auto"):
        raise ConfigError(f"--mmproj names {shown(towers)}, but {model} is no GGUF file: its towers are its own.")


def _beside(path: Path) -> list[Path]:
    """The files of towers in the same folder."""
    return [path.parent / name for name in tower_files(os.listdir(path.parent))]


def _unfolded(path: Path, towers: str | None, beside: Sequence[Path], within: Path | None = None) -> Path:
    """The folder that a GGUF file becomes; `within` itself where that is one already."""
    # Imported here: other models need neither numpy nor a reader of such files.
    from facet.model.gguf import folder

    if within is not None and folder.is_unfolded(within):
        return within
    if towers is None or towers == "auto":
        return folder.unfold(path, beside=beside if towers == "auto" else ())
    named = os.path.expanduser(towers)
    if not os.path.isfile(named):
        raise ConfigError(f"--mmproj names {shown(towers)}, which is no file.")
    return folder.unfold(path, Path(named))


def _download_file(model: str, revision: str | None, wanted: str | None, access: HubAccess, towers: str | None) -> Path:
    """The folder of the GGUF file that was asked for, all its parts included, with the towers of its repository."""
    names = _asked(model, revision, lambda: _list_files(model, revision, access))
    models = model_files(names)
    if not models:
        raise CheckpointError(f"{model} on the hub has neither a config.json nor a GGUF file: it holds no model.")
    chosen = choose_file(models, wanted, f"{model} on the hub")
    parts = re.sub(r"-00001-of-(\d{5})\.gguf$", r"-*-of-\1.gguf", chosen)
    in_repository = _towers_to_download(names, towers, f"{model} on the hub")
    folder = _download(model, revision, (parts, *in_repository), access)
    if in_repository and towers != "auto":
        towers = str(folder / in_repository[0])
    return _unfolded(folder / chosen, towers, [folder / name for name in in_repository])


def _towers_to_download(names: Sequence[str], towers: str | None, where: str) -> list[str]:
    """The file of towers to download from a repository, or none."""
    found = tower_files(names)
    if towers is None or towers == "auto":
        return [] if towers is None else found[:1]
    return [] if os.path.isfile(os.path.expanduser(towers)) else [choose_file(found, towers, where)]


def _list_files(model: str, revision: str | None, access: HubAccess) -> list[str]:
    from huggingface_hub import HfApi

    def cached() -> list[str]:
        folder = _snapshot(model, revision, (_NO_FILE,), access, local_files_only=True)
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]

    return _or_cached(lambda: HfApi(token=access.token).list_repo_files(model, revision=revision), cached)


def _not_a_model(model: str) -> CheckpointError:
    return CheckpointError(
        f"{shown(model)} is neither a folder nor the name of a model on the hub (owner/name, as in "
        "google/gemma-4-E4B-it; owner/name:Q4_0 for one of its GGUF files)."
    )


def _download(model: str, revision: str | None, patterns: tuple[str, ...], access: HubAccess) -> Path:
    def snapshot(*, local_files_only: bool) -> Path:
        return _snapshot(model, revision, patterns, access, local_files_only=local_files_only)

    return _asked(
        model,
        revision,
        lambda: _or_cached(lambda: snapshot(local_files_only=False), lambda: snapshot(local_files_only=True)),
    )


def _snapshot(
    model: str, revision: str | None, patterns: tuple[str, ...], access: HubAccess, *, local_files_only: bool
) -> Path:
    # Imported here: a local checkpoint needs no network library, and importing this one takes a noticeable moment.
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            model,
            revision=revision,
            allow_patterns=list(patterns),
            cache_dir=access.cache_dir,
            token=access.token,
            local_files_only=local_files_only,
        )
    )


def _or_cached(ask: Callable[[], Answer], look: Callable[[], Answer]) -> Answer:
    """What the hub answers; where it cannot be reached, what was downloaded before."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return ask()
    except (HfHubHTTPError, HFValidationError):  # it was reached
        raise
    except Exception as error:
        try:
            return look()
        except Exception:
            raise error from None


def _asked(model: str, revision: str | None, ask: Callable[[], Answer]) -> Answer:
    """What the hub answers, or one line that says why it does not."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return ask()
    except HFValidationError:
        raise _not_a_model(model) from None
    except GatedRepoError:
        raise CheckpointError(
            f"{model} asks you to accept its licence first: open https://huggingface.co/{model}, accept, then run "
            "`hf auth login`."
        ) from None
    except RepositoryNotFoundError:
        raise CheckpointError(f"There is no model {model} on the hub that you may read. Check the name.") from None
    except RevisionNotFoundError:
        raise CheckpointError(f"{model} has no revision {shown(revision)} on the hub. Check --revision.") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise CheckpointError(
                f"{model} was not downloaded: {error.filename or 'the cache folder'} cannot be written "
                f"({os.strerror(error.errno)}). Name another folder for downloads with HF_HOME, or repair that one."
            ) from error
        # Whatever else: the libraries underneath have many errors of their own for a network or a disk that fails.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise CheckpointError(
            f"{model} could not be downloaded ({reason[:200]}). Check the network, or give the path of a folder."
        ) from error
