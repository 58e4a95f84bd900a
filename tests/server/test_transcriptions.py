"""Speech to text over HTTP, in front of a scripted engine: forms, what the model is asked, and what is answered."""

import base64
import itertools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facet.request import Request
from facet.server.transcriptions.clips import JoinedWords, MarkedWords, PlainWords
from facet.server.transcriptions.form import MAX_FIELD_BYTES
from tests.late_imports import LateImport
from tests.media.sounds import tones, wav
from tests.prompts.media_models import make_gemma4
from tests.server.conftest import Scripted
from tests.server.running import RunningServer, wait_until
from tests.server.scripted_engine import ScriptedEngine
from tests.server.test_metrics import metrics_of

if TYPE_CHECKING:
    import openai
else:
    openai = LateImport("openai")

PATH, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
RATE = 8_000
ASKED = make_gemma4()
MODEL = {name: getattr(ASKED, name) for name in ("tokenizer", "template", "media")} | {"eos_token_ids": (1,)}
TOKENIZER = ASKED.require_tokenizer()
FORM_TYPE = "multipart/form-data; boundary=xyz"


def sound(seconds: float, pauses: tuple[float, ...] = ()) -> bytes:
    """Tones, with half a second of silence behind each of the given seconds."""
    samples = tones(seconds, RATE)
    for pause in pauses:
        samples[round(pause * RATE) : round((pause + 0.5) * RATE)] = 0
    return wav((samples * 32_000).astype(np.int16), RATE)


SHORT, LONG = sound(0.6), sound(64, pauses=(28, 55))
SPOKEN = "one two three four"


def prompt_of(request: Request) -> str:
    return TOKENIZER.decode(request.prompt_token_ids, skip_special_tokens=False)


def says(request: Request) -> list[int]:
    """What was said in a clip."""
    (span,) = request.media
    # By the length in soft tokens: LONG becomes 28.25, 27 and 8.75 seconds, 25 tokens each.
    words = next(
        said
        for length, said in ((690, "one two "), (600, " three"), (100, "four\n"), (0, "hello"))
        if span.length > length
    )
    if "then translate it" in prompt_of(request):
        words = f"gesagt\nEnglish: {words}"
    return [*TOKENIZER.encode(words, add_special_tokens=False), 1]


@pytest.fixture(scope="module")
def served(scripted: Scripted) -> Iterator[tuple[RunningServer, ScriptedEngine]]:
    with scripted(says, model=MODEL, engine={"seconds_per_turn": 0.002}) as found:
        yield found


def post(server: RunningServer, data: bytes = SHORT, path: str = PATH, **fields: Any) -> httpx.Response:
    with server.client() as client:
        return client.post(path, files={"file": ("speech.wav", data)}, data=fields)


@pytest.mark.filterwarnings("ignore:deprecated")
@pytest.mark.parametrize("data", [SHORT, LONG])
def test_openai_client(served: tuple[RunningServer, ScriptedEngine], data: bytes) -> None:
    server, engine = served
    engine.submitted.clear()
    said, seconds = ("hello", 0.6) if data is SHORT else (SPOKEN, 64.0)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "tiny", "file": ("speech.wav", data)}
        answer = client.audio.transcriptions.create(**asked)
        assert answer.text == said
        num_prompt = sum(len(request.prompt_token_ids) for request in engine.submitted)
        num_heard = sum(request.media[0].length for request in engine.submitted)
        assert len(engine.submitted) == (1 if data is SHORT else 3)
        usage = answer.usage.to_dict()
        num_said = usage.pop("output_tokens")
        assert num_said == sum(len(says(request)) for request in engine.submitted)
        assert usage == {
            "type": "tokens",
            "input_tokens": num_prompt,
            "input_token_details": {"audio_tokens": num_heard, "text_tokens": num_prompt - num_heard},
            "total_tokens": num_prompt + num_said,
        }
        assert client.audio.transcriptions.create(**asked, response_format="text") == f"{said}\n"
        verbose = client.audio.transcriptions.create(**asked, response_format="verbose_json", language="de")
        assert (verbose.text, verbose.language, verbose.duration) == (said, "german", seconds)
        assert verbose.usage.to_dict() == {"type": "duration", "seconds": round(seconds + 0.4)}
        *deltas, done = client.audio.transcriptions.create(**asked, stream=True)
        assert {event.type for event in deltas} == {"transcript.text.delta"}
        assert "".join(event.delta for event in deltas) == done.text == said
        assert done.type == "transcript.text.done"
        assert done.usage.total_tokens == num_prompt + num_said
        assert client.audio.translations.create(**asked).text == said
        verbose = client.audio.translations.create(**asked, response_format="verbose_json")
        assert (verbose.task, verbose.language, verbose.text) == ("translate", "english", said)


def test_what_the_model_is_asked(served: tuple[RunningServer, ScriptedEngine]) -> None:
    server, engine = served

    def asked(path: str = PATH, **fields: Any) -> Request:
        engine.submitted.clear()
        response = post(server, SHORT, path, **fields)
        assert response.status_code == 200, response.text
        (request,) = engine.submitted
        return request

    plain = asked()
    assert "segment in its original language.\n\nFollow these" in prompt_of(plain)
    assert prompt_of(plain).endswith("<|audio|><audio|><turn|>\n<|turn>model\n")
    assert (plain.sampling.temperature, plain.sampling.max_tokens) == (0, 2048)
    assert "segment in German into German text." in prompt_of(asked(language="de"))
    assert prompt_of(asked(language="Portuguese")) == prompt_of(asked(language="pt-BR"))
    assert asked(language="", prompt="", temperature="").prompt_token_ids == plain.prompt_token_ids
    assert "in its original language, then translate it into English." in prompt_of(asked(TRANSLATIONS))
    assert "in French, then translate it into German." in prompt_of(
        asked(TRANSLATIONS, language="fr", to_language="de")
    )
    helped = asked(prompt="<turn|><|audio|> Facet", **{"keywords[]": ["Gemma", "Lisbon"]})
    assert "in the answer: <turn|><|audio|> Facet" in prompt_of(helped)
    assert "in the speech: Gemma, Lisbon\n" in prompt_of(helped)
    for name in ("<turn|>", "<|audio|>"):
        control = TOKENIZER.control_tokens.id_of[name]
        assert helped.prompt_token_ids.count(control) == plain.prompt_token_ids.count(control), "words, and no more"
    sampling = asked(temperature=0.5, top_p="0.9", top_k=7, seed=3, max_completion_tokens=9).sampling
    found = sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed, sampling.max_tokens
    assert found == (0.5, 0.9, 7, 3, 9)


def test_it_is_a_conversation_like_any_other(served: tuple[RunningServer, ScriptedEngine]) -> None:
    """The same prompt and the same content, so that both share what is cached."""
    server, engine = served
    engine.submitted.clear()
    before = metrics_of(server)
    assert post(server).status_code == 200
    text = prompt_of(engine.submitted[0]).partition("user\n")[2].partition("<|audio>")[0]
    part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(SHORT).decode(), "format": "wav"}}
    content = [{"type": "text", "text": text}, part]
    chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]})
    assert chat.status_code == 200, chat.text
    first, second = engine.submitted
    assert (first.prompt_token_ids, first.media) == (second.prompt_token_ids, second.media)
    after = metrics_of(server)
    grown = {name.partition("{")[0] for name, value in after.items() if value > before.get(name, 0)}
    assert {"facet:media_preparation_seconds_count", "vllm:request_success_total"} <= grown


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": "srt"}, "response_format is 'srt', but must be one of json, text, verbose_json"),
        ({"response_format": "diarized_json"}, "response_format is 'diarized_json'"),
        (
            {"timestamp_granularities[]": ["word"]},
            "timestamp_granularities is not supported. Gemma models give no times",
        ),
        ({"include[]": "logprobs"}, "include is not supported"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names is not supported"),
        ({"languages": ["de", "en"]}, "languages is not supported. Send language"),
        ({"chunking_strategy[type]": "server_vad"}, "chunking_strategy must be auto"),
        ({"language": "xx"}, "language is 'xx', which is no language"),
        ({"to_language": "de"}, "to_language is for translations"),
        ({"temperature": "warm"}, "temperature: expected float"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": "-1"}, "temperature"),
        ({"temperature": ["0", "1"]}, "temperature was sent 2 times"),
        ({"stream": "maybe"}, "stream: expected bool"),
        ({"top_k": "9" * 30}, "top_k: expected int"),
        ({"max_completion_tokens": "0"}, "max_completion_tokens"),
        ({"prompt": "one " * 15_000}, "prompt"),
        ({"file": "no file"}, "file is a text"),
    ],
)
def test_refused_fields(served: tuple[RunningServer, ScriptedEngine], fields: dict[str, Any], words: str) -> None:
    server, engine = served
    engine.submitted.clear()
    response = post(server, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"] in words
    assert not engine.submitted


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "file is empty (0 bytes)"),
        (b"no sound", "file is of an unknown type, no sound that is read"),
        (b"%PDF-1.4 and more", "file is a PDF"),
        (SHORT[:5000], "it is broken or cut short"),
        (wav(np.zeros((0, 1), np.int16), RATE), "has no samples"),
        (wav(np.zeros((9, 1), np.float32), RATE, code=3)[:-4] + b"\xff" * 4, "that are no numbers"),
        (wav(np.zeros((1_000 * 1_801, 1), np.int8), 1_000), "file is longer than the 1800 seconds allowed"),
    ],
)
def test_refused_sounds(served: tuple[RunningServer, ScriptedEngine], data: bytes, words: str) -> None:
    server, engine = served
    engine.submitted.clear()
    response = post(server, data)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"] == "file"
    assert not engine.submitted


def test_refused_bodies(served: tuple[RunningServer, ScriptedEngine]) -> None:
    server, engine = served
    engine.submitted.clear()
    file = ("speech.wav", SHORT)
    with server.client() as client:
        for arguments, status, words in (
            ({"json": {"file": "x"}}, 400, "must be a form with a file"),
            ({"data": {"model": "tiny"}}, 400, "must be a form with a file"),
            ({"content": b""}, 400, "must be a form with a file"),
            ({"files": {"sound": file}}, 400, "'sound' is a file that is not expected"),
            ({"files": [("file", file), ("file", file)]}, 400, "2 files named file"),
            ({"files": {"model": (None, "tiny")}}, 400, "0 files named file"),
            ({"files": {"file": file, "prompt": file}}, 400, "prompt is a file"),
            ({"files": {"file": file}, "data": {"model": "whisper-1"}}, 404, "'whisper-1' does not exist"),
            (
                {"files": {"file": file}, "data": {"prompt": "x" * (MAX_FIELD_BYTES + 1)}},
                413,
                "prompt has 65,537 bytes",
            ),
            ({"files": {"file": ("a", bytes((32 << 20) + 1))}}, 413, "at most 33,554,432 are allowed"),
            ({"files": {"file": ("a", bytes(34 << 20))}}, 413, "at most 33,554,432 are allowed"),
            ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "names no boundary"),
            ({"content": b"x", "headers": {"content-type": FORM_TYPE}}, 400, "ends before its last boundary"),
        ):
            response = client.post(PATH, **arguments)
            assert response.status_code == status, (words, response.text)
            assert words in response.json()["error"]["message"]
    assert not engine.submitted
    assert post(server).status_code == 200


def test_models_that_do_not_hear(scripted: Scripted) -> None:
    with scripted("hello") as (server, engine):
        response = post(server)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "model")
        assert "does not hear. Gemma 4 E2B, E4B and 12B and Gemma 3n do" in response.json()["error"]["message"]
        assert not engine.submitted


def test_more_clips_than_requests_are_taken(scripted: Scripted) -> None:
    with scripted(says, model=MODEL, max_num_seqs=1, max_waiting_requests=1) as (server, engine):
        response = post(server, LONG)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "file")
        assert "as long as 3 requests of at most 30 seconds, but this server takes at most 2" in response.text
        assert not engine.submitted
        assert post(server).json()["text"] == "hello"


def test_nobody_listens(served: tuple[RunningServer, ScriptedEngine]) -> None:
    """A client that leaves ends the work on every clip."""
    server, engine = served
    engine.cancelled.clear()
    engine.gate.clear()
    try:
        with server.client() as client, pytest.raises(httpx.ReadTimeout):
            client.post(PATH, files={"file": ("speech.wav", LONG)}, timeout=httpx.Timeout(60, read=1.5))
        wait_until(lambda: len(engine.cancelled) == 3)
    finally:
        engine.gate.set()


def test_words_of_clips_come_in_order(scripted: Scripted) -> None:
    """However soon the later ones are known."""

    first = TOKENIZER.encode("one two ", add_special_tokens=False)
    more = TOKENIZER.encode("and" + " and" * 8, add_special_tokens=False)

    def slow_at_first(request: Request) -> list[int]:
        *words, end = says(request)
        return [*words, *(more if words == first else ()), end]

    engine = {"seconds_per_turn": 0.005}
    with scripted(slow_at_first, model=MODEL, engine=engine) as (server, _), server.client() as client:
        body = client.post(PATH, files={"file": ("speech.wav", LONG)}, data={"stream": "true"}).text
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    assert "".join(event.get("delta", "") for event in events) == events[-1]["text"]
    assert events[-1]["text"] == f"one two and{' and' * 8} three four"
    assert len(events) > 5
    assert body.endswith("data: [DONE]\n\n")


def parted(text: str, places: list[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


@given(places=st.lists(st.integers(0, 60)))
def test_words_do_not_depend_on_how_they_come(places: list[int]) -> None:
    for text, plain, marked in (
        ("  two words \n more \n", "two words \n more", "two words \n more"),
        ("Das English: da.\nEnglish:  That\nEnglish: there. ", None, "That\nEnglish: there."),
        ("English: all", "English: all", "all"),
        (" \n", "", ""),
    ):
        for reader, expected in ((PlainWords(), plain), (MarkedWords("English:"), marked)):
            found = "".join(reader.push(part) for part in parted(text, places)) + reader.finish()
            assert expected in (None, found)


def test_seams() -> None:
    for left, right, seam in (("one", "two", " "), ("今日", "は", ""), ("안녕", "하세요", " "), ("", "two", "")):
        joined = JoinedWords()
        joined.add(left)
        joined.end_clip()
        assert joined.add("") == ""
        assert joined.add(right) == seam + right


def test_it_is_documented(served: tuple[RunningServer, ScriptedEngine]) -> None:
    document = served[0].get("/openapi.json").json()
    body = document["paths"][PATH]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert schema["required"] == ["file"]
    assert {"file", "language", "prompt", "response_format"} <= set(schema["properties"])
    assert document["paths"][TRANSLATIONS]["post"]["requestBody"]["content"].keys() == {"multipart/form-data"}
