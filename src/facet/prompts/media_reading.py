"""Finds the pictures, sounds and videos of a question, fetches them and has them prepared.

That takes time, on the web seconds, so that a server does it apart from everything else: it finds the parts of a
question, reads each in a thread of its own pool, and hands what it got to `prepare`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from facet.chat.media_parts import MEDIA_TYPES, MediaPart
from facet.chat.messages import normalize_messages
from facet.config import PromptConfig
from facet.errors import ConfigError
from facet.media.download import Downloads
from facet.media.limits import refused
from facet.media.options import MediaOptions, check_options, read_processor_kwargs
from facet.media.sources import MediaSources
from facet.media.spec import MediaSpec
from facet.media.worker import JOBS
from facet.media.workers import MediaWorkers
from facet.media_span import MediaKind
from facet.prepared_media import PreparedMedia
from facet.prompts.asked_model import AskedModel
from facet.prompts.media_values import items_of, prepare_value
from facet.prompts.questions import ChatQuestion, TextQuestion

# Threads that read parts at the same time. Most of them wait, for a host on the web or for a process that decodes.
NUM_THREADS = 8
# The longest clip that Gemma models were made for; some take longer ones, but hear them less well.
CLIP_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReader:
    """What it takes to read media for one model. Threads may share it."""

    spec: MediaSpec
    sources: MediaSources
    workers: MediaWorkers

    def read(self, part: MediaPart) -> tuple[PreparedMedia, ...]:
        """Fetches and prepares one part; blocks."""
        if part.value is not None and not isinstance(part.value, str | Path | bytes):
            return prepare_value(part, self.spec)
        data, limits, where = self._fetched(part), self.sources.limits, part.where

        def run(job: str, *arguments: object) -> tuple[PreparedMedia, ...]:
            return self.workers.run(f"{JOBS}.{job}", data, *arguments, limits, where, where=where)

        match part.kind:
            case "image":
                return run("prepare_picture_file", self.spec.pictures, part.options)
            case "audio":
                return run("prepare_sound_file", self.spec.sounds)
            case "video":
                return run("prepare_video_file", self.spec.videos, part.options)

    def read_clips(self, data: bytes, where: str) -> tuple[PreparedMedia, ...]:
        """A file of sound, however long, in clips that the model hears; blocks."""
        spec, limits = self.spec.sounds, self.sources.limits
        assert spec is not None, "asked of models that hear"
        seconds = CLIP_SECONDS if spec.max_samples is None else min(CLIP_SECONDS, spec.max_samples / spec.sampling_rate)
        return self.workers.run(f"{JOBS}.prepare_sound_clips", data, spec, seconds, limits, where, where=where)

    def close(self) -> None:
        self.workers.close()

    def _fetched(self, part: MediaPart) -> bytes:
        if part.url is not None:
            return self.sources.read_url(part.url, part.where)
        if part.data is not None:
            return self.sources.read_base64(part.data, part.where)
        if isinstance(part.value, bytes):
            return part.value
        assert isinstance(part.value, str | Path), "a part has a URL, data or a value"
        try:
            return Path(part.value).expanduser().read_bytes()
        except (OSError, ValueError) as error:
            raise refused(f"{part.where} cannot be read ({error}). Check the path.") from None


def make_media_reader(config: PromptConfig, spec: MediaSpec) -> MediaReader:
    # Empty means none, as in vLLM, and not the folder that the server was started in.
    folder = Path(config.allowed_local_media_path) if config.allowed_local_media_path else None
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--allowed-local-media-path {folder} is no folder.")
    sources = MediaSources(downloads=Downloads(domains=config.allowed_media_domains), folder=folder)
    return MediaReader(spec=spec, sources=sources, workers=MediaWorkers(max_seconds=sources.limits.max_seconds))


def find_media(
    question: TextQuestion | ChatQuestion, model: AskedModel, *, takes_values: bool = False
) -> list[MediaPart]:
    """The parts of a question that are no text, checked against what the model reads, with all options settled.

    `takes_values`: content may be a path or a Pillow image, since the caller is a program on this machine.
    """
    if not asks_for_media(question):
        return []
    parts = model.media_parts(takes_values=takes_values)
    if isinstance(question, ChatQuestion):
        normalize_messages(question.messages, parts.take)
    else:
        for kind, values in (question.multi_modal_data or {}).items():
            for index, value in enumerate(items_of(kind, values)):
                parts.take_value(kind, value, f"multi_modal_data.{kind}[{index}]")
    asked = read_processor_kwargs(question.mm_processor_kwargs)
    check_options(asked, model.media, "mm_processor_kwargs")
    for part in parts.found:
        check_options(part.options, model.media, "messages")
    others = asked.over(model.media_options)
    return [part.with_options(part.options.over(_applying(others, part.kind))) for part in parts.found]


def _applying(options: MediaOptions, kind: MediaKind) -> MediaOptions:
    """A budget for all pictures is not one for each frame of a video, of which there are dozens."""
    return replace(options, max_soft_tokens=None, detail=None) if kind == "video" else options


def asks_for_media(question: TextQuestion | ChatQuestion) -> bool:
    """Whether a question says anything about media, without a look at the rest: most do not."""
    if question.mm_processor_kwargs is not None:
        return True
    if isinstance(question, TextQuestion):
        return bool(question.multi_modal_data)
    if not isinstance(question.messages, Sequence):
        return False
    contents = (message.get("content") for message in question.messages if isinstance(message, Mapping))
    parts = (part for content in contents if isinstance(content, list | tuple) for part in content)
    types = (part.get("type") for part in parts if isinstance(part, Mapping))
    return any(isinstance(kind, str) and kind in MEDIA_TYPES for kind in types)
