"""Pictures and sound through the engine in Gemma 3n: the towers' rows, and tokens whose embeddings the towers have."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from facet.config import ModelConfig
from facet.kernels.arithmetic import BATCH_INVARIANT
from facet.model.loader import LoadedModel, load_model
from facet.prepared_media import MediaArray, PreparedMedia
from facet.request import Request
from facet.sampling_params import WHOLE_VOCABULARY, SamplingParams
from tests.engine.harness import run
from tests.engine.test_media import assert_close
from tests.engine.test_pictures import engine_of, logprobs_of, prepared
from tests.mobile_net_sample import random_picture
from tests.sound import Clip, random_clips
from tests.tiny_3n import PICTURE_IDS, PICTURE_TABLE, ROWS_PER_CLIP, SOUND_IDS, SOUND_TABLE, Tiny3n, make_tiny_3n


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny3n:
    return make_tiny_3n(tmp_path_factory.mktemp("3n"))


@pytest.fixture(scope="module")
def loaded(tiny: Tiny3n) -> LoadedModel:
    return load_model(ModelConfig(model=str(tiny.folder), device="cpu", max_model_len=512))


def prepared_clip(clip: Clip) -> PreparedMedia:
    array = MediaArray.from_numpy(clip["features"].numpy())
    return PreparedMedia(
        kind="audio", content_key=f"sound {hash(array.data)}", num_tokens=ROWS_PER_CLIP, arrays={"features": array}
    )


def request_of(items: Sequence[PreparedMedia], request_id: str = "x", max_tokens: int = 1) -> Request:
    """Text, each item with a few words before it, and no words behind the last."""
    token_ids, spans = [2, *range(20, 40)], []
    for item in items:
        begin, soft, end = PICTURE_IDS if item.kind == "image" else SOUND_IDS
        spans.append(item.span(len(token_ids) + 4))
        token_ids += [7, 8, 9, begin, *[soft] * item.num_tokens, end]
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(token_ids),
        sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens, prompt_logprobs=WHOLE_VOCABULARY),
        media=tuple(spans),
        contents=tuple({item.content_key: item for item in items}.values()),
    )


@torch.no_grad()
def expected_logprobs(tiny: Tiny3n, loaded: LoadedModel, request: Request, rows: Sequence[Tensor]) -> Tensor:
    """Of every position, by transformers. `rows`: those of each span."""
    token_ids = torch.tensor(request.prompt_token_ids)
    sees, hears = (torch.isin(token_ids, torch.tensor(ids)) for ids in (PICTURE_TABLE, SOUND_TABLE))
    embeddings = tiny.oracle.model.embed_tokens(token_ids)
    embeddings[sees] = loaded.towers["image"].embedder.look_up(token_ids[sees] - PICTURE_TABLE.start)
    if hears.any():
        embeddings[hears] = tiny.sound.oracle["embed_audio"](input_ids=token_ids[hears][None])[0]
    for span, made in zip(request.media, rows, strict=True):
        embeddings[span.first : span.end] = made
    per_layer = tiny.oracle.model.get_per_layer_inputs(torch.where(sees | hears, 0, token_ids)[None])
    logits = tiny.oracle(inputs_embeds=embeddings[None], per_layer_inputs=per_layer, use_cache=False).logits[0]
    return torch.log_softmax(logits, dim=-1)


def test_every_position_of_a_picture_is_that_of_transformers(tiny: Tiny3n, loaded: LoadedModel) -> None:
    """Given the rows, which tests/model/test_mobile_net.py compares with timm's."""
    picture = {"pixels": random_picture()}
    request = request_of([prepared(picture, loaded)])
    with torch.no_grad():
        rows = loaded.towers["image"]([picture])
    expected = expected_logprobs(tiny, loaded, request, rows)
    answer = run(engine_of(loaded, max_num_batched_tokens=100), [request])["x"]
    assert_close(logprobs_of(answer, loaded.spec.vocab_size), expected[:-1])
    assert {*PICTURE_TABLE, *SOUND_TABLE} <= set(loaded.spec.media_token_ids), "what only towers embed is never sampled"


def test_every_position_of_sound_is_that_of_transformers(tiny: Tiny3n, loaded: LoadedModel) -> None:
    """A clip has a fixed number of rows, and the token behind it is one whose embedding the tower has."""
    clips = [clip for clip in random_clips(16) if len(clip["features"]) in (37, 70)]
    request = request_of([prepared_clip(clip) for clip in clips])
    expected = expected_logprobs(tiny, loaded, request, [tiny.sound.rows(clip) for clip in clips])
    for budget in (512, 26):
        answer = run(engine_of(loaded, max_num_batched_tokens=budget), [request])["x"]
        assert_close(logprobs_of(answer, loaded.spec.vocab_size), expected[:-1])


@pytest.mark.parametrize("captured", [{}, {"graph_sizes": (1, 4), "piece_sizes": (64, 512)}])
def test_company_changes_no_bit_of_sound(tiny: Tiny3n, captured: dict[str, tuple[int, ...]]) -> None:
    """Several clips of a step would be filled up to the longest, and their sums cut in other places."""
    config = ModelConfig(model=str(tiny.folder), device="cpu", max_model_len=512, dtype="float32")
    loaded = load_model(config, arithmetic=BATCH_INVARIANT)
    draw = torch.Generator().manual_seed(0)
    clips = [prepared_clip({"features": torch.randn(count, 16, generator=draw)}) for count in (431, 397, 501, 260)]
    requests = [request_of([clip], str(index)) for index, clip in enumerate(clips)]
    engine = engine_of(loaded, max_num_encoded_rows=512, **captured)
    together = run(engine, requests, arrivals={request.request_id: 0 for request in requests})
    hearing = replace(loaded, towers={"audio": loaded.towers["audio"]})  # to capture the other takes seconds
    for request in requests:
        (expected,) = run(engine_of(hearing, **captured), [request]).values()
        assert together[request.request_id].prompt_logprobs == expected.prompt_logprobs
