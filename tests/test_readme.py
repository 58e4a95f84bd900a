"""What the README tells people to type is run, and what it says they will see has that form.

A block of `sh` or `python` is run as it stands, against a server that was started as the README says, with the port
changed to a free one. An HTML comment in front of a block says what else there is to know of it:

    <!-- needs a network -->, <!-- needs a GPU -->     the block is not run here
    <!-- printed by the server -->                     lines that the server says when it starts; numbers may differ
    <!-- prints JSON with these keys -->               of the block before: these keys and kinds of values, and others
    <!-- prints the words of a model -->               of the block before: these very words, with the bundled model

`python -m tests.test_readme` writes what was printed into the README.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from facet import bundled_model
from tests.cli.bundle import PATCH, command_with, environment

REPOSITORY = Path(__file__).parent.parent
README = REPOSITORY / "README.md"
ADDRESS = "localhost:8000"
PICTURE = "docs/page.png"
EXAMPLES = "examples"  # what commands name as if they were typed in the repository
BY_SERVER, JSON_KEYS, WORDS = "printed by the server", "prints JSON with these keys", "prints the words of a model"
NOT_HERE = ("needs a network", "needs a GPU")
# The doctor takes minutes on a processor that has no instructions for bfloat16.
SECONDS = 850
pytestmark = pytest.mark.timeout(SECONDS + 50)

# For work on this file before there is a bundled model: another checkpoint in its place, whose words mean nothing.
STAND_IN = os.environ.get("FACET_TEST_STAND_IN")
BUNDLE = Path(STAND_IN) if STAND_IN else bundled_model.FOLDER
needs_bundle = pytest.mark.skipif(
    not BUNDLE.is_dir(), reason="src/facet/bundled is not there: run tools/bundled_model to make it"
)


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    note: str  # the comment in front of it
    line: int
    span: tuple[int, int] = field(compare=False)  # of the text, in the document

    @property
    def is_run(self) -> bool:
        return self.language in ("sh", "python") and self.note not in NOT_HERE

    @property
    def commands(self) -> list[str]:
        """Of a shell block: each with its continuation lines, without remarks."""
        joined = self.text.replace("\\\n", " ")
        return [command for line in joined.splitlines() if (command := re.sub(r"\s+#.*", "", line).strip())]


def read_blocks(document: str) -> list[Block]:
    pattern = r"^(?:<!-- (?P<note>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$"
    return [
        Block(
            found["language"],
            found["text"],
            found["note"] or "",
            document.count("\n", 0, found.start("text")),
            found.span("text"),
        )
        for found in re.finditer(pattern, document, flags=re.MULTILINE | re.DOTALL)
    ]


BLOCKS = read_blocks(README.read_text(encoding="utf-8"))
RUN = [block for block in BLOCKS if block.is_run]


@dataclass(frozen=True, slots=True)
class Server:
    address: str  # host and port
    said: str


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """`facet serve`, as `make serve` starts it, on a free port of this machine alone."""
    command = command_with(BUNDLE, "serve", "--host", "127.0.0.1", "--port", "0")
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stderr is not None
    timer = threading.Timer(SECONDS, process.kill)
    timer.start()
    # What it says once it serves must be read too, or it would wait.
    reader = threading.Thread(target=process.stderr.read, daemon=True)
    try:
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"Serving facet on http://(127\.0\.0\.1:\d+)", line):
                break
        else:
            raise AssertionError(f"the server did not start: {said}")
        reader.start()
        timer.cancel()
        wait_until_it_listens(found[1])
        yield Server(found[1], said)
    finally:
        timer.cancel()
        process.terminate()
        process.wait(timeout=60)
        if reader.ident is not None:
            reader.join(timeout=60)
        process.stderr.close()


def wait_until_it_listens(address: str) -> None:
    """The line comes a moment before."""
    host, port = address.split(":")
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nobody listens"
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def run_block(block: Block, server: Server, folder: Path) -> str:
    """What it prints to standard output. Fails where any of its commands does."""
    text = block.text.replace(ADDRESS, server.address)
    if block.language == "python":
        command = [sys.executable, "-c", PATCH + text, str(BUNDLE)]
    else:
        facet = folder / "facet"
        facet.write_text(f'#!/bin/sh\nexec {" ".join(map(_quoted, command_with(BUNDLE)))} "$@"\n')
        facet.chmod(facet.stat().st_mode | stat.S_IXUSR)
        command = ["bash", "-euo", "pipefail", "-c", text]
    if not (folder / EXAMPLES).exists():
        (folder / EXAMPLES).symlink_to(REPOSITORY / EXAMPLES)
    variables = environment()
    variables["PATH"] = f"{folder}{os.pathsep}{variables['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"line {block.line} of the README gave {done.returncode}: {done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr
    return done.stdout


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def is_make(block: Block) -> bool:
    return all(command.startswith("make ") for command in block.commands)


def printed_after(block: Block) -> Block | None:
    """The block that shows what this one prints."""
    following = BLOCKS[BLOCKS.index(block) + 1 :]
    return following[0] if following and following[0].note in (JSON_KEYS, WORDS) else None


def check_form(shown: Block, printed: str) -> None:
    if shown.note == JSON_KEYS:
        assert_same_kind(json.loads(shown.text), json.loads(printed), "the answer")
    elif not STAND_IN:
        assert printed == shown.text


def assert_same_kind(shown: Any, printed: Any, where: str) -> None:
    """Every key and every kind of value that is shown is printed too."""
    assert type(shown) is type(printed), f"{where} is {printed!r}"
    if isinstance(shown, dict):
        for key, value in shown.items():
            assert key in printed, f"{where} has no {key}"
            assert_same_kind(value, printed[key], f"{where}.{key}")
    elif isinstance(shown, list):
        assert len(shown) == len(printed), f"{where} has {len(printed)} entries"
        for index, value in enumerate(shown):
            assert_same_kind(value, printed[index], f"{where}[{index}]")


def server_line_pattern(line: str) -> str:
    """Numbers and the address may be others."""
    line = line.replace("http://0.0.0.0:8000", "http://ADDRESS")
    pattern = re.sub(r"\d[\d,.]*", r"[\\d,.]+", re.escape(line).replace("\\,", ",").replace("\\.", "."))
    return "^" + pattern.replace("ADDRESS", r"[\d.:]+") + "$"


@needs_bundle
@pytest.mark.parametrize("block", [block for block in RUN if not is_make(block)], ids=lambda block: f"line{block.line}")
def test_what_it_tells_people_to_type(block: Block, server: Server, tmp_path: Path) -> None:
    if "curl" in block.text and shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    printed = run_block(block, server, tmp_path)
    if shown := printed_after(block):
        check_form(shown, printed)
    if "answer.json" in block.text:
        assert json.loads((tmp_path / "answer.json").read_text())["object"] == "chat.completion"


@needs_bundle
def test_what_the_server_says(server: Server) -> None:
    (shown,) = (block for block in BLOCKS if block.note == BY_SERVER)
    for line in shown.text.splitlines():
        assert re.search(server_line_pattern(line), server.said, flags=re.MULTILINE), f"{line!r} in {server.said!r}"


def test_the_two_commands() -> None:
    """Only what they would do: they set up an environment of their own."""
    (block,) = (block for block in RUN if is_make(block))
    assert [command.split()[:2] for command in block.commands] == [["make", "serve"], ["make", "test"]]
    for command in block.commands:
        done = subprocess.run(
            [*command.split(), "--dry-run", f"PYTHON={sys.executable}"], cwd=REPOSITORY, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        expected = "facet serve" if "serve" in command else "pytest"
        # A make that is run by another one says last where it was.
        lines = done.stdout.replace("\\\n", " ").strip().splitlines()
        commands = [line for line in lines if not line.startswith("make")]
        assert expected in commands[-1]


def test_every_block_is_understood() -> None:
    document = README.read_text(encoding="utf-8")
    assert len(re.findall("^```", document, flags=re.MULTILINE)) == 2 * len(BLOCKS)
    assert len(RUN) >= 8
    notes = {"", *NOT_HERE, BY_SERVER, JSON_KEYS, WORDS}
    for block in BLOCKS:
        assert block.note in notes, f"line {block.line}: no meaning is known for {block.note!r}"
        assert block.language in ("sh", "python", "json", "text", ""), f"line {block.line}"
        if block.language in ("json", "text"):
            assert block.note, f"line {block.line}: say what prints this"
    assert {block.note for block in BLOCKS} >= {BY_SERVER, JSON_KEYS, WORDS}
    comments = re.findall(r"<!-- (.*?) -->", document)
    assert len(comments) == sum(bool(block.note) for block in BLOCKS), "a comment stands in front of no block"


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert len(links) > 10
    missing = [link for link in links if link != PICTURE and not (REPOSITORY / link).exists()]
    assert not missing


@needs_bundle
@pytest.mark.skipif(STAND_IN is not None, reason="the picture is of the bundled model")
def test_the_picture_is_there() -> None:
    assert (REPOSITORY / PICTURE).read_bytes().startswith(b"\x89PNG")


class TestTheCheckItself:
    def test_blocks(self) -> None:
        document = "a\n<!-- needs a GPU -->\n```sh\nx --y \\\n  z  # why\n\n```\n\n```python\n1\n```\n"
        first, second = read_blocks(document)
        assert (first.language, first.note, first.commands) == ("sh", "needs a GPU", ["x --y    z"])
        assert not first.is_run
        assert (second.text, second.note, second.line) == ("1\n", "", 9)
        assert second.is_run

    @pytest.mark.parametrize("printed", [{"a": 1}, {"a": "x", "b": []}, {"a": "x", "b": [{"c": "1"}]}, []])
    def test_another_kind_is_caught(self, printed: Any) -> None:
        shown = {"a": "x", "b": [{"c": 1}]}
        assert_same_kind(shown, {"a": "y", "b": [{"c": 2, "d": None}], "e": 3}, "it")
        with pytest.raises(AssertionError):
            assert_same_kind(shown, printed, "it")

    def test_lines_of_the_server(self) -> None:
        pattern = server_line_pattern("12 of 4,096 tokens (all) on http://0.0.0.0:8000")
        assert re.search(pattern, "3 of 17 tokens (all) on http://127.0.0.1:4711")
        assert not re.search(pattern, "3 of 17 words (all) on http://127.0.0.1:4711")
        assert not re.search(pattern, "3 of many tokens (all) on http://127.0.0.1:4711")


def update() -> None:
    """Write into the README what its commands print now."""
    document = README.read_text(encoding="utf-8")
    changes: list[tuple[Block, str]] = []
    with serving() as server, tempfile.TemporaryDirectory() as folder:
        for block in RUN:
            if shown := printed_after(block):
                printed = run_block(block, server, Path(folder))
                changes.append((shown, _shortened(shown, printed) if shown.note == JSON_KEYS else printed))
        for shown in BLOCKS:
            if shown.note == BY_SERVER:
                lines = [re.search(server_line_pattern(line), server.said, re.M) for line in shown.text.splitlines()]
                text = "".join(f"{found[0]}\n" for found in lines if found)
                changes.append((shown, re.sub(r"http://[\d.:]+", f"http://0.0.0.0:{ADDRESS.split(':')[1]}", text)))
    for shown, text in sorted(changes, key=lambda change: change[0].span, reverse=True):
        document = document[: shown.span[0]] + text + document[shown.span[1] :]
    README.write_text(document, encoding="utf-8")


def _shortened(shown: Block, printed: str) -> str:
    """The keys that are shown, with what was printed under them, a line for each of the first."""
    kept = _projected(json.loads(shown.text), json.loads(printed))
    lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in kept.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _projected(shown: Any, printed: Any) -> Any:
    if isinstance(shown, dict):
        return {key: _projected(value, printed[key]) for key, value in shown.items()}
    if isinstance(shown, list):
        return [_projected(*pair) for pair in zip(shown, printed, strict=True)]
    return printed


if __name__ == "__main__":
    update()
