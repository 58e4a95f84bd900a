"""Reads the media of requests in threads of their own, so that a slow host keeps nobody else waiting."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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

    async def read(self, question: TextQuestion | ChatQuestion, model: AskedModel) -> list[tuple[PreparedMedia, ...]]:
        """What a conversation holds besides text, prepared, in its order."""
        if not asks_for_media(question):
            return []
        start, loop = time.monotonic(), asyncio.get_running_loop()
        parts = await loop.run_in_executor(self._pool, partial(find_media, question, model))
        reads = [loop.run_in_executor(self._pool, self._reader.read, part) for part in parts]
        try:
            read = await asyncio.gather(*reads)
        except BaseException:
            # The others would keep threads busy for an answer that has been given, maybe on hosts that are slow.
            for other in reads:
                other.cancel()
            raise
        self._observe(time.monotonic() - start)
        return read

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._reader.close()
