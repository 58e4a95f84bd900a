"""Pictures over HTTP, in front of a scripted engine: what reaches the engine, what is refused, and who waits."""

import base64
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from facet.chat.media_parts import MediaPart
from facet.errors import RequestError
from facet.prepared_media import PreparedMedia
from facet.prompts.media_reading import NUM_THREADS, MediaReader
from tests.media.hostile_pictures import cases, good_files
from tests.media.sounds import tones, wav
from tests.prompts.media_models import make_gemma4
from tests.server.conftest import Scripted
from tests.server.running import RunningServer, wait_until
from tests.server.scripted_engine import ScriptedEngine
from tests.server.test_metrics import metrics_of

CHAT = "/v1/chat/completions"
FILES = good_files()
NUM_HOSTILE = int(os.environ.get("FACET_HOSTILE_CASES", "40"))


def picture(name: str = "png", **settings: Any) -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(FILES[name]).decode()}"
    return {"type": "image_url", "image_url": {"url": url, **settings}}


def at(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.fixture(scope="module")
def served(scripted: Scripted) -> Iterator[tuple[RunningServer, ScriptedEngine]]:
    asked = make_gemma4()
    model = {name: getattr(asked, name) for name in ("tokenizer", "template", "media")}
    model |= {"max_media": {"image": 3}, "eos_token_ids": (1,)}
    with scripted([40, 41, 1], model=model, allowed_media_domains=("pictures.example",)) as found:
        yield found


def ask(server: RunningServer, *content: Any, **fields: Any) -> Any:
    return server.post(CHAT, {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 4, **fields})


def test_pictures_reach_the_engine_as_spans(served: tuple[RunningServer, ScriptedEngine]) -> None:
    server, engine = served
    engine.submitted.clear()
    first, second = picture("png", detail="low"), picture("jpeg")
    response = ask(server, "one", first, "two", second, mm_processor_kwargs={"max_soft_tokens": 140})
    assert response.status_code == 200, response.text
    (request,) = engine.submitted
    assert [(span.kind, span.length, span.attends_both_ways) for span in request.media] == [
        ("image", 63, True),
        ("image", 126, True),
    ]
    assert request.media[0].content_key != request.media[1].content_key
    usage = response.json()["usage"]
    assert usage["prompt_tokens"] == len(request.prompt_token_ids) > 63 + 126
    assert usage["prompt_tokens_details"].pop("cached_tokens") >= 0
    assert usage["prompt_tokens_details"] == {"image_tokens": 63 + 126}
    again = ask(server, "one", first, "two", second, mm_processor_kwargs={"max_soft_tokens": 140})
    assert again.status_code == 200
    assert engine.submitted[1].media == request.media


def test_the_time_to_prepare_media_is_told(served: tuple[RunningServer, ScriptedEngine]) -> None:
    server, _ = served
    name = "facet:media_preparation_seconds"

    def told() -> tuple[float, float]:
        values = {key.partition("{")[0]: value for key, value in metrics_of(server).items()}
        return values[f"{name}_count"], values[f"{name}_sum"]

    count, seconds = told()
    assert ask(server, "one", picture("png"), picture("jpeg")).status_code == 200
    assert ask(server, {"type": "text", "text": "none"}).status_code == 200
    after, more_seconds = told()
    assert after == count + 1, "once a conversation, if it has any"
    assert more_seconds > seconds


def test_what_pictures_cost_can_be_asked_before(served: tuple[RunningServer, ScriptedEngine]) -> None:
    server, engine = served
    engine.submitted.clear()
    body = {
        "messages": [{"role": "user", "content": ["one", picture("png", detail="low"), "two", picture("jpeg")]}],
        "mm_processor_kwargs": {"max_soft_tokens": 140},
    }
    counted = server.post("/tokenize", body).json()
    assert counted["media"] == [{"kind": "image", "num_tokens": 63}, {"kind": "image", "num_tokens": 126}]
    assert not engine.submitted
    assert server.post(CHAT, {**body, "max_tokens": 4}).status_code == 200
    assert tuple(counted["tokens"]) == engine.submitted[0].prompt_token_ids
    refused = server.post("/tokenize", {"messages": [{"role": "user", "content": [at("data:image/svg+xml,<svg/>")]}]})
    assert (refused.status_code, "is SVG" in refused.text) == (400, True)
    assert server.post("/tokenize", {"prompt": "one"}).json()["media"] == []


def test_the_page_learns_what_the_model_reads(
    served: tuple[RunningServer, ScriptedEngine], real_server: RunningServer
) -> None:
    assert served[0].get("/engine/live").json()["model"]["media"] == ["image", "audio", "video"]
    assert real_server.get("/engine/live").json()["model"]["media"] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([at("data:image/png;base64,AAAA")], "is in no format that is known here"),
        ([at("data:image/svg+xml,<svg/>")], "is SVG"),
        ([at("https://other.example/a.png")], "--allowed-media-domains"),
        ([at("http://127.0.0.1/a.png")], "may not download from there"),
        ([at("file:///etc/passwd")], "--allowed-local-media-path"),
        ([picture()] * 4, "a prompt may hold 3 of kind image"),
        ([picture(detail="huge")], "low, auto or high"),
        ([picture(max_soft_tokens=3)], "one of 70, 140"),
        ([{"type": "image", "image": "/etc/passwd"}], "has no scheme"),
        ([{"type": "file", "file": {"file_data": base64.b64encode(b"%PDF-1.4").decode()}}], "is a PDF"),
    ],
)
def test_refused(served: tuple[RunningServer, ScriptedEngine], content: list[Any], words: str) -> None:
    server, engine = served
    engine.submitted.clear()
    response = ask(server, "look", *content)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"] == "messages"
    assert not engine.submitted
    assert ask(server, "and text?").status_code == 200


def test_hostile_pictures_are_refused_in_words_and_nobody_else_notices(
    served: tuple[RunningServer, ScriptedEngine],
) -> None:
    """Several at the same time, and beside them requests that have none. All of them: FACET_HOSTILE_CASES=400."""
    server, _ = served
    chosen = random.Random(5).sample(every := cases(), min(NUM_HOSTILE, len(every)))

    def send(data: bytes) -> Any:
        return ask(server, "look", at(f"data:image/png;base64,{base64.b64encode(data).decode()}"))

    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(send, data) for _, data, _ in chosen]
        assert {ask(server, f"text {index}").status_code for index in range(20)} == {200}
        for (name, _, expected), future in zip(chosen, sent, strict=True):
            response = future.result()
            assert response.status_code in {"refused": (400,), "opened": (200,), "either": (200, 400)}[expected], name
            if response.status_code == 400:
                error = response.json()["error"]
                assert error["message"].startswith("messages[0].content[1].image_url.url "), (name, error)
                assert error["param"] == "messages", name
    assert ask(server, "look", picture()).status_code == 200


def test_a_server_that_reads_text_only(scripted: Scripted) -> None:
    with scripted("hello") as (server, engine):
        response = ask(server, "look", picture())
        assert response.status_code == 400
        assert "reads text only, no images" in response.json()["error"]["message"]
        response = ask(server, "look", mm_processor_kwargs={"max_soft_tokens": 70})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "mm_processor_kwargs"
        assert not engine.submitted


def test_a_slow_picture_keeps_nobody_waiting(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are threads for prompts."""
    released = threading.Event()

    def read(self: MediaReader, part: MediaPart) -> tuple[PreparedMedia, ...]:
        assert released.wait(60)
        return (PreparedMedia(kind="image", content_key="k", num_tokens=3, arrays={}),)

    monkeypatch.setattr(MediaReader, "read", read)
    asked = make_gemma4()
    model = {name: getattr(asked, name) for name in ("tokenizer", "template", "media")} | {"eos_token_ids": (1,)}
    with scripted([40, 1], model=model, num_tokenizer_threads=1) as (server, engine), ThreadPoolExecutor(6) as pool:
        slow = [pool.submit(ask, server, "look", picture()) for _ in range(6)]
        try:
            assert [ask(server, f"text {index}").status_code for index in range(3)] == [200] * 3
            assert len(engine.submitted) == 3
        finally:
            released.set()
        assert [future.result().status_code for future in slow] == [200] * 6


def test_a_slow_host_keeps_nobody_else_waiting(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of its pictures requests ask for; and one request leaves threads for the pictures of others."""
    released, asked_for = threading.Event(), []

    def read(self: MediaReader, part: MediaPart) -> tuple[PreparedMedia, ...]:
        asked_for.append(part.url)
        if part.url is not None and "slow" in part.url:
            assert released.wait(60)
        return (PreparedMedia(kind="image", content_key="k", num_tokens=3, arrays={}),)

    monkeypatch.setattr(MediaReader, "read", read)
    asked = make_gemma4()
    model = {name: getattr(asked, name) for name in ("tokenizer", "template", "media")} | {"eos_token_ids": (1,)}
    slow, fast = at("https://slow.example/picture"), at("HTTPS://fast.example/picture")
    with scripted([40, 1], model=model) as (server, _), ThreadPoolExecutor(6) as pool:
        first = pool.submit(ask, server, "look", *[slow] * 12)
        try:
            wait_until(lambda: len(asked_for) == NUM_THREADS // 2)
            assert ask(server, "look", fast).status_code == 200
            others = [pool.submit(ask, server, "look", *[slow] * 12) for _ in range(3)]
            wait_until(lambda: len(asked_for) == NUM_THREADS + 1)
            assert ask(server, "look", picture()).status_code == 200
            assert not first.done()
        finally:
            released.set()
        assert [future.result().status_code for future in (first, *others)] == [200] * 4


def test_what_nobody_waits_for_is_not_read(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """One item of a request was refused, so that its others are of no use."""
    released, asked_for = threading.Event(), []

    def read(self: MediaReader, part: MediaPart) -> tuple[PreparedMedia, ...]:
        asked_for.append(part.where)
        if part.url == "http://pictures.example/none":
            raise RequestError("There is none.", field="messages")
        assert released.wait(60)
        return (PreparedMedia(kind="image", content_key="k", num_tokens=3, arrays={}),)

    monkeypatch.setattr(MediaReader, "read", read)
    asked = make_gemma4()
    model = {name: getattr(asked, name) for name in ("tokenizer", "template", "media")} | {"eos_token_ids": (1,)}
    with scripted([40, 1], model=model) as (server, _):
        try:
            refused = ask(server, at("http://pictures.example/none"), *[picture()] * 30)
        finally:
            released.set()
        assert refused.status_code == 400
        assert ask(server, picture()).status_code == 200
    assert len(asked_for) < 20


def test_every_api_says_which_picture_is_broken(served: tuple[RunningServer, ScriptedEngine]) -> None:
    """By the place that it has in the request, not in the conversation that is made of it."""
    server, _ = served
    good, bad = base64.b64encode(FILES["png"]).decode(), base64.b64encode(b"\x89PNG\r\n\x1a\nbad").decode()
    bad_url = f"data:;base64,{bad}"
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": bad}}
    linked = {"type": "image", "source": {"type": "url", "url": bad_url}}
    text, said = {"type": "input_text", "text": "b"}, [{"role": "user", "content": "a"}]
    calls: list[tuple[str, dict[str, Any], str]] = [
        (CHAT, {"messages": [{"role": "user", "content": [at(bad_url)]}]}, "messages[0].content[0].image_url.url"),
        ("/v1/messages", {"content": [image]}, "messages[1].content[0].source.data"),
        ("/v1/messages", {"content": [linked]}, "messages[1].content[0].source.url"),
        ("/v1/responses", {"content": [text, {"type": "input_image", "image_url": bad_url}]},
         "input[1].content[1].image_url"),
        ("/v1/responses", {"content": [text, {"type": "input_image", "file_id": "f"}]},
         "input[1].content[1] has a file_id, but"),
        ("/v1/responses", {"content": [{"type": "input_image"}]}, "input[1].content[0] has no image_url."),
        ("/v1/responses", {"content": [{"type": "input_file", "file_data": bad}]}, "input[1].content[0].file_data"),
        ("/api/chat", {"content": "b", "images": [good, bad]}, "messages[1].images[1]"),
        ("/api/generate", {"prompt": "a", "images": [good, bad]}, "images[1]"),
    ]  # fmt: skip
    for path, body, where in calls:
        if "content" in body:
            turns = [*said, {"role": "user", **body}]
            body = {"input": turns, "instructions": "c"} if path == "/v1/responses" else {"messages": turns}
        if path == "/v1/messages":
            body |= {"system": "c", "max_tokens": 4}
        response = server.post(path, body)
        assert response.status_code == 400, (path, response.text)
        error = response.json()["error"]
        message = error if isinstance(error, str) else error["message"]
        assert message.startswith(f"{where} "), (path, message)


def test_a_picture_through_every_api(served: tuple[RunningServer, ScriptedEngine]) -> None:
    """The same prompt and the same picture, whichever API it came through."""
    server, engine = served
    data = base64.b64encode(FILES["png"]).decode()
    url = f"data:image/png;base64,{data}"
    source = {"type": "base64", "media_type": "image/png", "data": data}
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": [picture(), {"type": "text", "text": "look"}]}]},
        "/v1/messages": {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "look"}]}
            ],
            "max_tokens": 4,
        },
        "/v1/responses": {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "look"}],
                }
            ]
        },
        "/api/chat": {"messages": [{"role": "user", "content": "look", "images": [data]}], "stream": False},
        "/api/generate": {"prompt": "look", "images": [data], "stream": False},
    }
    engine.submitted.clear()
    for path, body in bodies.items():
        response = server.post(path, body)
        assert response.status_code == 200, (path, response.text)
    first, *others = engine.submitted
    assert len(first.media) == 1
    for other in others:
        assert (other.prompt_token_ids, other.media) == (first.prompt_token_ids, first.media)
    source["data"] = "AAAA"
    refused = server.post("/v1/messages", bodies["/v1/messages"])
    assert (refused.status_code, refused.json()["type"]) == (400, "error")


def test_pictures_in_the_results_of_tools(served: tuple[RunningServer, ScriptedEngine]) -> None:
    """The same prompt through every API; pictures follow the response that they are part of."""
    server, engine = served
    data = base64.b64encode(FILES["png"]).decode()
    url = f"data:image/png;base64,{data}"
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = {"role": "assistant", "tool_calls": [call]}
    source = {"type": "base64", "media_type": "image/png", "data": data}
    result = [{"type": "text", "text": "seen"}, {"type": "image", "source": source}]
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {
            "messages": [
                {"role": "user", "content": "go"},
                said,
                {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "seen"}, picture()]},
            ]
        },
        "/v1/messages": {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": result}]},
            ],
            "max_tokens": 4,
        },
        "/v1/responses": {
            "input": [
                {"role": "user", "content": "go"},
                {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "a",
                    "output": [
                        {"type": "input_text", "text": "seen"},
                        {"type": "input_image", "image_url": url},
                    ],
                },
            ]
        },
        "/api/chat": {
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
                {"role": "tool", "tool_name": "look", "content": "seen", "images": [data]},
            ],
            "stream": False,
        },
    }
    engine.submitted.clear()
    for path, body in bodies.items():
        response = server.post(path, body)
        assert response.status_code == 200, (path, response.text)
    first, *others = engine.submitted
    assert [span.kind for span in first.media] == ["image"]
    for other in others:
        assert (other.prompt_token_ids, other.media) == (first.prompt_token_ids, first.media)


def test_sound_and_files_where_an_api_has_a_form_for_them(served: tuple[RunningServer, ScriptedEngine]) -> None:
    server, engine = served
    sound = base64.b64encode(wav((tones(0.5, 16_000) * 32_000).astype(np.int16), 16_000)).decode()
    audio = {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}}
    file = {"type": "input_file", "filename": "it.png", "file_data": picture()["image_url"]["url"]}
    engine.submitted.clear()
    answer = server.post("/v1/responses", {"input": [{"role": "user", "content": [audio, file]}]})
    assert answer.status_code == 200, answer.text
    heard = server.post(
        "/api/chat", {"messages": [{"role": "user", "content": "", "images": [sound]}], "stream": False}
    )
    assert heard.status_code == 200, heard.text
    both, alone = engine.submitted
    assert [span.kind for span in both.media] == ["audio", "image"]
    assert [span.kind for span in alone.media] == ["audio"]
    details = answer.json()["usage"]["input_tokens_details"]
    assert [details[f"{span.kind}_tokens"] for span in both.media] == [span.length for span in both.media]
