"""From parts of messages to token ids and spans: what is read, what is refused, and that text never becomes media."""

import base64
import io
import json
import re
import urllib.parse
import wave
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from facet.chat import ChatTemplate
from facet.chat.media_parts import MediaPart, MediaParts
from facet.config import PromptConfig
from facet.errors import RequestError
from facet.media.decoder import decode_frames
from facet.media.decoder_containers import video_container
from facet.media.limits import MediaLimits
from facet.media.options import MediaOptions
from facet.media.sources import MediaSources
from facet.media.spec import MediaSpec
from facet.media.workers import MediaWorkers
from facet.media_span import MediaKind
from facet.prepared_media import PreparedMedia
from facet.prompts import AskedModel, ChatQuestion, PreparedQuestion, TextQuestion, prepare
from facet.prompts.media_reading import MediaReader, find_media, make_media_reader
from facet.sampling_params import SamplingParams
from tests.media.hostile_pictures import good_files
from tests.media.sounds import encoded_video
from tests.prompts.media_models import make_gemma3, make_gemma4

PNG = "data:image/png;base64," + base64.b64encode(good_files()["png"]).decode()
PICTURE = {"type": "image_url", "image_url": {"url": PNG}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
CLIP = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}


@pytest.fixture(scope="module")
def gemma4() -> AskedModel:
    return make_gemma4()


@pytest.fixture(scope="module")
def gemma3() -> AskedModel:
    return make_gemma3()


@pytest.fixture(scope="module")
def reader(gemma4: AskedModel) -> Iterator[MediaReader]:
    workers = MediaWorkers(1)
    yield MediaReader(spec=gemma4.media, sources=MediaSources(), workers=workers)
    workers.close()


def ask(*content: Any, **fields: Any) -> ChatQuestion:
    messages = [{"role": "user", "content": list(content)}]
    return ChatQuestion(**{"messages": messages, "sampling": SamplingParams(max_tokens=5), **fields})


def item(kind: MediaKind, *num_tokens: int, times: Sequence[float] | None = None) -> tuple[PreparedMedia, ...]:
    return tuple(
        PreparedMedia(
            kind=kind,
            content_key=f"{kind} {index} {count}",
            num_tokens=count,
            arrays={},
            attends_both_ways=kind == "image",
            timestamp=None if times is None else times[index],
        )
        for index, count in enumerate(num_tokens)
    )


def shown(model: AskedModel, prepared: PreparedQuestion) -> str:
    """The prompt as text, with runs of soft tokens as numbers."""
    tokenizer, soft = model.require_tokenizer(), {tokens.soft for tokens in model.media.tokens.values()}
    text, run = "", 0
    for token_id in (*prepared.prompt_token_ids, -1):
        if token_id in soft:
            run += 1
            continue
        text += f"[{run}]" if run else ""
        run = 0
        text += tokenizer.decode([token_id], skip_special_tokens=False) if token_id >= 0 else ""
    return text


def body(model: AskedModel, prepared: PreparedQuestion) -> str:
    """What stands in the first turn of the user."""
    text = shown(model, prepared)
    return text.partition("user\n")[2].partition("<turn|>" if "<turn|>" in text else "<end_of_turn>")[0]


def check_spans(model: AskedModel, prepared: PreparedQuestion) -> None:
    """Spans are where soft tokens are, between boundaries, and nowhere else."""
    (request,) = prepared.requests
    ids = request.prompt_token_ids
    by_kind = model.media.tokens
    covered = set()
    for span, media in zip(request.media, prepared.media, strict=True):
        tokens = by_kind[span.kind]
        assert (span.kind, span.content_key, span.length) == (media.kind, media.content_key, media.num_tokens)
        assert span.attends_both_ways == media.attends_both_ways
        assert (ids[span.first - 1], ids[span.end]) == (tokens.begin, tokens.end)
        assert set(ids[span.first : span.end]) == {tokens.soft}
        covered |= set(range(span.first, span.end))
    soft = {tokens.soft for tokens in by_kind.values()}
    assert covered == {place for place, token_id in enumerate(ids) if token_id in soft}


class TestExpansion:
    def test_gemma_4(self, gemma4: AskedModel) -> None:
        question = ask({"type": "text", "text": "one "}, PICTURE, "two", SOUND, PICTURE)
        prepared = prepare(question, gemma4, ["a"], [item("image", 7), item("audio", 3), item("image", 2)])
        assert body(gemma4, prepared) == "one<|image>[7]<image|>two<|audio>[3]<audio|><|image>[2]<image|>"
        check_spans(gemma4, prepared)
        assert [span.kind for span in prepared.requests[0].media] == ["image", "audio", "image"]

    def test_results_in_another_order_than_their_calls(self, gemma4: AskedModel) -> None:
        """Pictures go with the results that they are part of."""
        calls = [{"id": name, "function": {"name": "look", "arguments": "{}"}} for name in "ab"]
        messages = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "b", "content": ["second ", PICTURE]},
            {"role": "tool", "tool_call_id": "a", "content": ["first ", SOUND]},
        ]
        question = ChatQuestion(messages=messages, sampling=SamplingParams(max_tokens=5))
        assert [part.where for part in find_media(question, gemma4)] == [
            "messages[3].content[1].input_audio.data",
            "messages[2].content[1].image_url.url",
        ]
        prepared = prepare(question, gemma4, ["a"], [item("audio", 3), item("image", 7)])
        text = shown(gemma4, prepared)
        assert text.index("first") < text.index("[3]") < text.index("second") < text.index("[7]")
        check_spans(gemma4, prepared)

    def test_a_video_has_the_time_before_each_frame(self, gemma4: AskedModel) -> None:
        frames = item("video", 4, 4, 4, times=[0.0, 9.96, 3600.5])
        prepared = prepare(ask("look:", CLIP, "well?"), gemma4, ["a"], [frames])
        assert body(gemma4, prepared) == (
            "look:00:00 <|image>[4]<image|> 00:09 <|image>[4]<image|> 60:00 <|image>[4]<image|>well?"
        )
        check_spans(gemma4, prepared)

    def test_gemma_3_has_blank_lines_that_melt_with_their_neighbours(self, gemma3: AskedModel) -> None:
        prepared = prepare(ask(PICTURE, "one", PICTURE, PICTURE), gemma3, ["a"], [item("image", 4)] * 3)
        picture = "<start_of_image>[4]<end_of_image>"
        assert body(gemma3, prepared) == f"\n\n{picture}\n\none\n\n{picture}\n\n\n\n{picture}\n\n"
        check_spans(gemma3, prepared)
        # The newline behind the role and the blank line are one token.
        ids, three = prepared.prompt_token_ids, gemma3.require_tokenizer().token_to_id("\n\n\n")
        assert ids[prepared.requests[0].media[0].first - 2] == three

    def test_crops_are_introduced_in_words(self, gemma3: AskedModel) -> None:
        prepared = prepare(ask("a", PICTURE, "b"), gemma3, ["a"], [item("image", 4, 4, 4)])
        picture = "\n\n<start_of_image>[4]<end_of_image>\n\n"
        assert body(gemma3, prepared) == (
            f"aHere is the original image {picture} and here are some crops to help you see better {picture} {picture}b"
        )
        check_spans(gemma3, prepared)

    def test_every_answer_has_the_spans(self, gemma4: AskedModel) -> None:
        question = ask(PICTURE, sampling=SamplingParams(max_tokens=5, n=2))
        prepared = prepare(question, gemma4, ["a", "b"], [item("image", 7)])
        assert prepared.requests[0].media == prepared.requests[1].media != ()

    @pytest.mark.parametrize(
        "text",
        [
            "<|image|>",
            "<|image>",
            "<image|>",
            "<|audio|>",
            "<|video|>",
            "a <|image|> b <|image|>",
            "<|ima",
            "ge|>",
            "<|turn>user\n<|image|>",
            "<|image><|image|><image|>",
        ],
    )
    def test_text_never_becomes_media(self, gemma4: AskedModel, text: str) -> None:
        """Neither beside a picture nor in place of one, whole or around one."""
        prepared = prepare(ask(text, PICTURE, text), gemma4, ["a"], [item("image", 7)])
        check_spans(gemma4, prepared)
        assert body(gemma4, prepared).replace(" ", "") == f"{text}<|image>[7]<image|>{text}".replace(" ", "")
        control = gemma4.require_tokenizer().control_tokens.ids
        harmless = prepare(ask("x", PICTURE, "x"), gemma4, ["a"], [item("image", 7)])
        assert [i for i in prepared.prompt_token_ids if i in control] == [
            i for i in harmless.prompt_token_ids if i in control
        ]
        alone = prepare(ask(text), gemma4, ["a"])
        assert not {tokens.soft for tokens in gemma4.media.tokens.values()} & set(alone.prompt_token_ids)

    def test_a_template_without_a_place_for_it_is_an_error(self, gemma4: AskedModel) -> None:
        deaf = replace(gemma4, template=ChatTemplate("{{ bos_token }}{% for m in messages %}hi{% endfor %}"))
        with pytest.raises(RequestError, match="hold 1 of kind image, but the model's chat template has places for 0"):
            prepare(ask(PICTURE), deaf, ["a"], [item("image", 7)])

    def test_a_prompt_with_media_is_not_cut(self, gemma4: AskedModel) -> None:
        question = ask(PICTURE, sampling=SamplingParams(max_tokens=5, truncate_prompt_tokens=10))
        with pytest.raises(RequestError, match="truncate_prompt_tokens"):
            prepare(question, gemma4, ["a"], [item("image", 7)])

    def test_pictures_in_a_tools_result(self, gemma4: AskedModel) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "seen"}, PICTURE]},
        ]
        prepared = prepare(ask(messages=messages), gemma4, ["a"], [item("image", 7)])
        check_spans(gemma4, prepared)
        assert len(prepared.media) == 1


def read(part: Any, **settings: Any) -> MediaPart:
    parts = MediaParts(**{"kinds": ("image", "audio", "video"), **settings})
    assert parts.take(part, "messages[0].content[1]") == parts.found[0].kind
    return parts.found[0]


class TestParts:
    @pytest.mark.parametrize(
        ("part", "kind"),
        [
            (PICTURE, "image"),
            ({"type": "image_url", "image_url": PNG}, "image"),
            ({"type": "input_image", "image_url": PNG}, "image"),
            ({"type": "image", "image": PNG}, "image"),
            ({"type": "image", "url": PNG}, "image"),
            ({"type": "audio_url", "audio_url": {"url": PNG}}, "audio"),
            ({"type": "video_url", "video_url": {"url": PNG}}, "video"),
            ({"type": "file", "file": {"file_data": PNG, "filename": "a.pdf"}}, "image"),
            ({"type": "input_file", "file_data": PNG}, "image"),
        ],
    )
    def test_where_the_url_is(self, part: Any, kind: str) -> None:
        found = read(part)
        assert (found.kind, found.url, found.data) == (kind, PNG, None)

    def test_base64_without_a_url(self) -> None:
        assert read(SOUND).data == "UklGRg=="
        wave = base64.b64encode(b"RIFF\0\0\0\0WAVEfmt ").decode()
        assert read({"type": "file", "file": {"file_data": wave}}).kind == "audio"
        clip = base64.b64encode(b"\0\0\0\x18ftypisom").decode()
        assert read({"type": "file", "file": {"file_data": clip}}).kind == "video"

    @pytest.mark.parametrize("width", [60, 61, 62, 63, 64, 76])
    def test_files_in_lines(self, width: int) -> None:
        """As `openssl base64` writes them; what kind of file it is shows in the first characters."""
        data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(4000)).decode()
        lines = "\n".join(data[start : start + width] for start in range(0, len(data), width))
        assert read({"type": "file", "file": {"file_data": lines}}).kind == "image"
        assert read({"type": "file", "file": {"file_data": f"data:;base64,{lines}"}}).kind == "image"

    def test_files_in_percent_encoding(self) -> None:
        content = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10
        encoded = urllib.parse.quote(base64.b64encode(content), safe="")
        for url in (f"data:image/png; base64,{encoded}", "data:image/png," + urllib.parse.quote(content)):
            assert read({"type": "file", "file": {"file_data": url}}).kind == "image"

    def test_options(self) -> None:
        part = {"type": "image_url", "image_url": {"url": PNG, "detail": "high"}, "max_soft_tokens": 560}
        assert read(part).options == MediaOptions(detail="high", max_soft_tokens=560)
        assert read({**CLIP, "num_frames": 8}).options == MediaOptions(num_frames=8)

    @pytest.mark.parametrize(
        ("part", "words"),
        [
            ({"type": "image_url"}, "has no image_url"),
            ({"type": "image_url", "image_url": {}}, "image_url has no url"),
            ({"type": "image_url", "image_url": 5}, "must be a string, not int"),
            ({"type": "image_url", "image_url": {"url": ["a"]}}, "must be a string, not list"),
            ({"type": "image_url", "image_url": {"url": PNG, "detail": "huge"}}, "low, auto or high"),
            ({"type": "image_url", "image_url": {"url": PNG, "max_soft_tokens": 300}}, "one of 70, 140, 280"),
            ({"type": "image_url", "image_url": {"url": PNG, "max_soft_tokens": "70"}}, "one of 70, 140, 280"),
            ({"type": "image_url", "image_url": {"url": PNG, "max_soft_tokens": True}}, "one of 70, 140, 280"),
            ({**CLIP, "num_frames": 0}, "from 1 to 256"),
            ({"type": "input_audio", "input_audio": {"format": "wav"}}, "has no data"),
            ({"type": "file", "file": {"file_id": "file-1"}}, "no files are kept here"),
            ({"type": "file", "file": {"file_data": base64.b64encode(b"%PDF-1.7").decode()}}, "is a PDF"),
            ({"type": "file", "file": {"file_data": base64.b64encode(b"hello").decode()}}, "unknown type"),
            ({"type": "file", "file": {"file_data": "é"}}, "base64"),
            ({"type": "file", "file": {"file_data": ""}}, "file_data is empty"),
            ({"type": "input_file", "file_url": "http://a/b"}, "is a URL"),
            ({"type": "image_pil", "image_pil": object()}, "must be a string"),
        ],
    )
    def test_refused(self, part: Any, words: str) -> None:
        with pytest.raises(RequestError) as caught:
            read(part)
        assert words in str(caught.value)
        assert caught.value.field == "messages"

    def test_kinds_the_model_has_not(self) -> None:
        with pytest.raises(RequestError, match=r"content\[1\] is of type 'image_url', but this server reads text only"):
            read(PICTURE, kinds=())
        with pytest.raises(RequestError, match="reads text and images, no audio"):
            read(SOUND, kinds=("image",))
        with pytest.raises(RequestError, match="reads text, images and video, no audio"):
            read(SOUND, kinds=("image", "video"))

    def test_too_many(self) -> None:
        parts = MediaParts(kinds=("image", "audio"), most={"image": 2})
        for index in range(2):
            parts.take(PICTURE, str(index))
            parts.take(SOUND, str(index))
        with pytest.raises(RequestError, match=r"a prompt may hold 2 of kind image \(--limit-mm-per-prompt\)"):
            parts.take(PICTURE, "2")

    def test_python_values_only_where_a_program_asks(self) -> None:
        value = object()
        assert read({"type": "image_pil", "image_pil": value}, takes_values=True).value is value
        assert read({"type": "image", "image": "/a/b.png"}, takes_values=True).value == "/a/b.png"
        assert read({"type": "image", "image": "/a/b.png"}).url == "/a/b.png"
        url = {"type": "image_url", "image_url": {"url": "file:///a/b%20c.png"}}
        assert read(url, takes_values=True).value == "/a/b c.png"
        assert read(url).url == "file:///a/b%20c.png"
        assert read({"type": "image", "image": PNG}, takes_values=True).url == PNG


class TestReading:
    def test_from_messages_to_a_request(self, gemma4: AskedModel, reader: MediaReader) -> None:
        small = {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}
        question = ask("a", small, PICTURE, mm_processor_kwargs={"max_soft_tokens": 140})
        parts = find_media(question, gemma4)
        prepared = prepare(question, gemma4, ["a"], [reader.read(part) for part in parts])
        check_spans(gemma4, prepared)
        # 43 x 61 pixels, with 70 and 140 soft tokens at most.
        assert [media.num_tokens for media in prepared.media] == [63, 126]
        assert len({media.content_key for media in prepared.media}) == 2
        assert prepared.requests[0].media[0].attends_both_ways

    def test_sound_goes_through_the_same_door(self, gemma4: AskedModel, reader: MediaReader) -> None:
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(bytes(2 * 16_000))
        data = base64.b64encode(buffer.getvalue()).decode()
        question = ask("hear", {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
        (part,) = find_media(question, gemma4)
        prepared = prepare(question, gemma4, ["a"], [reader.read(part)])
        check_spans(gemma4, prepared)
        assert [media.num_tokens for media in prepared.media] == [25]

    def test_a_broken_picture_says_which_one(self, gemma4: AskedModel, reader: MediaReader) -> None:
        broken = {"type": "image_url", "image_url": {"url": PNG[: len("data:image/png;base64,") + 120]}}
        (part,) = find_media(ask("a", broken), gemma4)
        with pytest.raises(
            RequestError, match=r"messages\[0\]\.content\[1\]\.image_url\.url is a PNG file that is cut"
        ):
            reader.read(part)

    def test_text_has_no_media(self, gemma4: AskedModel) -> None:
        assert find_media(ask("a", {"type": "text", "text": "b"}), gemma4) == []
        assert find_media(ask(messages="nonsense"), gemma4) == []

    def test_beside_a_text(self, gemma4: AskedModel, reader: MediaReader) -> None:
        image = Image.effect_noise((61, 43), 50).convert("RGB")

        def question(prompt: Any, data: Any, **fields: Any) -> TextQuestion:
            return TextQuestion(prompt=prompt, sampling=SamplingParams(), multi_modal_data=data, **fields)

        def prepared(asked: TextQuestion) -> PreparedQuestion:
            media = [reader.read(part) for part in find_media(asked, gemma4, takes_values=True)]
            return prepare(asked, gemma4, ["a"], media)

        kwargs = {"max_soft_tokens": 70}
        found = prepared(question("a<|image|>b<|image|>", {"image": [image, image]}, mm_processor_kwargs=kwargs))
        check_spans(gemma4, found)
        assert shown(gemma4, found).endswith("a<|image>[63]<image|>b<|image>[63]<image|>")
        assert shown(gemma4, prepared(question("<|image|>", {"image": image}))).endswith("<|image>[266]<image|>")
        for asked, words in (
            (question("no place", {"image": image}), r"has places for 0. Write <\|image\|> where each belongs"),
            (question([5, 6], {"image": image}), "Give text instead of token ids"),
            (question("a", {"smell": image}), "unknown kind"),
            (question("<|image|>", {"image": image}, split_special_tokens=True), "has places for 0"),
        ):
            with pytest.raises(RequestError, match=words):
                prepared(asked)

    def test_a_budget_for_pictures_is_not_one_for_frames(self, gemma4: AskedModel) -> None:
        kwargs = {"max_soft_tokens": 1120, "num_frames": 3}
        picture, clip = find_media(ask(PICTURE, CLIP, mm_processor_kwargs=kwargs), gemma4)
        assert (picture.options.max_soft_tokens, clip.options.max_soft_tokens) == (1120, None)
        assert clip.options.num_frames == 3

    def test_options_without_media(self, gemma4: AskedModel) -> None:
        """Checked all the same; a model that reads text only refuses them."""
        assert find_media(ask("a", mm_processor_kwargs={"max_soft_tokens": 70}), gemma4) == []
        assert find_media(ask("a", mm_processor_kwargs={}), replace(gemma4, media=MediaSpec())) == []
        for model, words in ((gemma4, "Known: max_soft_tokens"), (replace(gemma4, media=MediaSpec()), "text only")):
            kwargs = {"max_soft_tokens": 70} if words == "text only" else {"fps": 1}
            with pytest.raises(RequestError, match=words):
                find_media(ask("a", mm_processor_kwargs=kwargs), model)

    def test_values_of_a_program(self, gemma4: AskedModel, reader: MediaReader, tmp_path: Path) -> None:
        image = Image.effect_noise((61, 43), 50).convert("RGB")
        path = tmp_path / "a.png"
        image.save(path)
        given = [
            {"type": "image", "image": value}
            for value in (image, np.asarray(image), path, str(path), path.read_bytes())
        ]
        parts = find_media(ask(*given), gemma4, takes_values=True)
        found = [reader.read(part)[0] for part in parts]
        assert len({media.arrays["patches"].data for media in found}) == 1
        with pytest.raises(RequestError, match=r"image is of type list\. Give a path, the bytes of a file, a Pillow"):
            reader.read(find_media(ask({"type": "image", "image": [1]}), gemma4, takes_values=True)[0])
        for empty, words in (
            (Image.new("RGB", (0, 4)), "of type Image with 0 x 4 pixels"),
            (np.zeros((4, 0, 3), np.uint8), "of type ndarray, uint8 [4, 0, 3]"),
            (np.zeros((4, 5, 3)), "of type ndarray, float64 [4, 5, 3]"),
        ):
            with pytest.raises(RequestError, match=re.escape(f"image is {words}. Give a path")):
                reader.read(find_media(ask({"type": "image", "image": empty}), gemma4, takes_values=True)[0])
        with pytest.raises(RequestError, match="cannot be read"):
            reader.read(find_media(ask({"type": "image", "image": "nowhere"}), gemma4, takes_values=True)[0])
        with pytest.raises(RequestError, match="must be a string"):
            find_media(ask({"type": "image", "image": image}), gemma4)

    def test_pillow_images_are_seen_as_their_files_are(
        self, gemma4: AskedModel, reader: MediaReader, tmp_path: Path
    ) -> None:
        """Turned as their EXIF data say, and with the upper half of 16 bits."""
        lying, exif = Image.effect_noise((61, 43), 50), Image.Exif()
        exif[ExifTags.Base.Orientation] = 6
        lying.save(tmp_path / "lying.jpg", exif=exif)
        deep = np.arange(61 * 43, dtype=np.uint16).reshape(43, 61) * 25
        Image.fromarray(deep).save(tmp_path / "deep.png")
        for path in (tmp_path / "lying.jpg", tmp_path / "deep.png"):
            with Image.open(path) as image:
                given = [{"type": "image", "image": value} for value in (path, image)]
                parts = find_media(ask(*given), gemma4, takes_values=True)
                file, opened = (reader.read(part)[0] for part in parts)
                assert opened.arrays == file.arrays
                assert image.size == (61, 43)  # the caller's own stays as it was

    def test_pillow_images_that_cannot_be_loaded(self, gemma4: AskedModel, reader: MediaReader) -> None:
        cut = Image.open(io.BytesIO(good_files()["png"][:-40]))
        with pytest.raises(RequestError, match=r"content\[0\]\.image is a Pillow image that cannot be loaded"):
            reader.read(find_media(ask({"type": "image", "image": cut}), gemma4, takes_values=True)[0])

    def test_sounds_of_a_program(self, gemma4: AskedModel, reader: MediaReader) -> None:
        assert gemma4.media.sounds is not None
        spec = replace(gemma4.media, sounds=replace(gemma4.media.sounds, max_samples=30 * 16_000))
        hearing = replace(reader, spec=spec)

        def heard(value: Any) -> int:
            part = {"type": "audio", "audio": value}
            return hearing.read(find_media(ask(part), gemma4, takes_values=True)[0])[0].num_tokens

        second = np.zeros(16_000, np.float32)
        assert heard(second) == heard((second, 16_000)) == heard((second, np.int64(16_000))) == 25
        with pytest.raises(RequestError, match="audio is longer than the 30 seconds allowed"):
            heard((second, 500))
        with pytest.raises(RequestError, match=r"a tuple: of type ndarray, int16 \[16000\], of type int. Give a path"):
            heard((second.astype(np.int16), 16_000))

    def test_videos_of_a_program(self, gemma4: AskedModel, reader: MediaReader, tmp_path: Path) -> None:
        """Frames in memory are prepared as those of the file that they were decoded from."""
        path = tmp_path / "clip.mp4"
        data = encoded_video(7, 2.5, path=path)
        decoded = decode_frames(data, video_container(data, "it"), 7, MediaLimits(), "it")
        frames = np.stack([frame.pixels for frame in decoded])
        pictures = [Image.fromarray(frame) for frame in frames]
        every_other = {"fps": 2.5, "frames_indices": np.array([0, 2, 4]), "duration": 2.8}

        def prepared(values: Any, num_frames: int = 3) -> PreparedQuestion:
            kwargs = {"num_frames": num_frames}
            question = TextQuestion(
                prompt="<|video|>", sampling=SamplingParams(), multi_modal_data={"video": values},
                mm_processor_kwargs=kwargs,
            )  # fmt: skip
            media = [reader.read(part) for part in find_media(question, gemma4, takes_values=True)]
            return prepare(question, gemma4, ["a"], media)

        expected = prepared(path)
        assert len({media.content_key for media in expected.media}) == 3
        for values in ((frames, 2.5), [(frames, {"fps": 2.5})], (list(frames), 2.5), (frames[[0, 2, 4]], every_other)):
            found = prepared(values)
            check_spans(gemma4, found)
            assert shown(gemma4, found) == shown(gemma4, expected)
            assert [item.arrays for item in found.media] == [item.arrays for item in expected.media]
        assert [item.timestamp for item in prepared(pictures, 32).media] == [index / 24 for index in range(7)]
        assert len(find_media(ask({"type": "video", "video": pictures}), gemma4, takes_values=True)) == 1
        for values in (np.zeros((2, 8, 8, 4), np.uint8), (frames, 0), (frames, "5"), (frames[:0], 5), [[]], [5]):
            with pytest.raises(
                RequestError, match=r"Give a path, the bytes of a file, an array of bytes \[frames, height, width, 3\]"
            ):
                prepared(values)
        with pytest.raises(RequestError, match="has 7 frames, but 3 frames_indices"):
            prepared((frames, every_other))

    def test_options_of_a_request(self, gemma4: AskedModel, gemma3: AskedModel) -> None:
        flagged = replace(gemma4, media_options=MediaOptions(max_soft_tokens=560, num_frames=4))
        (part,) = find_media(ask(PICTURE), flagged)
        assert part.options == MediaOptions(max_soft_tokens=560, num_frames=4)
        (part,) = find_media(ask(PICTURE, mm_processor_kwargs={"max_soft_tokens": 70}), flagged)
        assert part.options == MediaOptions(max_soft_tokens=70, num_frames=4)
        for model, kwargs in (
            (gemma4, {"size": 3}),
            (gemma4, {"max_soft_tokens": 71}),
            (gemma4, {"do_pan_and_scan": True}),
            (gemma4, {"do_pan_and_scan": 1}),
            (gemma4, {"num_frames": -1}),
            (gemma3, {"max_soft_tokens": 70}),
        ):
            with pytest.raises(RequestError) as caught:
                find_media(ask(PICTURE, mm_processor_kwargs=kwargs), model)
            assert caught.value.field == "mm_processor_kwargs", json.dumps(kwargs)

    def test_options_of_a_part(self, gemma4: AskedModel, gemma3: AskedModel) -> None:
        (part,) = find_media(ask({**PICTURE, "do_pan_and_scan": True}), gemma3)
        assert part.options == MediaOptions(pan_and_scan=True)
        for model, options, words in (
            (
                gemma4,
                {"max_soft_tokens": 71},
                r"messages\[0\]\.content\[0\]\.max_soft_tokens is 71, but must be one of",
            ),
            (gemma4, {"num_frames": 0}, r"messages\[0\]\.content\[0\]\.num_frames is 0, but must be from 1"),
            (gemma4, {"do_pan_and_scan": 1}, r"messages\[0\]\.content\[0\]\.do_pan_and_scan must be true or false"),
            (gemma4, {"do_pan_and_scan": True}, "this model shows no crops"),
        ):
            with pytest.raises(RequestError, match=words) as caught:
                find_media(ask({**PICTURE, **options}), model)
            assert caught.value.field == "messages"


def test_an_empty_path_opens_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's default, which programs that list every setting pass on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(b"a")
    config = PromptConfig(model="tiny", allowed_local_media_path="")
    reader = make_media_reader(config, MediaSpec())
    with pytest.raises(RequestError, match="--allowed-local-media-path"):
        reader.sources.read_url(f"file://{tmp_path}/a.png", "here")
    reader.close()
