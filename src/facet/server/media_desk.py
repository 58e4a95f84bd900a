"""Reads the media of requests in threads of their own, so that nobody waits for them who sent none.

What is on the web has other threads than what requests carry, and no request has more than half of those: a slow host
keeps nobody waiting but those who ask for its files, and leaves threads for the files of others.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from facet.chat.media_parts import MediaPart
from facet.prepared_media import PreparedMedia
from facet.prompts.asked_model import AskedModel
from facet.prompts.media_reading import NUM_THREADS, MediaReader, asks_for_media, find_media
from facet.prompts.questions import ChatQuestion, TextQuestion


class MediaDesk:
    def __init__(self, reader: MediaReader, observe: Callable[[float], None]) -> None:
        """`observe` is told the seconds that each conversation with media took."""
        self._reader = reader
        self._observe = observe
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="facet-media")
        self._downloads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="facet-download")

    async def read(self, question: TextQuestion | ChatQuestion, model: AskedModel) -> list[tuple[PreparedMedia, ...]]:
        """What a conversation holds besides text, prepared, in its order."""
        if not asks_for_media(question):
            return []
        start, loop = time.monotonic(), asyncio.get_running_loop()
        parts = await loop.run_in_executor(self._pool, partial(find_media, question, model))
        turns = asyncio.Semaphore(NUM_THREADS // 2)
        reads = [asyncio.ensure_future(self._read(part, turns)) for part in parts]
        try:
            read = await asyncio.gather(*reads)
        except BaseException:
            # The others would keep threads busy for an answer that has been given, maybe on hosts that are slow.
            for other in reads:
                other.cancel()
            await asyncio.gather(*reads, return_exceptions=True)  # none begins once the answer has been given
            raise
        self._observe(time.monotonic() - start)
        return read

    async def read_sound(self, data: bytes, where: str) -> tuple[PreparedMedia, ...]:
        """A file of sound, prepared, in clips that the model hears."""
        start, loop = time.monotonic(), asyncio.get_running_loop()
        clips = await loop.run_in_executor(self._pool, self._reader.read_clips, data, where)
        self._observe(time.monotonic() - start)
        return clips

    async def _read(self, part: MediaPart, turns: asyncio.Semaphore) -> tuple[PreparedMedia, ...]:
        loop = asyncio.get_running_loop()
        if not part.is_on_the_web:
            return await loop.run_in_executor(self._pool, self._reader.read, part)
        async with turns:
            return await loop.run_in_executor(self._downloads, self._reader.read, part)

    def close(self) -> None:
        for pool in (self._pool, self._downloads):
            pool.shutdown(wait=False, cancel_futures=True)
        self._reader.close()
