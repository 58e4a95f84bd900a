"""Pairs of a model and its drafter with published structure and random weights, made small; and a drafter to test them.

Random weights seldom agree: drafts are mostly given back.
"""

import copy
import json
from collections.abc import Sequence
from pathlib import Path

from facet.config import ModelConfig
from facet.drafts.model_drafter import ModelDrafter
from facet.drafts.step_times import StepTimes
from facet.model.draft_loader import load_draft_model
from facet.model.draft_model import DraftModel
from facet.model.gemma import Gemma
from facet.model.loader import load_model
from facet.progress import Silent
from facet.scheduler.drafting import Draftable, Drafts
from facet.step import StepPlan, StepResult
from tests.published_configs import DRAFTERS, pattern, text_only

Rounds = list[tuple[list[int], tuple[tuple[int, ...], ...]]]  # drafts of a step, and what became of each run
NAMES = ("Gemma 4 E4B", "Gemma 4 31B")  # with centroids and without, keys and values separate and shared
_SIZES = {"head_dim": 16, "global_head_dim": 32, "vocab_size": 128, "sliding_window": 16}


def write_pair(name: str, folder: Path) -> tuple[Path, Path]:
    """Folders of the model and of its drafter, with a config each."""
    config, drafter = text_only(name), copy.deepcopy(DRAFTERS[name])
    config |= _SIZES
    config |= {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "layer_types": pattern(2, 6)}
    if config["hidden_size_per_layer_input"]:
        config |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 128, "num_kv_shared_layers": 3}
    drafter["text_config"] |= _SIZES | {"hidden_size": 32, "intermediate_size": 48}
    drafter |= {"backbone_hidden_size": 64, "num_centroids": 16, "centroid_intermediate_top_k": 4}
    for kind, fields in (("model", config), ("drafter", drafter)):
        (folder / kind).mkdir(parents=True)
        (folder / kind / "config.json").write_text(json.dumps(fields))
    return folder / "model", folder / "drafter"


def load_pair(
    name: str, folder: Path, *, device: str, max_model_len: int, quantization: str | None = None
) -> tuple[Gemma, DraftModel]:
    model, drafter = write_pair(name, folder)
    config = ModelConfig(
        model=str(model),
        load_format="dummy",
        device=device,
        dtype="float32",
        max_model_len=max_model_len,
        quantization=quantization,
    )
    target = load_model(config).model
    return target, load_draft_model(str(drafter), target, config, Silent())


class AlwaysDrafts(ModelDrafter):
    """Verifies every draft, and remembers each round."""

    def __init__(self, num_drafts: int) -> None:
        super().__init__(num_drafts, StepTimes({1: 1.0, 1000: 1.0}))
        self.rounds: Rounds = []
        self.num_steps_ahead = 0

    def propose(self, requests: Sequence[Draftable]) -> Drafts:
        return {
            request.request_number: self._guesses[request.request_number]
            for request in requests
            if request.request_number in self._guesses and not request.num_pending
        }

    def learn(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        super().learn(plan, result, 1.0)  # as expected: on a busy machine it would stop drafting
        self.num_steps_ahead += plan.is_ahead
        if plan.has_drafts:
            self.rounds.append((list(result.draft_token_ids), result.token_ids))
