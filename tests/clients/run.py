"""Serves the bundled model and tries the clients of check.py and, where node is installed, of check.mjs."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
KEY, MODEL = "secret", "facet"
START_SECONDS = 120


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of a server with the bundled model."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "facet", "serve", "--host", "127.0.0.1", "--port", str(port)]
    options = ["--api-key", KEY, "--served-model-name", MODEL, "--disable-log-stats"]
    server = subprocess.Popen([*command, *options])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, server)
        yield url
    finally:
        server.terminate()
        server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
            return
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("The server did not start.")
        time.sleep(0.2)


def main() -> int:
    """The arguments are the Python of the clients and, if wanted, which checks of check.py to make."""
    python, *names = sys.argv[1:]
    commands = [[python, str(HERE / "check.py"), *names]]
    if shutil.which("npm") and not names:
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=HERE, check=True)
        commands.append(["node", str(HERE / "check.mjs")])
    with served() as url:
        environment = {**os.environ, "FACET_URL": url, "FACET_KEY": KEY, "FACET_MODEL": MODEL}
        return max(subprocess.run(command, env=environment).returncode for command in commands)


if __name__ == "__main__":
    sys.exit(main())
