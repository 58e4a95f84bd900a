"""Times starts of a server with random weights on a GPU, with nothing compiled and again, then its sleep.

    python benchmarks/start_gpu.py [--model "Gemma 4 E4B"]

Kernels are compiled side by side. The server itself says where the seconds of its start went (--verbose). Asleep, its
GPU's free memory is read; a greedy answer before and after must be the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from facet.runner.compile_ahead import SWITCH
from tests.published_configs import text_only

PORT = 8124
URL = f"http://127.0.0.1:{PORT}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 E4B")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        (Path(folder) / "config.json").write_text(json.dumps(text_only(options.model)))
        for name, flags in (("nothing compiled", ()), ("again", ()), ("to sleep", ("--enable-sleep-mode",))):
            with running(folder, cache, flags) as seconds:
                print(f"{options.model}, {name}: ready after {seconds:.1f} s", flush=True)
                if flags:
                    time_sleeps()


def time_sleeps() -> None:
    before = answer()
    for level in (1, 1, 2):
        asleep = seconds_of(f"/sleep?level={level}")
        free = free_memory()
        awake = seconds_of("/wake_up")
        same = "the same answer" if answer() == before else "ANOTHER ANSWER"
        print(
            f"  level {level}: asleep after {asleep:.2f} s, {free} free, awake after {awake:.2f} s, {same}", flush=True
        )


def answer() -> Any:
    body = {"prompt": list(range(3, 1000)), "max_tokens": 64, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    body["return_tokens_as_token_ids"] = True
    return post("/v1/completions", body)["choices"][0]["logprobs"]["tokens"]


def seconds_of(path: str) -> float:
    start = time.perf_counter()
    post(path, {})
    return time.perf_counter() - start


def post(path: str, body: Any) -> Any:
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        said = response.read()
    return json.loads(said) if said else None


def free_memory() -> str:
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]


@contextmanager
def running(folder: str, cache: str, flags: tuple[str, ...]) -> Iterator[float]:
    """Yields how many seconds the server took from its command to being ready."""
    command = [
        sys.executable, "-m", "facet", "serve", folder, "--port", str(PORT), "--host", "127.0.0.1", "--verbose",
        "--load-format", "dummy", "--skip-tokenizer-init", "--max-model-len", "9216", *flags,
    ]  # fmt: skip
    start = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "TRITON_CACHE_DIR": cache, SWITCH: "1"})
    try:
        while not is_ready():
            if process.poll() is not None:
                raise SystemExit(f"the server ended with exit code {process.returncode}")
            time.sleep(0.05)
        yield time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


def is_ready() -> bool:
    try:
        with urllib.request.urlopen(URL + "/health", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
