"""Measures whether preparing pictures in several threads loses anything against one, without a model.

    python benchmarks/media_threads.py [--count 48] [--threads 1 2 4 8]

Pictures of 1024 x 768 pixels, as files through the processes that decode, and as Pillow images in this process, both
as `LLM.chat` and the server have them prepared. More threads than cores should be as fast as one for each core.
"""

import argparse
import base64
import io
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.media_gpu import picture_bytes
from facet.chat.media_parts import MediaPart
from facet.media.sources import MediaSources
from facet.media.spec_file import usual_gemma4
from facet.media.workers import MediaWorkers
from facet.prompts.media_reading import MediaReader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=48, help="pictures in each run")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind; the fastest counts")
    options = parser.parse_args()
    file = picture_bytes()
    table = Table(title="pictures of 1024 x 768 prepared per second")
    for column in ("threads", "files", "Pillow images"):
        table.add_column(column, justify="right")
    picture = Image.open(io.BytesIO(file)).convert("RGB")
    for num_threads in options.threads:
        reader = MediaReader(spec=usual_gemma4(), sources=MediaSources(), workers=MediaWorkers())
        part = MediaPart(kind="image", where="it", value=picture)
        try:
            rates = [
                rate(reader, [part] * options.count, num_threads, options.rounds)
                for part in (replace(part, value=None, url=data_url(file)), part)
            ]
        finally:
            reader.close()
        table.add_row(str(num_threads), *(f"{each:.1f}" for each in rates))
    Console().print(table)


def rate(reader: MediaReader, parts: Sequence[MediaPart], num_threads: int, num_rounds: int) -> float:
    seconds = []
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(reader.read, [parts[0]] * 2 * num_threads))  # starts the processes
        for _ in range(num_rounds):
            start = time.perf_counter()
            list(pool.map(reader.read, parts))
            seconds.append(time.perf_counter() - start)
    return len(parts) / min(seconds)


def data_url(file: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(file).decode()}"


if __name__ == "__main__":
    main()
