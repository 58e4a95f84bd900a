"""Runs `facet serve` with random weights for as long as a benchmark needs it, and loads it with `facet bench serve`."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PORT = 8123
URL = f"http://127.0.0.1:{PORT}"


@contextmanager
def running(
    folder: str | Path, *flags: str, environment: Mapping[str, str] | None = None, port: int = PORT
) -> Iterator[float]:
    """Yields how many seconds the server took from its command to being ready. `environment` is added to this one's.

    As with `make serve`, Python may keep bytecode: without it every process compiles what it imports of torch anew.
    """
    command = [
        sys.executable, "-m", "facet", "serve", str(folder), "--port", str(port), "--host", "127.0.0.1",
        "--load-format", "dummy", *flags,
    ]  # fmt: skip
    start = time.perf_counter()
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, env={**own, **(environment or {})})
    try:
        while not _is_ready(port):
            if process.poll() is not None:
                raise SystemExit(f"the server ended with exit code {process.returncode}")
            time.sleep(0.05)
        yield time.perf_counter() - start
    finally:
        process.terminate()
        process.wait(timeout=60)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def bench_serve(*load: str) -> dict[str, Any]:
    """What `facet bench serve` saves of a load on the running server."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "facet", "bench", "serve", "--port", str(PORT), "--backend", "vllm", "--vocab-size",
            "262144", "--disable-tqdm", "--save-result", "--result-dir", folder, "--result-filename", "result.json",
            *load,
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        path = Path(folder) / "result.json"
        if not path.exists():
            raise SystemExit(f"the benchmark wrote no result:\n{done.stdout}")
        result: dict[str, Any] = json.loads(path.read_text())
        return result
