"""Whole prompts of `tests/spec/make_tiny_media_models.py`: `LLM.chat` makes of files what transformers makes of them.

From bytes to tokens, in all families: ids of the prompt, bytes of every picture, logits inside and behind media, greedy
answers. Built as `tests/model/test_sound_references.py` says, and run the same way:

    FACET_MEDIA_MODELS=DIR pytest tests/offline/test_media_references.py
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from facet import LLM, SamplingParams
from facet.media.jobs import prepare_picture_file
from facet.media.limits import MediaLimits
from facet.media.options import MediaOptions
from facet.media.spec_file import read_media_spec
from facet.offline.outputs import Position, RequestOutput
from facet.sampling_params import WHOLE_VOCABULARY

ROOT = Path(os.environ.get("FACET_MEDIA_MODELS", "/nowhere"))
MODELS = [path.parent.name for path in sorted(ROOT.glob("*/reference.json"))]

if not MODELS:
    pytest.skip("FACET_MEDIA_MODELS names no folder of checkpoints", allow_module_level=True)

# Relative to what is larger than 1: float32 sums in another order.
LOGIT_TOLERANCE = 5e-4

Case = dict[str, Any]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def cases(model: str) -> list[Case]:
    reference = json.loads((ROOT / model / "reference.json").read_text())
    never = dict.fromkeys(reference["suppress_ids"], -100.0)
    return [{**case, "never": never} for case in reference["cases"] if is_served(model, case)]


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    llm = LLM(
        str(ROOT / model), device="cpu", dtype="float32", max_model_len=2048, max_num_batched_tokens=1200,
        kv_cache_memory_bytes=64 << 20, show_progress=False,
    )  # fmt: skip
    yield llm
    llm.close()


def is_served(model: str, case: Case) -> bool:
    """Two are not: a sound longer than the model hears is refused, and clips of Gemma 3n are never padded to the
    longest, as its processor does."""
    sounds = case.get("audio", [])
    if model == "gemma3n":
        return len(sounds) < 2
    return model == "gemma4_12b" or all(sound["samples"] <= 480_000 for sound in sounds)


def part_of(item: dict[str, Any]) -> dict[str, Any]:
    """As a caller writes it."""
    if "text" in item:
        return {"type": "text", "text": item["text"]}
    if "video" not in item:
        ((kind, file),) = item.items()
        return {"type": kind, kind: ROOT / "media" / file}
    if isinstance(item["video"], str):
        return {"type": "video", "video": ROOT / "media" / item["video"], "num_frames": item["num_frames"]}
    frames = [Image.open(ROOT / "media" / file) for file in item["video"]]
    return {"type": "video", "video": (frames, item["fps"])}


def ask(llm: LLM, cases: list[Case], **sampling: Any) -> list[RequestOutput]:
    """All at once where nothing else is asked of the processor."""
    outputs: dict[str, RequestOutput] = {}
    for options in {json.dumps(case["options"]): case["options"] for case in cases}.values():
        alike = [case for case in cases if case["options"] == options]
        messages: Any = [[{"role": "user", "content": [part_of(item) for item in case["content"]]}] for case in alike]
        params = [
            SamplingParams(
                temperature=0,
                max_tokens=len(case["continuation"]),
                ignore_eos=True,
                logit_bias=case["never"],  # ids that the reference never chose; some are no media's
                **sampling,
            )
            for case in alike
        ]
        answers = llm.chat(messages, params, mm_processor_kwargs=options or None, use_tqdm=False)
        outputs |= dict(zip((case["name"] for case in alike), answers, strict=True))
    return [outputs[case["name"]] for case in cases]


def test_tokens(llm: LLM, cases: list[Case]) -> None:
    """In company, and once more with prefixes and pictures from the caches."""
    for _ in range(2):
        for case, answer in zip(cases, ask(llm, cases), strict=True):
            expected = [token for token, count in case["input_ids"] for _ in range(count)]
            assert answer.prompt_token_ids == expected, case["name"]
            assert answer.outputs[0].token_ids == case["continuation"], case["name"]


def test_logits(llm: LLM, cases: list[Case]) -> None:
    for case, answer in zip(cases, ask(llm, cases, prompt_logprobs=WHOLE_VOCABULARY), strict=True):
        assert answer.prompt_logprobs is not None
        for place, best in case["positions"].items():
            if int(place) + 1 < len(answer.prompt_logprobs):
                assert_close(answer.prompt_logprobs[int(place) + 1], best, f"{case['name']} at {place}")


def assert_close(position: Position | None, best: list[list[Any]], where: str) -> None:
    """The likeliest five. Of probabilities only the differences tell what logits were; both of a pair may be off."""
    assert position is not None
    (first, first_logit), *_ = best
    for token, logit in best:
        ours = position[token].logprob - position[first].logprob
        allowed = LOGIT_TOLERANCE * (max(1, abs(logit)) + max(1, abs(first_logit)))
        assert abs(ours - (logit - first_logit)) <= allowed, where


def test_pictures(model: str, cases: list[Case]) -> None:
    spec = read_media_spec(ROOT / model).pictures
    assert spec is not None
    for case in cases:
        options = MediaOptions(
            max_soft_tokens=case["options"].get("max_soft_tokens"), pan_and_scan=case["options"].get("do_pan_and_scan")
        )
        found = [
            hashlib.sha256((made.arrays.get("patches") or made.arrays["pixels"]).data).hexdigest()
            for item in case["content"]
            if "image" in item
            for made in prepare_picture_file(
                (ROOT / "media" / item["image"]).read_bytes(), spec, options, MediaLimits(), "it"
            )
        ]
        assert found == [picture["pixels_sha256"] for picture in case.get("images", [])], case["name"]
