"""Defines media that are ready for a tower: named arrays, and the number of soft tokens they become.

One `PreparedMedia` fills one span of a prompt. A picture is one of them, or several where it is cut into crops; a clip
of sound is one; a video is one for each frame, since every frame passes the tower on its own.

Arrays by family, unpadded, without a batch dimension. A byte of a picture stands for byte / 255, in Gemma 3 for
byte / 127.5 - 1; towers do that, since bytes are a quarter of the size.

    Gemma 4        image, video  patches    uint8 [rows * columns, 768]   16 x 16 pixels, flattened as row, column,
                                                                          channel; patches in raster order
                                 positions  int32 [rows * columns, 2]     (column, row) of each patch
                   audio         features   float32 [frames, 128]         log-mel
    Gemma 4 12B    image, video  patches    uint8 [soft tokens, 6912]     48 x 48 pixels, flattened in the same way
                                 positions  int32 [soft tokens, 2]        (column, row), in units of 48 pixels
                   audio         features   float32 [soft tokens, 640]    samples
    Gemma 3        image         pixels     uint8 [3, side, side]         channel, row, column
    Gemma 3n       image         pixels     uint8 [3, side, side]         channel, row, column
                   audio         features   float32 [frames, 128]         log-mel
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

from facet.errors import RequestError
from facet.media_span import MediaKind, MediaSpan

if TYPE_CHECKING:
    import numpy as np  # only who reads or makes arrays needs it: the front process passes them on as bytes

PROCESSOR_VERSION = 1  # part of every content key; raised whenever the same bytes become other arrays

ArrayType = Literal["uint8", "int32", "float32", "bool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaArray:
    """An array as bytes, so that it is immutable and travels between processes as it is."""

    dtype: ArrayType
    shape: tuple[int, ...]
    data: bytes = field(repr=False)  # row-major

    @classmethod
    def from_numpy(cls, array: "np.ndarray[Any, Any]") -> Self:
        # `bool` is numpy's name for it, too; an unexpected type fails in `numpy`, in the tests of whoever made it.
        name: Any = array.dtype.name
        return cls(dtype=name, shape=array.shape, data=array.tobytes())

    def numpy(self) -> "np.ndarray[Any, Any]":
        """The array, read-only and without a copy."""
        import numpy as np

        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMedia:
    kind: MediaKind
    content_key: str  # the same content, prepared in the same way, has the same key, and nothing else has
    num_tokens: int  # soft tokens: rows that the tower makes of it
    arrays: Mapping[str, MediaArray]
    attends_both_ways: bool = False
    timestamp: float | None = None  # in seconds: of a video's frame; of a clip of a sound, where it ends

    def span(self, first: int) -> MediaSpan:
        """Where it stands in a prompt, if its first soft token has position `first`."""
        return MediaSpan(
            first=first,
            length=self.num_tokens,
            kind=self.kind,
            content_key=self.content_key,
            attends_both_ways=self.attends_both_ways,
        )


def content_key(content: bytes, *preparation: object) -> str:
    """Names content as it was sent, together with everything that decides what is made of it."""
    how = repr((PROCESSOR_VERSION, *preparation)).encode()
    return hashlib.sha256(hashlib.sha256(content).digest() + how).hexdigest()


def check_contents(spans: Sequence[MediaSpan], contents: Sequence[PreparedMedia]) -> None:
    """Refuse spans whose content is not there, or is not what they say."""
    by_key = {content.content_key: content for content in contents}
    for span in spans:
        content = by_key.get(span.content_key)
        name = f"The {span.kind} at positions {span.first} to {span.end - 1}"
        if content is None:
            raise RequestError(f"{name} has no content.", field="media")
        if content.kind != span.kind or content.attends_both_ways != span.attends_both_ways:
            raise RequestError(f"{name} was prepared as another kind: {content.kind}.", field="media")
        if content.num_tokens != span.length:
            raise RequestError(
                f"{name} has {span.length} tokens, but its content becomes {content.num_tokens} tokens.", field="media"
            )
