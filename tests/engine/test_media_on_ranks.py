"""Media on models that ranks share: the same answers, and each item computed by one rank alone."""

import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from facet.config import EngineConfig
from facet.engine.engine import Engine
from facet.engine.ranks import LeadingRunner, follow
from facet.layers.rank_group import RankGroup
from facet.model.loader import LoadedModel, load_model
from facet.prepared_media import MediaArray, PreparedMedia
from facet.request import Request
from tests.engine import test_media_of_3n as media_of_3n
from tests.engine.harness import Answer, run
from tests.engine.test_media_of_3n import prepared_clip
from tests.engine.test_pictures import GRIDS, engine_of, load, prepared, request_of
from tests.mobile_net_sample import random_picture
from tests.ranks import on_ranks
from tests.sound import random_clips
from tests.tiny_3n import make_tiny_3n
from tests.tiny_models import TinyModel
from tests.vision import random_pictures

TinyModels = Callable[[str], TinyModel]


@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma4_12b_mm", "gemma3_mm"])
def test_ranks_answer_as_one_does(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    whole = load(tiny)
    items = [prepared(picture, whole) for picture in random_pictures(whole.towers["image"].spec, GRIDS, seed=3)]
    text = tiny.prompt(20)[1:]
    compare(whole, [request_of([text, *items, text[:4]], "pictures"), *other_kinds(text, whole)])


def test_ranks_of_gemma_3n_answer_as_one_does(tmp_path: Path) -> None:
    """Also where tokens around media have their embeddings from towers, which every rank looks up by itself."""
    folder = make_tiny_3n(tmp_path).folder
    whole = load_model(EngineConfig(model=str(folder), device="cpu", max_model_len=512))
    other = random_picture().flip(-1).contiguous()
    pictures = [prepared({"pixels": pixels}, whole) for pixels in (random_picture(), other)]
    clips = [prepared_clip(clip) for clip in random_clips(16)[:3]]
    prompts = {"picture": pictures[:1], "picture and sound": (pictures[1], clips[1]), "sound": clips}
    compare(whole, [media_of_3n.request_of(items, name, 4) for name, items in prompts.items()])


def compare(whole: LoadedModel, requests: Sequence[Request]) -> None:
    """All come at once: of several items in a step, each rank's towers see their share."""
    expected = run(engine_of(whole), requests)
    steps: queue.Queue[bytes | None] = queue.Queue()

    def answers(group: RankGroup) -> tuple[dict[str, Answer], int]:
        config = EngineConfig(model=str(whole.folder), device="cpu", max_model_len=whole.context_length)
        loaded = load_model(config, group=group)
        sizes: list[int] = []
        for tower in dict.fromkeys(loaded.towers.values()):
            tower.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0])))
        engine = engine_of(loaded, max_num_batched_tokens=2048, max_num_encoded_rows=2048, num_encoder_rows=2048)
        found: dict[str, Answer] = {}
        if group.rank.plans:
            leading: Any = LeadingRunner(engine.runner, steps.put)
            try:
                found = run(Engine(leading, engine.settings), requests)
            finally:
                steps.put(None)
        else:
            follow(engine.runner, steps.get)
        return found, sum(sizes)

    (found, *counts), (_, other) = on_ranks(2, answers)
    for request_id, answer in expected.items():
        assert found[request_id].token_ids == answer.token_ids
    num_contents = len({span.content_key for request in requests for span in request.media})
    assert sorted((*counts, other)) == [num_contents // 2, num_contents - num_contents // 2]


def other_kinds(text: list[int], loaded: LoadedModel) -> Iterator[Request]:
    """Frames and sound, where the model takes them, several in one step."""
    if "video" in loaded.towers:
        frames = random_pictures(loaded.towers["image"].spec, GRIDS, seed=5)
        items = [replace(prepared(frame, loaded), kind="video") for frame in frames]
        yield request_of([text, *items, text[:3]], "video")
    if "audio" in loaded.towers:
        spec: Any = loaded.towers["audio"].spec
        width = getattr(spec, "frame_size", None) or spec.num_bins
        generator = torch.Generator().manual_seed(5)
        clips = [torch.randn(24, width, generator=generator) for _ in range(3)]
        tower: Any = loaded.towers["audio"]
        with torch.no_grad():
            rows = tower([{"features": clip} for clip in clips])
        sounds = [
            PreparedMedia(
                kind="audio",
                content_key=f"sound {index}",
                num_tokens=len(rows[index]),
                arrays={"features": MediaArray.from_numpy(clip.numpy())},
            )
            for index, clip in enumerate(clips)
        ]
        yield request_of([text, *sounds, text[:3]], "audio")
