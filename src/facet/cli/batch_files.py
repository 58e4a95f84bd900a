"""The files of a batch: requests are read line by line, answers are kept in the order in which they came, and at the
end in that of the requests.

Of each line only numbers stay in memory.
"""
# ruff: noqa: SIM115  a stack that lives as long as its object closes the files

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from facet.cli.batch_lines import BadLineError, answered_id, custom_id_of
from facet.errors import ConfigError

STANDARD = "-"
_NO_ID = 0
_NOWHERE = -1
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PIECE_BYTES = 1 << 20


class Requests:
    """The lines of an input file that are not blank. Standard input and pipes are copied to a file first."""

    def __init__(self, name: str, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._files = contextlib.ExitStack()
        self._file = _open_input(name, self._files)
        digests = array("Q")
        for _, line in self:
            digests.append(_digest(None if line is None else custom_id_of(line)))
        self._digests = np.array(digests, dtype=np.uint64)
        self._order = np.argsort(self._digests, kind="stable")
        ordered = self._digests[self._order]
        is_same = (ordered[1:] == ordered[:-1]) & (ordered[1:] != _NO_ID)
        self._is_repeated = np.zeros(len(ordered), dtype=bool)
        self._is_repeated[self._order[1:][is_same]] = True

    def __len__(self) -> int:
        return len(self._digests)

    def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
        """The requests with their numbers in the file. None is a line that is too long."""
        self._file.seek(0)
        number = 0
        while line := self._file.readline(self._max_line_bytes + 1):
            number += 1
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if len(line) > self._max_line_bytes:
                while line and not line.endswith(b"\n"):
                    line = self._file.readline(_PIECE_BYTES)
                yield number, None
            elif line and not line.isspace():
                yield number, line

    def is_repeated(self, index: int) -> bool:
        """Whether a line before this one has the same custom_id."""
        return bool(self._is_repeated[index])

    def find(self, custom_id: str) -> int | None:
        """The first line with this id."""
        digest = np.uint64(_digest(custom_id))
        place = int(np.searchsorted(self._digests, digest, sorter=self._order))
        if place == len(self._order) or self._digests[self._order[place]] != digest:
            return None
        return int(self._order[place])

    def close(self) -> None:
        self._files.close()


class Answers:
    """The output file of `requests`. Nothing is written or cut before `open`."""

    def __init__(self, name: str, requests: Requests, *, keeps: bool) -> None:
        """`keeps`: what the file has already stays, but for what says that there was no answer."""
        self.name = name
        self._requests = requests
        self._path = None if name == STANDARD or _is_special(Path(name)) else Path(name).resolve()
        self._places = np.full(len(requests), _NOWHERE, dtype=np.int64)  # where the answer of each request begins
        self._others = array("q")  # answers to what is not among the requests
        self._end = 0  # of the last whole line
        # Whether the file is now as it is to be at the end, and the place of its last line among the requests.
        self._is_in_order, self._last = True, -1
        self._files = contextlib.ExitStack()
        self._file: IO[bytes] | None = None
        if keeps and self._path is not None and self._path.exists():
            self._read(self._path)
        self.num_kept = self.num_written

    def has(self, index: int) -> bool:
        return bool(self._places[index] != _NOWHERE)

    @property
    def num_written(self) -> int:
        return int(np.count_nonzero(self._places != _NOWHERE))

    @property
    def are_kept(self) -> bool:
        """Whether this run has begun to write to a file that another one can go on with."""
        return self._path is not None and self._file is not None

    def open(self) -> None:
        if self._path is not None:
            self._file = self._files.enter_context(self._path.open("r+b" if self._end else "wb"))
            self._file.truncate(self._end)  # without half a line, of a run that was killed
            self._file.seek(self._end)
        elif self.name == STANDARD:
            self._file = sys.stdout.buffer
        else:
            self._file = self._files.enter_context(open(self.name, "wb"))

    def add(self, index: int, line: bytes) -> None:
        assert self._file is not None, "open() comes first"
        self._file.write(line)
        self._file.flush()  # so that nothing is lost if the run is
        self._note(index)
        self._end += len(line)

    def put_in_order(self) -> None:
        """Puts the answers in order once every request has one: they come in the order of the requests, then those to
        others.

        The file stays as it was until the other one is complete.
        """
        path = self._path
        if path is None or self._is_in_order:
            return
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as ordered:
            try:
                with path.open("rb") as file:
                    for place in (*self._places, *self._others):
                        file.seek(place)
                        ordered.write(file.readline())
                ordered.flush()  # or fail, as long as the other file is there
                shutil.copymode(path, ordered.name)
                os.replace(ordered.name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(ordered.name)
                raise

    def close(self) -> None:
        self._files.close()

    def _note(self, index: int) -> None:
        """The answer to this request begins where the file ends."""
        self._is_in_order &= index > self._last
        self._last = index
        self._places[index] = self._end

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break
                try:
                    custom_id = answered_id(line)
                except BadLineError:
                    raise ConfigError(
                        f"Line {number} of {path} is no answer of a batch, so --resume cannot go on with it. Name "
                        "another file, or replace this one with --overwrite."
                    ) from None
                index = None if custom_id is None else self._requests.find(custom_id)
                if index is not None:
                    self._note(index)
                elif custom_id is not None:
                    self._others.append(self._end)
                    self._last = len(self._requests)
                else:
                    self._is_in_order = False  # it is left out
                self._end += len(line)


def _open_input(name: str, files: contextlib.ExitStack) -> IO[bytes]:
    """A file that can be read twice."""
    try:
        file = sys.stdin.buffer if name == STANDARD else files.enter_context(open(name, "rb"))
        if name != STANDARD and not _is_special(Path(name)):
            return file
        copy = files.enter_context(tempfile.TemporaryFile())
        shutil.copyfileobj(file, copy, _PIECE_BYTES)
    except OSError as error:
        raise ConfigError(f"-i {name} cannot be read: {error.strerror or error}. Name a file of requests.") from None
    return copy


def _is_special(path: Path) -> bool:
    """A pipe or a device, which cannot be read twice."""
    return path.exists() and not path.is_file()


def _digest(custom_id: str | None) -> int:
    """64 bits tell the ids of a file apart: two of a million are taken for one once in forty million files."""
    if custom_id is None:
        return _NO_ID
    return int.from_bytes(hashlib.blake2b(custom_id.encode(), digest_size=8).digest()) or _NO_ID + 1
