"""Finds the drafter of a local model where `--speculative-config` does not say how drafts are made.

It lies inside the model's folder, as `assistant`, or beside it under the same name with `-assistant` behind, as it is
published. A name on the hub is not looked for: nothing is downloaded that nobody asked for.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from facet.config import EngineConfig
from facet.errors import UserError
from facet.model.config_fields import read_config_file
from facet.model.draft_loader import read_draft_model_spec
from facet.model.families import read_model_spec

Config = TypeVar("Config", bound=EngineConfig)


def with_found_drafter(config: Config) -> tuple[Config, tuple[str, ...]]:
    """The config, naming the drafter that was found, and what to tell a user about it."""
    folder = Path(os.path.expanduser(config.model)).absolute() if config.model else None
    if config.speculative_config is not None or folder is None or not (folder / "config.json").is_file():
        return config, ()
    beside = folder.with_name(f"{folder.name}-assistant")
    found = next((path for path in (folder / "assistant", beside) if (path / "config.json").is_file()), None)
    if found is None:
        return config, ()
    target = read_model_spec(read_config_file(folder / "config.json", config.hf_overrides))
    try:
        read_draft_model_spec(read_config_file(found / "config.json"), target, str(found))
    except UserError as error:
        return config, (f"A drafter was found and is not used: {error}",)
    line = f'Drafts: by {found}, found beside the model. --speculative-config \'{{"method": "none"}}\' does without.'
    return replace(config, speculative_config={"model": str(found)}), (line,)
