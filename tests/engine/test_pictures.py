"""Pictures through the engine: against transformers, alone and in company, cut, cached, preempted and cancelled."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pytest
import torch

from facet.config import ModelConfig
from facet.engine.engine import Engine
from facet.engine.messages import Submit, ToEngine
from facet.errors import RequestError
from facet.kernels.arithmetic import BATCH_INVARIANT, USUAL, Arithmetic
from facet.model.loader import LoadedModel, load_model
from facet.prepared_media import MediaArray, PreparedMedia
from facet.request import Request
from facet.runner import warm_up
from facet.sampling_params import WHOLE_VOCABULARY, SamplingParams
from tests.engine.harness import Answer, alone, make_engine, run
from tests.engine.test_media import assert_close, distribution, little_memory
from tests.tiny_models import TinyModel
from tests.vision import Picture, random_pictures

TinyModels = Callable[[str], TinyModel]

NAMES = ("gemma4_e2b_mm", "gemma4_31b_mm", "gemma3_mm")
BEGIN, SOFT, END = 500, 501, 502
GRIDS = ((2, 3), (1, 1), (4, 2), (2, 3))


def load(tiny: TinyModel, arithmetic: Arithmetic = USUAL) -> LoadedModel:
    return load_model(ModelConfig(model=str(tiny.folder), device="cpu", max_model_len=512), arithmetic=arithmetic)


def engine_of(loaded: LoadedModel, **settings: Any) -> Engine:
    return make_engine(loaded.model, towers=loaded.towers, **settings)


def prepared(picture: Picture, loaded: LoadedModel) -> PreparedMedia:
    arrays = {name: MediaArray.from_numpy(tensor.numpy()) for name, tensor in picture.items()}
    tower: Any = loaded.towers["image"]
    with torch.no_grad():
        (rows,) = tower([picture])
    return PreparedMedia(
        kind="image",
        content_key=str(hash(tuple(array.data for array in arrays.values()))),
        num_tokens=len(rows),
        arrays=arrays,
        attends_both_ways=len(loaded.spec.bidirectional_image_layers) > 0,
    )


def request_of(parts: Sequence[list[int] | PreparedMedia], request_id: str = "x", **sampling: Any) -> Request:
    """Text and pictures, one after the other."""
    token_ids, spans, contents = [2], [], {}
    for part in parts:
        if isinstance(part, list):
            token_ids += part
        else:
            spans.append(part.span(len(token_ids) + 1))
            token_ids += [BEGIN, *[SOFT] * part.num_tokens, END]
            contents[part.content_key] = part
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 4, "ignore_eos": True, **sampling})
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(token_ids),
        sampling=params,
        media=tuple(spans),
        contents=tuple(contents.values()),
    )


@torch.no_grad()
def oracle_logprobs(tiny: TinyModel, request: Request, pictures: Sequence[Picture]) -> torch.Tensor:
    """Of every position, by transformers. `pictures`: one for every span."""
    types = torch.zeros(1, len(request.prompt_token_ids), dtype=torch.long)
    for span in request.media:
        types[0, span.first : span.end] = 1
    if "pixels" in pictures[0]:
        inputs = {"pixel_values": torch.stack([picture["pixels"] for picture in pictures]).float() / 127.5 - 1}
        inputs["token_type_ids"] = types
    else:
        longest = max(len(picture["patches"]) for picture in pictures)
        pixels = torch.zeros(len(pictures), longest, pictures[0]["patches"].shape[1])
        places = torch.full((len(pictures), longest, 2), -1)
        for index, picture in enumerate(pictures):
            pixels[index, : len(picture["patches"])] = picture["patches"].float() / 255
            places[index, : len(picture["patches"])] = picture["positions"]
        inputs = {"pixel_values": pixels, "image_position_ids": places, "mm_token_type_ids": types}
    logits = tiny.oracle(torch.tensor([request.prompt_token_ids]), use_cache=False, **inputs).logits[0]
    return torch.log_softmax(logits.float(), dim=-1)


def logprobs_of(answer: Answer, vocab_size: int) -> torch.Tensor:
    return torch.stack([distribution(entry, vocab_size) for entry in (*answer.prompt_logprobs, *answer.logprobs)])


@pytest.mark.parametrize("name", NAMES)
def test_every_position_is_that_of_transformers(name: str, tiny_model: TinyModels) -> None:
    """Text around pictures, pictures side by side, the same one twice, and one at the very end."""
    tiny = tiny_model(name)
    loaded = load(tiny)
    pictures = random_pictures(loaded.towers["image"].spec, GRIDS)
    items = [prepared(picture, loaded) for picture in pictures]
    text = tiny.prompt(20)[1:]
    request = request_of([text, items[0], items[1], text[:5], items[2], text[5:9], items[0]], max_tokens=1)
    last = request.media[-1]
    at_end = replace(request, prompt_token_ids=request.prompt_token_ids[: last.end])
    expected = oracle_logprobs(tiny, at_end, [pictures[index] for index in (0, 1, 2, 0)])
    asked = replace(
        at_end,
        sampling=replace(at_end.sampling, prompt_logprobs=WHOLE_VOCABULARY, logprobs=WHOLE_VOCABULARY),
    )
    for budget in (512, 26):
        engine = engine_of(loaded, max_num_batched_tokens=budget)
        ours = logprobs_of(run(engine, [asked])["x"], loaded.spec.vocab_size)
        # Ids of media are never sampled, and neither compared.
        never = torch.tensor([token for token in loaded.spec.media_token_ids if token < loaded.spec.vocab_size])
        kept = torch.ones(loaded.spec.vocab_size, dtype=torch.bool)
        kept[never] = False
        assert_close(ours[:-1], expected[:-1])
        assert_close(ours[-1, kept].log_softmax(0), expected[-1, kept].log_softmax(0))
        assert engine.runner.media.num_encoded == 3, "the same picture is encoded once"


@pytest.mark.parametrize("graph_sizes", [(), (1, 4)])
def test_warming_up_leaves_no_trace(graph_sizes: tuple[int, ...], tiny_model: TinyModels) -> None:
    """Pictures that attend both ways among what is warmed up; what no request wrote stays NaN."""
    tiny = tiny_model("gemma3_mm_shallow")
    loaded = load(tiny)
    (picture,) = random_pictures(loaded.towers["image"].spec, GRIDS[:1])
    request = request_of([tiny.prompt(20)[1:], prepared(picture, loaded)], logprobs=1)
    cold, warm = (engine_of(loaded, num_blocks=200, graph_sizes=graph_sizes) for _ in range(2))
    seen: list[int] = []
    warm.runner.run_made_up_steps(seen.append)
    assert len(seen) > len(warm_up.BESIDE_PROMPTS)
    assert run(warm, [request]) == run(cold, [request])


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("e2b_mm_shallow", "chunks"),
        ("e2b_mm_shallow", "captured"),
        ("31b_mm_shallow", "little memory"),
        ("gemma3_mm_shallow", "captured"),
    ],
)
def test_cuts_and_company_change_nothing(
    name: str, setting: str, tiny_model: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefixes are found, seats taken away and given back, one request is cancelled."""
    tiny = tiny_model(name)
    loaded = load(tiny)
    requests = mixed_requests(tiny, loaded)
    solo = {}
    for request in requests:
        solo |= run(engine_of(loaded, enable_prefix_caching=False, num_blocks=200), [alone(request)])
    longest = max(span.length for request in requests for span in request.media)
    settings: dict[str, Any] = {
        "chunks": {"max_num_batched_tokens": longest, "max_num_seqs": 4, "max_num_encoded_rows": 1},
        "captured": {"graph_sizes": (1, 4, 12), "piece_sizes": (16, 64, 128, 512)},
        "little memory": {"num_blocks": little_memory(loaded.model, requests), "num_encoder_rows": longest},
    }[setting]
    engine = engine_of(loaded, **settings)
    if setting == "captured":  # pictures or not: nothing is computed kernel by kernel
        monkeypatch.setattr(loaded.model, "forward", None)
        tower = loaded.towers["image"]
        only_one = partial(_one_at_a_time, tower.forward)
        monkeypatch.setattr(tower, "forward", only_one)
    answers = run(engine, requests, cancel_after={"3": 1})
    for request in requests:
        ours, expected = answers[request.request_id], solo[request.request_id]
        assert ours.token_ids == expected.token_ids[: len(ours.token_ids)]
        assert ours.finish_reason == "abort" or len(ours.token_ids) == len(expected.token_ids)
    if setting == "little memory":
        assert engine.stats().scheduler.num_preemptions > 0
    else:
        keys = {span.content_key for request in requests for span in request.media}
        assert engine.runner.media.num_encoded == len(keys)


@pytest.mark.parametrize("name", ["e2b_mm_shallow", "gemma3_mm_shallow"])
def test_company_changes_no_bit(name: str, tiny_model: TinyModels) -> None:
    """Of batch-invariant answers: pictures encoded alone or several in a step, after others or first of all."""
    captured = {"graph_sizes": (1, 4, 12), "piece_sizes": (16, 64, 128, 512)}
    tiny = tiny_model(name)
    loaded = load(tiny, BATCH_INVARIANT)
    requests = [
        replace(request, sampling=replace(request.sampling, logprobs=2, prompt_logprobs=2))
        for request in mixed_requests(tiny, loaded)
    ]
    solo = {}
    engine = engine_of(loaded, enable_prefix_caching=False, num_blocks=200, **captured)
    for request in requests:
        solo |= run(engine, [alone(request)])
    little: dict[str, Any] = {"num_blocks": little_memory(loaded.model, requests), "enable_prefix_caching": False}
    for more in ({"max_num_encoded_rows": 1}, {"max_num_encoded_rows": 512}, little):
        engine = engine_of(loaded, **captured, **more)
        answers = run(engine, requests, arrivals={request.request_id: 0 for request in requests})
        for key, expected in solo.items():
            ours = answers[key]
            assert (ours.token_ids, ours.logprobs) == (expected.token_ids, expected.logprobs)
            assert ours.prompt_logprobs == expected.prompt_logprobs
    assert engine.stats().scheduler.num_preemptions > 0


@pytest.mark.parametrize("name", ["e2b_mm_shallow", "gemma3_mm_shallow"])
def test_chunks_of_every_size(name: str, tiny_model: TinyModels) -> None:
    """From the longest picture, which a chunk may not cut, to the whole prompt."""
    tiny = tiny_model(name)
    loaded = load(tiny)
    items = [prepared(picture, loaded) for picture in random_pictures(loaded.towers["image"].spec, GRIDS[:2])]
    text = tiny.prompt(9)[1:]
    request = request_of([text, items[0], text[:3], items[1]], max_tokens=2)
    sizes = range(max(item.num_tokens for item in items), len(request.prompt_token_ids))
    expected = run(engine_of(loaded), [request])["x"].token_ids
    assert len(sizes) > 10
    for size in sizes:
        engine = engine_of(loaded, max_num_batched_tokens=size, enable_prefix_caching=False)
        assert run(engine, [request])["x"].token_ids == expected, size


def _one_at_a_time(forward: Callable[..., Any], items: Sequence[Picture]) -> Any:
    (item,) = items
    return forward([item])


def mixed_requests(tiny: TinyModel, loaded: LoadedModel) -> list[Request]:
    choose = random.Random(7)
    items = [prepared(picture, loaded) for picture in random_pictures(loaded.towers["image"].spec, GRIDS, seed=3)]
    texts = [tiny.prompt(40, seed)[1:] for seed in range(3)]
    requests = []
    for index in range(12):
        parts: list[list[int] | PreparedMedia] = []
        for _ in range(choose.randrange(1, 4)):
            parts.append(choose.choice(texts)[: choose.randrange(30)])
            if choose.random() < 0.8:
                parts.append(choose.choice(items))
        request = request_of([*parts, [7]], str(index), max_tokens=choose.choice([5, 24]))
        requests.append(replace(request, arrival_time=float(index)))
    return requests


@pytest.mark.parametrize("name", ["gemma4_e2b_mm", "gemma4_31b_mm"])
def test_a_second_question_runs_no_tower_and_another_picture_is_never_mistaken(
    name: str, tiny_model: TinyModels
) -> None:
    """All prompts have the same ids."""
    tiny = tiny_model(name)
    loaded = load(tiny)
    first, _, _, other = (prepared(picture, loaded) for picture in random_pictures(loaded.towers["image"].spec, GRIDS))
    assert first.num_tokens == other.num_tokens
    text = tiny.prompt(30)[1:]
    ask = {key: request_of([text, item, text], logprobs=3) for key, item in (("first", first), ("other", other))}
    assert ask["first"].prompt_token_ids == ask["other"].prompt_token_ids
    fresh = {key: run(engine_of(loaded), [request])["x"] for key, request in ask.items()}
    assert fresh["first"].logprobs != fresh["other"].logprobs
    engine = engine_of(loaded)
    for key, num_encoded in (("first", 1), ("other", 2), ("first", 2), ("other", 2)):
        answer = run(engine, [ask[key]])["x"]
        assert engine.runner.media.num_encoded == num_encoded
        assert answer.token_ids == fresh[key].token_ids
    assert answer.num_cached_tokens > first.num_tokens


def test_requests_with_pictures_survive_the_way_to_the_engine(tiny_model: TinyModels) -> None:
    tiny = tiny_model("gemma4_31b_mm")
    loaded = load(tiny)
    (item,) = (prepared(picture, loaded) for picture in random_pictures(loaded.towers["image"].spec, GRIDS[:1]))
    request = request_of([item, [7]])
    message = msgspec.msgpack.Decoder(ToEngine).decode(msgspec.msgpack.encode(Submit(request)))
    assert isinstance(message, Submit)
    assert message.request == request
    assert run(engine_of(loaded), [message.request]) == run(engine_of(loaded), [request])


def test_content_that_does_not_fit_is_refused(tiny_model: TinyModels) -> None:
    tiny = tiny_model("gemma4_31b_mm")
    loaded = load(tiny)
    picture = random_pictures(loaded.towers["image"].spec, GRIDS[:1])[0]
    item = prepared(picture, loaded)
    request = request_of([item, [7]])
    span = request.media[0]
    far = MediaArray.from_numpy((picture["positions"] + 64).numpy())
    half = MediaArray.from_numpy(picture["patches"][:18].numpy())
    cases = {
        "no content": lambda: replace(request, contents=(replace(item, content_key="other"),)),
        "becomes 5 tokens": lambda: replace(request, contents=(replace(item, num_tokens=5),)),
        "takes no audio": lambda: replace(
            request, media=(replace(span, kind="audio"),), contents=(replace(item, kind="audio"),)
        ),
        "positions": lambda: replace(request, contents=(replace(item, arrays={**item.arrays, "positions": far}),)),
        "patches": lambda: replace(request, contents=(replace(item, arrays={**item.arrays, "patches": half}),)),
        "lacks": lambda: replace(request, contents=(replace(item, arrays={}),)),
    }
    engine = engine_of(loaded)
    for message, made in cases.items():
        with pytest.raises(RequestError, match=message):
            engine.submit(made())
    text_only = make_engine(loaded.model)
    with pytest.raises(RequestError, match="takes no image"):
        text_only.submit(request)
    assert run(engine, [request])["x"].finish_reason == "length"
