"""A file to import from: plain, gzip, one member of a zip archive, or standard input.

It counts what was read, for progress, and cuts lines with a bound on their length.
"""

import gzip
import io
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

LINE_BYTES_MAX = 512 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_SUFFIXES = (".gz", ".zip", ".jsonl", ".ndjson", ".json", ".sqlite3", ".sqlite", ".db")


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its line feed; `ended` is False when the file ends before one."""

    number: int
    data: bytes
    ended: bool


class Source:
    """A readable file with a name for messages (`label`) and one for conversations (`stem`).

    Args: `size` is what `position` grows to, None when unknown; `modified_at` is the time (ms) of
    whatever in it carries none, now unless given.
    """

    def __init__(
        self,
        stream: BinaryIO,
        *,
        label: str,
        stem: str,
        size: int | None = None,
        position: Callable[[], int] | None = None,
        modified_at: int | None = None,
    ) -> None:
        self.label, self.stem, self.size = label, stem, size
        self.modified_at = time.time_ns() // 1_000_000 if modified_at is None else modified_at
        named = label.lower().removesuffix(".gz")
        self.is_lines = named.endswith((".jsonl", ".ndjson"))
        self._stream = stream
        self._position = position
        self._bytes_read = 0
        self._ahead = b""

    @property
    def position(self) -> int:
        """Bytes consumed, of the file as it lies on the disk where that is known."""
        return self._position() if self._position else self._bytes_read

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, none at the end. Raises: ValueError for a damaged archive."""
        if self._ahead:
            data, self._ahead = self._ahead[:size], self._ahead[size:]
            return data
        try:
            data = self._stream.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
            raise ValueError(f"{self.label}: the archive is damaged ({error})") from error
        self._bytes_read += len(data)
        return data

    def peek(self, size: int) -> bytes:
        """Return the next bytes without taking them: `size` of them unless the file ends before."""
        while len(self._ahead) < size:
            ahead, self._ahead = self._ahead, b""
            data = self.read(size - len(ahead))
            self._ahead = ahead + data
            if not data:
                break
        return self._ahead[:size]

    def lines(self) -> Iterator[Line]:
        """Yield the lines that are not blank, numbered from 1 with the blank ones counted.

        Raises: ValueError for a line longer than LINE_BYTES_MAX.
        """
        buffer, scanned, number = bytearray(), 0, 0
        while data := self.read(1 << 18):
            buffer += data
            start = 0
            while (end := buffer.find(b"\n", max(start, scanned))) >= 0:
                number += 1
                line = _clean(bytes(buffer[start:end]), number)
                if line:
                    yield Line(number, line, ended=True)
                start = end + 1
            del buffer[:start]
            scanned = len(buffer)
            if scanned > LINE_BYTES_MAX:
                raise ValueError(
                    f"{self.label}, line {number + 1}: longer than {LINE_BYTES_MAX:,} bytes;"
                    " is this a file of lines?"
                )
        rest = _clean(bytes(buffer), number + 1)
        if rest:
            yield Line(number + 1, rest, ended=False)

    def close(self) -> None:
        """Close the file; standard input is left open."""
        if self._stream is not sys.stdin.buffer:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_sources(path: str) -> Iterator[Source]:
    """Open a file by its path, "-" for standard input; a zip archive gives each of its
    `conversations*.json` in turn.

    Raises: OSError; ValueError for an archive that is damaged or holds no such file.
    """
    if path == "-":
        yield Source(sys.stdin.buffer, label="standard input", stem="stdin")
        return
    where = Path(path)
    if where.suffix.lower() == ".zip":
        yield from _open_zip(where)
        return
    raw = where.open("rb")
    size, modified_at = _facts(where)
    if raw.read(2) == b"\x1f\x8b":
        raw.seek(0)
        unpacked = cast(BinaryIO, gzip.GzipFile(fileobj=raw))
        yield Source(
            unpacked,
            label=path,
            stem=stem_of(where),
            size=size,
            position=raw.tell,
            modified_at=modified_at,
        )
        raw.close()
    else:
        raw.seek(0)
        yield Source(raw, label=path, stem=stem_of(where), size=size, modified_at=modified_at)


def text_source(data: bytes, label: str = "text") -> Source:
    """Return bytes in memory as a source."""
    return Source(io.BytesIO(data), label=label, stem=label, size=len(data))


def stem_of(path: Path) -> str:
    """Return a file's name without suffixes such as `.jsonl` or `.json.gz`."""
    name = path.name
    for suffix in _SUFFIXES:
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            name = name[: -len(suffix)]
    return name


def _facts(where: Path) -> tuple[int, int]:
    """A file's size and the time of its last change (ms)."""
    found = where.stat()
    return found.st_size, found.st_mtime_ns // 1_000_000


def _open_zip(where: Path) -> Iterator[Source]:
    try:
        archive = zipfile.ZipFile(where)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{where}: the archive is damaged ({error})") from error
    with archive:
        members = [info for info in archive.infolist() if _is_conversations(info.filename)]
        if not members:
            raise ValueError(f"{where}: the archive holds no conversations.json")
        for info in sorted(members, key=lambda member: member.filename):
            yield Source(
                cast(BinaryIO, archive.open(info)),
                label=f"{where}:{info.filename}",
                stem=stem_of(Path(info.filename)),
                size=info.file_size,
                modified_at=_facts(where)[1],
            )


def _is_conversations(name: str) -> bool:
    last = name.rsplit("/", 1)[-1]
    return last.startswith("conversations") and last.endswith(".json")


def _clean(line: bytes, number: int) -> bytes:
    if number == 1:
        line = line.removeprefix(_BOM)
    return line if line.strip() else b""
