"""Sound, frames of a video, and all kinds of media together through the engine, against transformers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from facet.prepared_media import MediaArray, PreparedMedia
from facet.request import Request
from facet.sampling_params import WHOLE_VOCABULARY, SamplingParams
from tests.engine.harness import run
from tests.engine.test_media import assert_close
from tests.engine.test_pictures import engine_of, load, logprobs_of, prepared
from tests.tiny_models import TinyModel
from tests.vision import random_pictures

TinyModels = Callable[[str], TinyModel]

# Begin, soft and end, as the tiny models have them.
PICTURE_IDS = (500, 501, 502)
SOUND_IDS = (503, 504, 505)
VIDEO_IDS = (500, 506, 502)


def request_of(text: list[int], items: list[PreparedMedia], ids: tuple[int, int, int]) -> Request:
    """Text, each item with a few words before it, and no words behind the last."""
    begin, soft, end = ids
    token_ids, spans = [2, *text], []
    for item in items:
        spans.append(item.span(len(token_ids) + 4))
        token_ids += [7, 8, 9, begin, *[soft] * item.num_tokens, end]
    return Request(
        request_id="x",
        prompt_token_ids=tuple(token_ids),
        sampling=SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=WHOLE_VOCABULARY),
        media=tuple(spans),
        contents=tuple({item.content_key: item for item in items}.values()),
    )


@torch.no_grad()
def check(tiny: TinyModel, loaded: Any, request: Request, **inputs: torch.Tensor) -> None:
    """Every position, in one step and in several."""
    types = torch.zeros(1, len(request.prompt_token_ids), dtype=torch.long)
    for span in request.media:
        types[0, span.first : span.end] = {"image": 1, "video": 2, "audio": 3}[span.kind]
    logits = tiny.oracle(
        torch.tensor([request.prompt_token_ids]), use_cache=False, mm_token_type_ids=types, **inputs
    ).logits[0]
    expected = torch.log_softmax(logits.float(), dim=-1)
    for budget in (512, 26):
        answer = run(engine_of(loaded, max_num_batched_tokens=budget), [request])["x"]
        assert_close(logprobs_of(answer, loaded.spec.vocab_size), expected[:-1])


@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma4_12b_mm"])
def test_sound(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    loaded = load(tiny)
    tower: Any = loaded.towers["audio"]
    width = tower.spec.frame_size if name == "gemma4_12b_mm" else tower.spec.num_bins
    generator = torch.Generator().manual_seed(5)
    clips = [torch.randn(24, width, generator=generator) for _ in range(2)]
    items = [
        PreparedMedia(
            kind="audio",
            content_key=str(index),
            num_tokens=24 if name == "gemma4_12b_mm" else 6,
            arrays={"features": MediaArray.from_numpy(clip.numpy())},
        )
        for index, clip in enumerate(clips)
    ]
    request = request_of(tiny.prompt(15)[1:], [items[0], items[1], items[0]], SOUND_IDS)
    features = torch.stack([clips[0], clips[1], clips[0]])
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    check(tiny, loaded, request, input_features=features, input_features_mask=mask)


@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma4_31b_mm"])
def test_frames_of_a_video(name: str, tiny_model: TinyModels) -> None:
    tiny = tiny_model(name)
    loaded = load(tiny)
    frames = random_pictures(loaded.towers["video"].spec, ((2, 3),) * 3)
    items = [replace(prepared(frame, loaded), kind="video") for frame in frames]
    request = request_of(tiny.prompt(15)[1:], items, VIDEO_IDS)
    pixels = torch.stack([frame["patches"].float() / 255 for frame in frames])
    places = torch.stack([frame["positions"].long() for frame in frames])
    check(tiny, loaded, request, pixel_values_videos=pixels[None], video_position_ids=places[None])


def test_all_kinds_in_one_prompt(tiny_model: TinyModels) -> None:
    """Two pictures of different sizes, and between them sound and a frame."""
    tiny = tiny_model("gemma4_e2b_mm")
    loaded = load(tiny)
    towers: Any = loaded.towers
    first, second, frame = random_pictures(towers["image"].spec, ((2, 3), (4, 1), (1, 2)))
    clip = torch.randn(24, towers["audio"].spec.num_bins, generator=torch.Generator().manual_seed(8))
    sound = PreparedMedia(
        kind="audio", content_key="it", num_tokens=6, arrays={"features": MediaArray.from_numpy(clip.numpy())}
    )
    seen = replace(prepared(frame, loaded), kind="video")
    text = tiny.prompt(9)[1:]
    parts = [
        request_of(text, [item], ids)
        for item, ids in (
            (prepared(first, loaded), PICTURE_IDS),
            (sound, SOUND_IDS),
            (seen, VIDEO_IDS),
            (prepared(second, loaded), PICTURE_IDS),
        )
    ]
    token_ids, spans = [2], []
    for part in parts:
        spans += [replace(span, first=span.first + len(token_ids) - 1) for span in part.media]
        token_ids += part.prompt_token_ids[1:]
    request = replace(
        parts[0],
        prompt_token_ids=tuple(token_ids),
        media=tuple(spans),
        contents=tuple(content for part in parts for content in part.contents),
    )
    longest = max(len(first["patches"]), len(second["patches"]))
    pixels, places = torch.zeros(2, longest, first["patches"].shape[1]), torch.full((2, longest, 2), -1)
    for index, picture in enumerate((first, second)):
        pixels[index, : len(picture["patches"])] = picture["patches"].float() / 255
        places[index, : len(picture["patches"])] = picture["positions"]
    check(
        tiny,
        loaded,
        request,
        pixel_values=pixels,
        image_position_ids=places,
        pixel_values_videos=frame["patches"][None, None].float() / 255,
        video_position_ids=frame["positions"][None, None].long(),
        input_features=clip[None],
        input_features_mask=torch.ones(1, len(clip), dtype=torch.bool),
    )
