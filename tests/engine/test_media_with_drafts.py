"""Drafts behind prompts with pictures: the text is that without drafts, and a drafter's rounds are the reference's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from facet.config import ModelConfig
from facet.drafts.config import SuffixDrafts
from facet.drafts.step_times import StepTimes
from facet.drafts.text_drafter import TextDrafter
from facet.model.draft_loader import load_draft_model
from facet.progress import Silent
from tests.engine.harness import run
from tests.engine.test_draft_models import RULE
from tests.engine.test_pictures import engine_of, load, mixed_requests, prepared, request_of
from tests.tiny_drafters import AlwaysDrafts
from tests.tiny_models import TinyModel
from tests.vision import random_pictures

TinyModels = Callable[[str], TinyModel]

NUM_TOKENS, NUM_DRAFTS = 8, 2
SUFFIX = SuffixDrafts(num_drafts=6, max_match=24, max_factor=2.0, min_share=0.1)


def test_suffix_drafts_behind_pictures_change_nothing(tiny_model: TinyModels) -> None:
    """Answers of few words repeat themselves. Prompts are cut into chunks and found in the cache."""
    tiny = tiny_model("gemma4_e2b_mm")
    loaded = load(tiny)
    few_words = dict(allowed_token_ids=(7, 8, 9), max_tokens=16)
    requests = [
        replace(request, sampling=replace(request.sampling, **few_words))
        for request in mixed_requests(tiny, loaded)[:4]
    ]
    expected = run(engine_of(loaded, enable_prefix_caching=False), requests)
    engine = engine_of(
        loaded, drafter=TextDrafter(SUFFIX, StepTimes({1: 1.0, 1000: 1.0})), max_num_batched_tokens=24, max_num_seqs=2
    )
    for _ in range(2):  # the second time, prefixes are found
        answers = run(engine, requests)
        assert [answers[each.request_id].token_ids for each in requests] == [
            expected[each.request_id].token_ids for each in requests
        ]
    stats = engine.stats().scheduler
    assert stats.cache.num_prompt_tokens_hit > 0
    assert stats.drafts.num_accepted > 0


def test_a_drafter_reads_keys_of_pictures(tiny_model: TinyModels, tmp_path: Path) -> None:
    """The drafter attends to what the model stored for a picture, whose tokens see each other."""
    from tests.spec import make_tiny_drafters as maker

    tiny = tiny_model("gemma4_31b_mm")
    loaded = load(tiny)
    text_config: Any = tiny.config["text_config"]
    config = maker.drafter_config(text_config, 48)
    *_, drafter_class, config_class = maker.class_pair(text_config)
    oracle = maker.store(maker.build(drafter_class, config_class, config, 2), config, str(tmp_path))
    (picture,) = random_pictures(loaded.towers["image"].spec, [(2, 3)])
    text = tiny.prompt(16)[1:]
    request = request_of([text, prepared(picture, loaded), text[:5]], max_tokens=NUM_TOKENS)
    types = torch.zeros(1, len(request.prompt_token_ids), dtype=torch.long)
    (span,) = request.media
    types[0, span.first : span.end] = 1
    images = {
        "pixel_values": picture["patches"][None].float() / 255,
        "image_position_ids": picture["positions"][None].long(),
        "mm_token_type_ids": types,
    }
    prompt = list(request.prompt_token_ids)
    rounds, continuation, _ = maker.speculate(
        tiny.oracle, oracle, RULE, prompt, NUM_DRAFTS, NUM_TOKENS, tiny.window, images
    )
    drafter = AlwaysDrafts(NUM_DRAFTS)
    draft_model = load_draft_model(str(tmp_path), loaded.model, ModelConfig(), Silent())
    engine = engine_of(loaded, drafter=drafter, draft_model=draft_model, max_num_batched_tokens=24)
    assert run(engine, [request])["x"].token_ids == continuation[:NUM_TOKENS]
    compared = len(drafter.rounds) - 1  # the last may be cut to what is left to answer
    assert compared > 2
    ours = drafter.rounds[:compared]
    assert ours == [(one["drafted"], (tuple(one["emitted"]),)) for one in rounds[:compared]]
