"""Finds the drafter of a local model where `--speculative-config` does not say how drafts are made.

It lies inside the model's folder, as `assistant`, or beside it under the same name with `-assistant` behind, as it is
published. A name on the hub is not looked for: nothing is downloaded that nobody asked for.

The bundled model's own is used only where it changes no answer, since nobody put it there: on a CPU, in float32, where
the number of rows in a step changes a row in its very last bits only, or with batch-invariant arithmetic, where it
changes nothing. In sixteen bits near ties can fall the other way, and as the number of drafts depends on measured
times, a lone request would not always get the same answer. Where a drafter changes nothing, drafts come from the text
of each request as well.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from facet import bundled_model
from facet.config import EngineConfig
from facet.errors import UserError
from facet.model.config_fields import read_config_file
from facet.model.draft_loader import read_draft_model_spec
from facet.model.families import read_model_spec
from facet.model.resolving import dtype_of_config, resolve_dtype

Config = TypeVar("Config", bound=EngineConfig)


def with_found_drafter(config: Config, device: torch.device) -> tuple[Config, tuple[str, ...]]:
    """The config, naming the drafter that was found, and what to tell a user about it."""
    folder = Path(os.path.expanduser(config.model)).absolute() if config.model else None
    if config.speculative_config is not None or folder is None or not (folder / "config.json").is_file():
        return config, ()
    beside = folder.with_name(f"{folder.name}-assistant")
    found = next((path for path in (folder / "assistant", beside) if (path / "config.json").is_file()), None)
    if found is None:
        return config, ()
    target = read_model_spec(read_config_file(folder / "config.json", config.hf_overrides))
    dtype = resolve_dtype(config.dtype, dtype_of_config(target), device)
    changes_nothing = device.type == "cpu" and (config.batch_invariant or dtype == torch.float32)
    if folder == bundled_model.FOLDER and not changes_nothing:
        return config, ()
    try:
        read_draft_model_spec(read_config_file(found / "config.json"), target, str(found))
    except UserError as error:
        return config, (f"A drafter was found and is not used: {error}",)
    and_text = " and from the text of each request" if changes_nothing else ""
    line = (
        f"Drafts: by {found}, found beside the model{and_text}. "
        '--speculative-config \'{"method": "none"}\' does without.'
    )
    chosen = {"model": str(found), **({"method": "suffix"} if changes_nothing else {})}
    return replace(config, speculative_config=chosen), (line,)
