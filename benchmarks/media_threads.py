"""Measures whether preparing pictures in several threads loses anything against one.

    python -m benchmarks.media_threads [--count 48] [--threads 1 2 4 8]

Pictures of 1024 x 768 pixels, prepared for Gemma 3: as files through the processes that decode, as Pillow images in
this process, and as files in offline chats from end to end (`LLM.chat`, a picture and a few words each, 8 tokens out),
by a shrunk model with random weights. More threads than cores should be as fast as one for each core.
"""

import argparse
import base64
import io
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
        for num_threads in options.threads:
            prepared = preparing_rates(read_media_spec(folder), num_threads, options)
            table.add_row(str(num_threads), *(f"{each:.2f}" for each in (*prepared, chats[num_threads])))
    Console().print(table)


def chat_rates(folder: Path, options: argparse.Namespace) -> dict[int, float]:
    """By number of threads."""
    llm = LLM(
        str(folder), load_format="dummy", dtype="float32", max_model_len=MAX_MODEL_LEN, enable_prefix_caching=False,
        show_progress=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True)
    rates = {}
    try:
        for num_threads in options.threads:
            facet.offline.llm.NUM_THREADS = num_threads  # type: ignore[attr-defined]
            llm.chat(conversations(8, seed=0), params, use_tqdm=False)  # starts the processes
            seconds = []
            for number in range(options.rounds):
                asked = conversations(options.count, seed=100 * num_threads + number)  # no picture is seen twice
                start = time.perf_counter()
                llm.chat(asked, params, use_tqdm=False)
                seconds.append(time.perf_counter() - start)
            rates[num_threads] = options.count / min(seconds)
    finally:
        llm.close()
    return rates


def conversations(count: int, seed: int) -> list[Any]:
    config = BenchConfig(
        backend="openai-chat", dataset_name="images", image_sizes=(IMAGE_SIZE,), num_prompts=count, seed=seed,
        random_input_len=NUM_WORDS,
    )  # fmt: skip
    return [turn.content for (turn,) in make_dataset(config, None).conversations]


def preparing_rates(spec: MediaSpec, num_threads: int, options: argparse.Namespace) -> list[float]:
    """Of files, and of Pillow images."""
    file = picture_bytes()
    picture = Image.open(io.BytesIO(file)).convert("RGB")
    part = MediaPart(kind="image", where="it", value=picture)
    reader = MediaReader(spec=spec, sources=MediaSources(), workers=MediaWorkers())
    try:
        return [
            rate(reader, [part] * options.count, num_threads, options.rounds)
            for part in (replace(part, value=None, url=data_url(file)), part)
        ]
    finally:
        reader.close()


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
