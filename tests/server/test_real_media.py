"""Pictures, sound and video with a real engine and a tiny model: HTTP in, HTTP out, and the same from Python."""

import base64
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from facet import LLM, RequestError, SamplingParams
from facet.config import ModelConfig, ServerConfig
from facet.engine.engine import Engine
from facet.media.jobs import prepare_picture_file, prepare_sound_file, prepare_video_file
from facet.media.limits import MediaLimits
from facet.media.options import MediaOptions
from facet.media.spec import MediaSpec
from facet.media.spec_file import read_media_spec
from facet.model.loader import load_model
from facet.prepared_media import PreparedMedia
from facet.request import Request
from facet.server.transcriptions.instructions import transcribe
from facet.tokens import Tokenizer
from tests.engine.harness import make_engine, run
from tests.media.hostile_pictures import good_files
from tests.media.sounds import encoded_video, tones, wav
from tests.server.running import RunningServer, running_with_engine
from tests.tiny_models import TinyModel
from tests.tokens.gemma_like import GEMMA4_TOKENS, write_tokenizer_folder

CHAT = "/v1/chat/completions"
TEMPLATE = Path(__file__).parent.parent / "chat" / "gemma4_like.jinja"
SETTINGS: dict[str, Any] = dict(
    device="cpu", max_model_len=512, kv_cache_memory_bytes=64 << 20, max_num_batched_tokens=128
)
SAMPLING: dict[str, Any] = dict(temperature=0, max_tokens=8, ignore_eos=True)
OPTIONS: dict[str, Any] = dict(max_soft_tokens=140, num_frames=2)
# What stands for media in the tiny model's config, and in its vocabulary.
TOKEN_IDS = {
    "boi_token_id": "<|image>",
    "image_token_id": "<|image|>",
    "eoi_token_id": "<image|>",
    "boa_token_id": "<|audio>",
    "audio_token_id": "<|audio|>",
    "eoa_token_index": "<audio|>",
    "video_token_id": "<|video|>",
}


@dataclass(frozen=True)
class Case:
    """One file: as a part of an HTTP message, as a part from Python, and what the prompt becomes."""

    over_http: dict[str, Any]
    from_python: dict[str, Any]
    prompt: Sequence[str | PreparedMedia]


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with_media")
    shutil.copytree(tiny_model("gemma4_e2b_mm").folder, folder, dirs_exist_ok=True)
    write_tokenizer_folder(folder, control_tokens=GEMMA4_TOKENS)
    shutil.copy(TEMPLATE, folder / "chat_template.jinja")
    (folder / "processor_config.json").write_text(json.dumps({"feature_extractor": {"feature_size": 16}}))
    ids = Tokenizer.from_folder(folder).control_tokens.id_of
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **{name: ids[text] for name, text in TOKEN_IDS.items()}}))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    config = ServerConfig(model=str(folder), disable_log_stats=True, **SETTINGS)
    with running_with_engine(config) as server:
        yield server


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    llm = LLM(str(folder), show_progress=False, **SETTINGS)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    loaded = load_model(ModelConfig(model=str(folder), device="cpu", max_model_len=512))
    return make_engine(loaded.model, towers=loaded.towers)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def make_case(kind: str, media: MediaSpec, folder: Path) -> Case:
    """The expected prompt is put together by hand."""
    before, after = "<bos><|turn>user\none two", "three four<turn|>\n<|turn>model\n"
    options = MediaOptions(max_soft_tokens=OPTIONS["max_soft_tokens"])
    if kind == "image":
        data = good_files()["png"]
        assert media.pictures is not None
        (picture,) = prepare_picture_file(data, media.pictures, options, MediaLimits(), "it")
        return Case(
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_of(data)}"}},
            {"type": "image", "image": Image.open(io.BytesIO(data))},
            (before, picture, after),
        )
    if kind == "audio":
        data = wav((tones(0.7, 16_000) * 32_000).astype(np.int16), 16_000)
        (folder / "clip.wav").write_bytes(data)
        assert media.sounds is not None
        (sound,) = prepare_sound_file(data, media.sounds, MediaLimits(), "it")
        return Case(
            {"type": "input_audio", "input_audio": {"data": base64_of(data), "format": "wav"}},
            {"type": "audio", "audio": str(folder / "clip.wav")},
            (before, sound, after),
        )
    data = encoded_video(30, 15)
    (folder / "clip.mp4").write_bytes(data)
    assert media.videos is not None
    frames = prepare_video_file(data, media.videos, MediaOptions(num_frames=2), MediaLimits(), "it")
    first, second = frames
    return Case(
        {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{base64_of(data)}"}},
        {"type": "video", "video": str(folder / "clip.mp4")},
        (f"{before}00:00 ", first, " 00:01 ", second, after),
    )


def request_of(case: Case, media: MediaSpec, tokenizer: Tokenizer) -> Request:
    token_ids: list[int] = []
    spans = []
    for part in case.prompt:
        if isinstance(part, str):
            token_ids += tokenizer.encode(part, add_special_tokens=False)
            continue
        tokens = media.tokens[part.kind]
        spans.append(part.span(len(token_ids) + 1))
        token_ids += [tokens.begin, *[tokens.soft] * part.num_tokens, tokens.end]
    return Request(
        request_id="x",
        prompt_token_ids=tuple(token_ids),
        sampling=SamplingParams(**SAMPLING),
        media=tuple(spans),
        contents=tuple(part for part in case.prompt if isinstance(part, PreparedMedia)),
    )


def conversation(part: dict[str, Any]) -> list[dict[str, Any]]:
    words = [{"type": "text", "text": text} for text in ("one two", "three four")]
    return [{"role": "user", "content": [words[0], part, words[1]]}]


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_both_apis_say_what_the_engine_says(
    kind: str, folder: Path, server: RunningServer, llm: LLM, engine: Engine, tmp_path: Path
) -> None:
    media = read_media_spec(folder)
    case = make_case(kind, media, tmp_path)
    request = request_of(case, media, llm.get_tokenizer())
    expected = run(engine, [request])["x"].token_ids
    body = {"messages": conversation(case.over_http), "mm_processor_kwargs": OPTIONS, "return_token_ids": True}
    for _ in range(2):  # computed, then with a prefix from the cache
        response = server.post(CHAT, {**body, **SAMPLING})
        assert response.status_code == 200, response.text
        answer = response.json()
        assert answer["prompt_token_ids"] == list(request.prompt_token_ids)
        assert answer["choices"][0]["token_ids"] == expected
        assert answer["usage"]["prompt_tokens"] == len(request.prompt_token_ids)
    (output,) = llm.chat(
        conversation(case.from_python), SamplingParams(**SAMPLING), mm_processor_kwargs=OPTIONS, use_tqdm=False
    )
    assert output.prompt_token_ids == list(request.prompt_token_ids)
    assert output.outputs[0].token_ids == expected


def test_a_transcription_is_what_the_engine_says(folder: Path, server: RunningServer, tmp_path: Path) -> None:
    part = make_case("audio", read_media_spec(folder), tmp_path).over_http
    sound, limit = base64.b64decode(part["input_audio"]["data"]), 8
    text = {"type": "text", "text": transcribe("English")}
    asked = {"messages": [{"role": "user", "content": [text, part]}], "temperature": 0, "max_tokens": limit}
    expected = server.post(CHAT, asked).json()
    form = {"language": "en", "max_completion_tokens": str(limit)}
    with server.client() as client:
        response = client.post("/v1/audio/transcriptions", files={"file": ("it.wav", sound)}, data=form)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["text"] == (expected["choices"][0]["message"]["content"] or "").strip()
    assert answer["usage"]["output_tokens"] == expected["usage"]["completion_tokens"]
    assert answer["usage"]["input_tokens"] == expected["usage"]["prompt_tokens"]


def test_without_towers_media_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    llm = LLM(str(folder), language_model_only=True, show_progress=False, **SETTINGS)
    try:
        for kind, words in (("image", "no images"), ("audio", "no audio"), ("video", "no video")):
            case = make_case(kind, read_media_spec(folder), tmp_path)
            with pytest.raises(RequestError, match=f"reads text only, {words}"):
                llm.chat(conversation(case.from_python), use_tqdm=False)
    finally:
        llm.close()


def test_values_beside_a_text(folder: Path, llm: LLM, tmp_path: Path) -> None:
    """A picture as a file, a Pillow image and an array; a sound as a file and as samples: all the same."""
    picture = Image.open(io.BytesIO(good_files()["png"])).convert("RGB")
    picture.save(tmp_path / "it.png")
    sound = (tones(0.7, 16_000) * 32_000).astype(np.int16)
    (tmp_path / "it.wav").write_bytes(wav(sound, 16_000))
    samples = sound[:, 0].astype(np.float32) / 32_768
    for kind, placeholder, values in (
        ("image", "<|image|>", (str(tmp_path / "it.png"), picture, np.asarray(picture), good_files()["png"])),
        ("audio", "<|audio|>", (tmp_path / "it.wav", samples, (samples, 16_000))),
    ):
        prompts: list[Any] = [
            {"prompt": f"one {placeholder} two", "multi_modal_data": {kind: value}} for value in values
        ]
        first, *others = llm.generate(prompts, SamplingParams(**SAMPLING), use_tqdm=False)
        assert len(first.prompt_token_ids) > 10
        for other in others:
            assert other.prompt_token_ids == first.prompt_token_ids
            assert other.outputs[0].token_ids == first.outputs[0].token_ids
    with pytest.raises(RequestError, match="an array of one channel of floats"):
        llm.generate({"prompt": "<|audio|>", "multi_modal_data": {"audio": sound}}, use_tqdm=False)


# In the form of MMMU: a picture, a question, choices.
SEEN = tuple(
    (name, f"<image 1> What is {name}?\nA. one\nB. two\nC. three\nAnswer:") for name in ("png", "jpeg", "webp")
)
NUM_ANSWER_TOKENS = 6


@pytest.fixture(scope="module")
def transformers_says(
    folder: Path, server: RunningServer, tiny_model: Callable[[str], TinyModel]
) -> Callable[[bytes, str], str]:
    tokenizer, media = Tokenizer.from_folder(folder), read_media_spec(folder)
    assert media.pictures is not None

    def answer(data: bytes, question: str) -> str:
        assert media.pictures is not None
        # As lm_eval asks for it.
        (picture,) = prepare_picture_file(data, media.pictures, MediaOptions(detail="auto"), MediaLimits(), "it")
        prompt = server.post("/tokenize", {"messages": lm_eval_messages(data, question)}).json()["tokens"]
        said = transformers_answer(tiny_model("gemma4_e2b_mm"), prompt, picture, media, num_tokens=NUM_ANSWER_TOKENS)
        return tokenizer.decode(said)

    return answer


def lm_eval_messages(data: bytes, question: str) -> list[dict[str, Any]]:
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64_of(data)}", "detail": "auto"}}
    return [{"role": "user", "content": [url, {"type": "text", "text": question}]}]


def as_png(name: str) -> bytes:
    file = io.BytesIO()
    Image.open(io.BytesIO(good_files()[name])).convert("RGB").save(file, "PNG")
    return file.getvalue()


def test_questions_about_pictures_are_answered_as_by_transformers(
    server: RunningServer, transformers_says: Callable[[bytes, str], str]
) -> None:
    """What lm_eval sends, without the package."""
    for name, question in SEEN:
        data = as_png(name)
        body = {"messages": lm_eval_messages(data, question), "max_tokens": NUM_ANSWER_TOKENS, "temperature": 0}
        answer = server.post(CHAT, {**body, "seed": 1234}).json()
        assert answer["choices"][0]["message"]["content"] == transformers_says(data, question)


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm_eval is not installed")
def test_an_mmmu_style_task_through_lm_eval(
    folder: Path, server: RunningServer, transformers_says: Callable[[bytes, str], str], tmp_path: Path
) -> None:
    """Made-up questions about made-up pictures, with choices; answers are those of transformers, word for word."""
    entries = [{"question": question, "image": f"{name}.png"} for name, question in SEEN]
    for name, _ in SEEN:
        (tmp_path / f"{name}.png").write_bytes(as_png(name))
    (tmp_path / "data.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    (tmp_path / "utils.py").write_text(
        "from pathlib import Path\nfrom PIL import Image\n"
        "def images(doc):\n    return [Image.open(Path(__file__).parent / doc['image'])]\n"
    )
    (tmp_path / "seen.yaml").write_text(
        "task: seen\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path / 'data.jsonl'}}}}}\n"
        "test_split: test\noutput_type: generate_until\ndoc_to_text: '{{question}}'\ndoc_to_target: A\n"
        "doc_to_image: !function utils.images\n"
        f"generation_kwargs: {{until: [], max_gen_toks: {NUM_ANSWER_TOKENS}, do_sample: false}}\n"
        "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]\n"
    )
    subprocess.run(
        [sys.executable, "-m", "lm_eval", "--model", "local-chat-completions", "--apply_chat_template",
         "--model_args", f"model={folder},base_url={server.url}{CHAT},max_images=7,num_concurrent=2",
         "--include_path", str(tmp_path), "--tasks", "seen", "--log_samples", "--output_path", str(tmp_path / "out")],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")},
        check=True,
        capture_output=True,
        timeout=280,
    )  # fmt: skip
    (path,) = (tmp_path / "out").rglob("samples_seen_*.jsonl")
    samples = {sample["doc"]["image"]: sample for sample in map(json.loads, path.read_text().splitlines())}
    for entry in entries:
        ((text,),) = samples[entry["image"]]["resps"]
        assert text == transformers_says((tmp_path / entry["image"]).read_bytes(), entry["question"])


@torch.no_grad()
def transformers_answer(
    tiny: TinyModel, prompt: list[int], picture: PreparedMedia, media: MediaSpec, *, num_tokens: int
) -> list[int]:
    """Its likeliest tokens, of those that are no placeholder of media."""
    ids = list(prompt)
    patches, places = (torch.from_numpy(picture.arrays[name].numpy().copy()) for name in ("patches", "positions"))
    soft = media.tokens["image"].soft
    never = {token for tokens in media.tokens.values() for token in (tokens.begin, tokens.soft, tokens.end)}
    image_id = tiny.oracle.config.image_token_id
    for _ in range(num_tokens):
        given = torch.tensor([[image_id if token == soft else token for token in ids]])
        logits = tiny.oracle(
            given,
            pixel_values=patches[None].float() / 255,
            image_position_ids=places[None].long(),
            mm_token_type_ids=(given == image_id).long(),
            use_cache=False,
        ).logits[0, -1]
        logits[list(never)] = -torch.inf
        ids.append(int(logits.argmax()))
        if ids[-1] == 1:
            break
    return [token for token in ids[len(prompt) :] if token != 1]
