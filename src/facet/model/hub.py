"""From a model's name to a folder with its files: a local path, or a download from the Hugging Face hub."""

from pathlib import Path

from facet.errors import CheckpointError

CONFIG_ONLY = ("config.json", "generation_config.json")
TEXT_MODEL = (
    *CONFIG_ONLY,
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "*.jinja",
    "special_tokens*",
)


def local_folder(model: str, *, revision: str | None = None, patterns: tuple[str, ...] = TEXT_MODEL) -> Path:
    """The folder of `model`, downloaded first if it is not a path. Only files matching `patterns` are fetched."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{model} is a file; give the folder that holds config.json.")
    if model.startswith(("/", "./", "../", "~")) or model.count("/") != 1:
        raise CheckpointError(
            f"{model} is neither a folder nor the name of a model on the hub (owner/name, as in google/gemma-4-E4B-it)."
        )
    return _download(model, revision, patterns)


def _download(model: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    # Imported here: a local checkpoint needs no network library, and importing this one takes a noticeable moment.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(patterns)))
    except GatedRepoError:
        raise CheckpointError(
            f"{model} asks you to accept its licence first: open https://huggingface.co/{model}, accept, then run "
            "`hf auth login`."
        ) from None
    except RepositoryNotFoundError:
        raise CheckpointError(f"There is no model {model} on the hub that you may read. Check the name.") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{model} could not be downloaded ({type(error).__name__}) and no copy is on this machine. Check the "
            "network, or give the path of a folder."
        ) from None
