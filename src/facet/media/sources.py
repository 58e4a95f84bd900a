"""Fetches media from where a request says they are: in the request, on the web, or in a folder of this machine.

What a request carries is always read. The web and this machine are closed unless whoever runs the server opens a part
of them: hosts by name (`--allowed-media-domains`), one folder (`--allowed-local-media-path`).
"""

import base64
import binascii
import os
import re
import stat
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path

from facet.media.data_url import split_data_url
from facet.media.download import Downloads
from facet.media.limits import MediaLimits, refused

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BLANKS = str.maketrans("", "", " \t\r\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSources:
    limits: MediaLimits = field(default_factory=MediaLimits)
    downloads: Downloads = field(default_factory=Downloads)
    folder: Path | None = None  # files in it may be named by requests

    def read_url(self, url: str, where: str) -> bytes:
        """The bytes that a URL stands for. `where` names it in error messages."""
        match = _SCHEME.match(url)
        scheme = match[1].lower() if match else ""
        if scheme == "data":
            return self._read_data_url(url, where)
        if scheme in ("http", "https"):
            return self.downloads.read(url, self.limits.max_bytes, where)
        if scheme == "file":
            return self._read_file(_path_of(url, where), where)
        shown = f"has the scheme {scheme[:20]!r}" if scheme else "has no scheme"
        raise refused(f"{where} {shown}. Send a data: URL (data:image/png;base64,...), http(s): or file:.")

    def read_base64(self, text: str, where: str) -> bytes:
        # Four characters are three bytes. Refused before they are decoded.
        if len(text) * 3 // 4 > self.limits.max_bytes + 1024:
            raise refused(
                f"{where} has about {len(text) * 3 // 4:,} bytes, but at most {self.limits.max_bytes:,} are allowed. "
                "Send a smaller file."
            )
        try:
            return base64.b64decode(text.translate(_BLANKS), validate=True)
        except (binascii.Error, ValueError):
            raise refused(f"{where} is not valid base64. Encode the file's bytes, nothing else.") from None

    def _read_data_url(self, url: str, where: str) -> bytes:
        parts = split_data_url(url)
        if parts is None:
            raise refused(f"{where} is a data: URL without a comma. Write data:image/png;base64,...")
        is_base64, body = parts
        if is_base64:
            return self.read_base64(urllib.parse.unquote(body) if "%" in body else body, where)
        if len(body) > 3 * self.limits.max_bytes:
            raise refused(f"{where} is longer than {self.limits.max_bytes:,} bytes. Send a smaller file.")
        return urllib.parse.unquote_to_bytes(body)

    def _read_file(self, path: str, where: str) -> bytes:
        if self.folder is None:
            raise refused(
                f"{where} names a file on the server, and none may be read. Send the file itself as a data: URL, or "
                "start the server with --allowed-local-media-path."
            )
        root, real = os.path.realpath(self.folder), os.path.realpath(path)
        if not _is_inside(real, root):
            raise refused(f"{where} names a file outside the folder that may be read (--allowed-local-media-path).")
        try:
            # Without waiting, as a named pipe would; and not through a link that was put there since.
            descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise refused(f"{where} cannot be read ({error.strerror}). Check the path.") from None
        try:
            return self._read_opened(descriptor, real, root, where)
        finally:
            os.close(descriptor)

    def _read_opened(self, descriptor: int, path: str, root: str, where: str) -> bytes:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_inside(_opened_path(descriptor, path), root):
            raise refused(f"{where} is no ordinary file. Name one.")
        if status.st_size > self.limits.max_bytes:
            raise refused(
                f"{where} has {status.st_size:,} bytes, but at most {self.limits.max_bytes:,} are allowed. Name a "
                "smaller file."
            )
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(self.limits.max_bytes)


def _path_of(url: str, where: str) -> str:
    parsed = urllib.parse.urlsplit(url)
    path = urllib.parse.unquote(parsed.path)
    if parsed.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise refused(f"{where} is a file: URL without an absolute path. Write file:///folder/picture.png.")
    return path


def _is_inside(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root


def _opened_path(descriptor: int, expected: str) -> str:
    """The path where an open file really is, whatever was renamed since its path was checked."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # not Linux
        return expected
