"""Measures whether preparing pictures in several threads loses anything against one.

    python -m benchmarks.media_threads [--count 48] [--threads 1 2 4 8]

Pictures of 1024 x 768 pixels, prepared for Gemma 3: as files through the processes that decode, as Pillow images in
this process, and as files in offline chats from end to end (`LLM.chat`, a picture and a few words each, 8 tokens out),
by a shrunk model with random weights. More threads than cores should be as fast as one for each core.
"""

import argparse
import base64
import io
import math
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table

import facet.offline.llm
from benchmarks.media_gpu import IMAGE_SIZE, MAX_MODEL_LEN, NUM_WORDS, picture_bytes, write_model
from facet import LLM, SamplingParams
from facet.bench.config import BenchConfig
from facet.bench.datasets import make_dataset
from facet.chat.media_parts import MediaPart
from facet.media.sources import MediaSources
from facet.media.spec import MediaSpec
from facet.media.spec_file import read_media_spec
from facet.media.workers import MediaWorkers
from facet.prompts.media_reading import MediaReader

MODEL, OUTPUT_LEN = "Gemma 3 4B", 8


Run = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=48, help="pictures in each run")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind; the fastest counts")
    options = parser.parse_args()
    table = Table(title=f"pictures of {IMAGE_SIZE} per second")
    for column in ("threads", "prepared from files", "from Pillow images", "offline chats"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, MODEL, is_tiny=True)
        chats = chat_rates(folder, options)
        files, images = preparing_rates(read_media_spec(folder), options)
    for num_threads in options.threads:
        rates = (of[num_threads] for of in (files, images, chats))
        table.add_row(str(num_threads), *(f"{rate:.2f}" for rate in rates))
    Console().print(table)


def best_rates(make_run: Callable[[int, int], Run], options: argparse.Namespace) -> dict[int, float]:
    """Pictures per second, by number of threads. `make_run` takes that number and the round's.

    All numbers of threads take turns, so that what else a machine does in the meantime falls on each of them."""
    seconds = dict.fromkeys(options.threads, math.inf)
    for number in range(options.rounds):
        for num_threads in options.threads:
            run = make_run(num_threads, number)
            start = time.perf_counter()
            run()
            seconds[num_threads] = min(seconds[num_threads], time.perf_counter() - start)
    return {num_threads: options.count / took for num_threads, took in seconds.items()}


def chat_rates(folder: Path, options: argparse.Namespace) -> dict[int, float]:
    llm = LLM(
        str(folder), load_format="dummy", dtype="float32", max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False,
        show_progress=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True)

    def make_run(num_threads: int, number: int) -> Run:
        facet.offline.llm.NUM_THREADS = num_threads  # type: ignore[attr-defined]
        asked = conversations(options.count, seed=100 * num_threads + number)  # no picture is seen twice
        return lambda: llm.chat(asked, params, use_tqdm=False)

    try:
        llm.chat(conversations(8, seed=0), params, use_tqdm=False)  # starts the processes
        return best_rates(make_run, options)
    finally:
        llm.close()


def conversations(count: int, seed: int) -> list[Any]:
    config = BenchConfig(
        backend="openai-chat", dataset_name="images", image_sizes=(IMAGE_SIZE,), num_prompts=count, seed=seed,
        random_input_len=NUM_WORDS,
    )  # fmt: skip
    return [turn.content for (turn,) in make_dataset(config, None).conversations]


def preparing_rates(spec: MediaSpec, options: argparse.Namespace) -> list[dict[int, float]]:
    """Of files, and of Pillow images."""
    file = picture_bytes()
    image = MediaPart(kind="image", where="it", value=Image.open(io.BytesIO(file)).convert("RGB"))
    reader = MediaReader(spec=spec, sources=MediaSources(), workers=MediaWorkers())

    def read_all(part: MediaPart, num_threads: int) -> None:
        with ThreadPoolExecutor(num_threads) as pool:
            for _ in pool.map(reader.read, [part] * options.count):
                pass

    try:
        rates = []
        for part in (replace(image, value=None, url=data_url(file)), image):
            read_all(part, max(options.threads))  # starts the processes

            def make_run(num_threads: int, number: int, part: MediaPart = part) -> Run:
                return partial(read_all, part, num_threads)

            rates.append(best_rates(make_run, options))
        return rates
    finally:
        reader.close()


def data_url(file: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(file).decode()}"


if __name__ == "__main__":
    main()
