"""Checks a memory plan on a GPU: starts a server within a cap and compares what it takes with `facet plan`.

    python -m benchmarks.plan_gpu --model "Gemma 4 31B" --cap-gib 24
    python -m benchmarks.plan_gpu --model "Gemma 4 E4B" --cap-gib 8 --flags --quantization fp8 --embeddings-on-cpu

The checkpoint is a dummy with the `quantization_config` of a compressed-tensors file, INT4 in groups of 32, or one in
bfloat16 where `--flags` are given, which are those of `facet plan` and `facet serve` alike. What the server prints at
its start has the sizes that it measured. The GPU's memory is read ten times a second, so the peak includes the moments
in which a matrix is put into the order of its kernels. What the driver takes for the process is in it too, of which a
plan has an estimate.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.running_server import bench_serve
from benchmarks.serve_gpu import serving
from benchmarks.serve_rows import Server
from tests.published_configs import text_only

QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
        }
    },
    "ignore": ["lm_head"],
}
LENGTH, OUTPUT_TOKENS, MAX_MODEL_LEN = 4096, 64, 8192


class UsedMemory:
    """Of the GPU, in MiB, from now on."""

    def __init__(self) -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
        self.before = self.now = self.most = int(subprocess.check_output(command))
        self._process = subprocess.Popen([*command, "-lms", "100"], stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.now = int(line)
            self.most = max(self.most, self.now)

    def close(self) -> None:
        self._process.terminate()
        self._thread.join()
        self._process.wait()

    def line(self, moment: str) -> str:
        gib = (self.most - self.before) / 1024
        return f"{moment}: at most {gib:.2f} GiB in use so far, {(self.now - self.before) / 1024:.2f} now"


@contextmanager
def watching() -> Iterator[UsedMemory]:
    used = UsedMemory()
    try:
        yield used
    finally:
        used.close()


def planned(model: str, total_mib: int, flags: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(text_only(model)))
        command = [
            sys.executable, "-m", "facet", "plan", folder, "--load-format", "dummy", "--dtype", "bfloat16",
            "--max-model-len", str(MAX_MODEL_LEN), "--gpu-memory", f"{total_mib / 1024}GiB", *flags, "--json",
        ]  # fmt: skip
        plan: dict[str, Any] = json.loads(subprocess.check_output(command))
        return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Gemma 4 31B")
    parser.add_argument("--cap-gib", type=float, default=24.0)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, help="instead of those of an INT4 file")
    options = parser.parse_args()
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "0"]
    total_mib = int(subprocess.check_output(query))
    flags = [
        "--gpu-memory-utilization", f"{options.cap_gib * 1024 / total_mib:.4f}",
        "--max-num-seqs", "8", "--max-num-batched-tokens", "1024",
        *(options.flags or ("--hf-overrides", json.dumps({"quantization_config": QUANTIZATION}))),
    ]  # fmt: skip
    plan = planned(options.model, total_mib, flags)
    sizes = {name: size for name, size in plan["gpu_memory"].items() if name not in ("total", "utilization") and size}
    print("plan, GiB:", ", ".join(f"{name} {size / 2**30:.2f}" for name, size in sizes.items()))
    print(f"plan, all together: {sum(sizes.values()) / 2**30:.2f} GiB; {plan['verdict']}", flush=True)
    with watching() as used:
        with serving(Server(options.model, MAX_MODEL_LEN), flags) as seconds:
            print(used.line(f"ready after {seconds:.1f} s"), flush=True)
            result = bench_serve(
                "--dataset-name", "random", "--random-input-len", str(LENGTH), "--random-output-len",
                str(OUTPUT_TOKENS), "--num-prompts", "1", "--num-warmups", "0", "--ignore-eos",
            )  # fmt: skip
            print(used.line(f"after a request of {LENGTH} tokens and {OUTPUT_TOKENS} more"), flush=True)
        print(f"request: {result['completed']} completed, TPOT {result['mean_tpot_ms']:.2f} ms")


if __name__ == "__main__":
    main()
