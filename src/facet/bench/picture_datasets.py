"""Makes chats with pictures: made up in chosen sizes, or the files of a folder."""

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from facet.bench.config import BenchConfig
from facet.bench.dialogue import Dataset, Turn
from facet.bench.made_up_datasets import TurnWriter
from facet.errors import ConfigError

if TYPE_CHECKING:  # without --tokenizer none is needed, nor the library beneath it
    from facet.tokens import Tokenizer

_SIZE = re.compile(r"(\d+)x(\d+)")
_MOST_PIXELS = 64 << 20
_TYPES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif", ".bmp": "bmp"}
_NUM_SHAPES = 40
_JPEG_QUALITY = 90


def pictures(config: BenchConfig, tokenizer: "Tokenizer | None") -> Dataset:
    """--images-per-prompt pictures and a random text. Of pictures that are made up, no two are the same."""
    writer = TurnWriter(config, tokenizer)
    urls = _made_up(config, writer.random) if config.dataset_path is None else _from_folder(Path(config.dataset_path))
    turns = []
    for turn in writer.first_turns():
        parts = [{"type": "image_url", "image_url": {"url": next(urls)}} for _ in range(config.images_per_prompt)]
        content = [*parts, {"type": "text", "text": str(turn.content)}]
        turns.append(Turn(content=[{"role": "user", "content": content}], max_tokens=turn.max_tokens))
    return Dataset(conversations=[[turn] for turn in turns], remarks=writer.remarks)


def _size_of(text: str) -> tuple[int, int]:
    found = _SIZE.fullmatch(text)
    if found is None or not 1 <= int(found[1]) * int(found[2]) <= _MOST_PIXELS:
        raise ConfigError(f"--image-sizes {text}: give sizes such as 1024x768, width before height.")
    return int(found[1]), int(found[2])


def _made_up(config: BenchConfig, random: np.random.Generator) -> Iterator[str]:
    sizes = [_size_of(text) for text in config.image_sizes]
    while True:
        for width, height in sizes:
            yield _url("jpeg", _jpeg(width, height, random))


def _jpeg(width: int, height: int, random: np.random.Generator) -> bytes:
    """Overlapping shapes: as hard to compress as a photo of something, easier than noise."""
    picture = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(picture)
    for _ in range(_NUM_SHAPES):
        left, right = sorted(random.integers(0, width + 1, 2).tolist())
        top, bottom = sorted(random.integers(0, height + 1, 2).tolist())
        shape = draw.ellipse if random.random() < 0.5 else draw.rectangle
        shape((left, top, right, bottom), fill=tuple(random.integers(0, 256, 3).tolist()))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()


def _from_folder(folder: Path) -> Iterator[str]:
    """The pictures of a folder by name, and again from the first."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _TYPES) if folder.is_dir() else []
    if not paths:
        raise ConfigError(f"{folder} is no folder with pictures ({', '.join(_TYPES)}).")
    while True:
        for path in paths:
            yield _url(_TYPES[path.suffix.lower()], path.read_bytes())


def _url(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
