"""Finds the pictures, sounds and videos of a question, fetches them and has them prepared.

That takes time, on the web seconds, so that a server does it apart from everything else: it finds the parts of a
question, reads each in a thread of its own pool, and hands what it got to `prepare`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from facet.chat.media_parts import MEDIA_TYPES, MediaPart
from facet.chat.messages import normalize_messages
from facet.media.options import MediaOptions, check_options, read_processor_kwargs
from facet.media.prepared import PreparedMedia
from facet.media.sources import MediaSources
from facet.media.spec import MediaSpec
from facet.media.workers import MediaWorkers
from facet.media_span import MediaKind
from facet.prompts.asked_model import AskedModel
from facet.prompts.questions import ChatQuestion

# Functions that prepare a file of a kind, for the processes that decode.
_JOBS: Mapping[MediaKind, str] = {"image": "facet.media.jobs.prepare_picture_file"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaReader:
    """What it takes to read media for one model. Threads may share it."""

    spec: MediaSpec
    sources: MediaSources
    workers: MediaWorkers

    def read(self, part: MediaPart) -> tuple[PreparedMedia, ...]:
        """Fetches and prepares one part; blocks."""
        data = self._fetched(part)
        specs: Mapping[MediaKind, Any] = {
            "image": self.spec.pictures,
            "audio": self.spec.sounds,
            "video": self.spec.videos,
        }
        return self.workers.run(
            _JOBS[part.kind], data, specs[part.kind], part.options, self.sources.limits, part.where, where=part.where
        )

    def _fetched(self, part: MediaPart) -> bytes:
        if part.url is not None:
            return self.sources.read_url(part.url, part.where)
        assert part.data is not None, "a part has a URL or data"
        return self.sources.read_base64(part.data, part.where)


def find_media(question: ChatQuestion, model: AskedModel) -> list[MediaPart]:
    """The parts of a conversation that are no text, checked against what the model reads, with all options settled."""
    if not _has_media(question.messages):
        return []
    parts = model.media_parts()
    normalize_messages(question.messages, parts.take)
    asked = read_processor_kwargs(question.mm_processor_kwargs)
    check_options(asked, model.media, "mm_processor_kwargs")
    return [part.with_options(_settled(part, asked.over(model.media_options), model)) for part in parts.found]


def _settled(part: MediaPart, others: MediaOptions, model: AskedModel) -> MediaOptions:
    check_options(part.options, model.media, "messages")
    return part.options.over(others)


def _has_media(messages: object) -> bool:
    """Whether any message has such a part, without a look at the rest: most conversations have none."""
    if not isinstance(messages, Sequence):
        return False
    contents = (message.get("content") for message in messages if isinstance(message, Mapping))
    parts = (part for content in contents if isinstance(content, list | tuple) for part in content)
    return any(isinstance(part, Mapping) and part.get("type") in MEDIA_TYPES for part in parts)
