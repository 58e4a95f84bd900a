"""Times starts of a server with random weights on a GPU, with nothing compiled and again, then its sleep.

    python -m benchmarks.start_gpu [--model "Gemma 4 E4B"]

Kernels are compiled side by side. The server itself says where the seconds of its start went (--verbose). Asleep, its
GPU's free memory is read; a greedy answer before and after must be the same.
"""

import argparse
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.running_server import URL, running
from tests.published_configs import text_only

FLAGS = ("--verbose", "--skip-tokenizer-init", "--max-model-len", "9216")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 E4B")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        (Path(folder) / "config.json").write_text(json.dumps(text_only(options.model)))
        for name, flags in (("nothing compiled", ()), ("again", ()), ("to sleep", ("--enable-sleep-mode",))):
            with running(folder, *FLAGS, *flags, environment={"TRITON_CACHE_DIR": cache}) as seconds:
                print(f"{options.model}, {name}: ready after {seconds:.1f} s", flush=True)
                if flags:
                    time_sleeps()


def time_sleeps() -> None:
    before = answer()
    for levels in ((1,), (1,), (2,), (1, 2)):
        asleep = sum(seconds_of(f"/sleep?level={level}") for level in levels)
        free = free_memory()
        awake = seconds_of("/wake_up")
        same = "the same answer" if answer() == before else "ANOTHER ANSWER"
        name = ", then ".join(map(str, levels))
        print(
            f"  level {name}: asleep after {asleep:.2f} s, {free} free, awake after {awake:.2f} s, {same}", flush=True
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


if __name__ == "__main__":
    main()
