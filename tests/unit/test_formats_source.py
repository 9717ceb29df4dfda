"""Sources: lines, archives, and which format a file is in."""

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from router.formats import detect, open_sources, source, text_source
from router.formats.source import Source


def test_lines_are_numbered_as_an_editor_numbers_them() -> None:
    found = list(text_source(b"\xef\xbb\xbfone\r\n\n  \nfour\nfive").lines())
    assert [(line.number, line.data, line.ended) for line in found] == [
        (1, b"one\r", True),
        (4, b"four", True),
        (5, b"five", False),
    ]


def test_lines_longer_than_a_read() -> None:
    long = b"x" * 700_000
    found = [line.data for line in text_source(long + b"\n" + long + b"\nend").lines()]
    assert found == [long, long, b"end"]


def test_a_file_without_lines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LINE_BYTES_MAX", 1000)
    with pytest.raises(ValueError, match="line 2: longer than 1,000 bytes"):
        list(text_source(b"short\n" + b"x" * 5000).lines())


def test_what_was_peeked_at_is_read_again() -> None:
    one = text_source(b"abcdef")
    assert one.peek(3) == b"abc"
    assert one.peek(100) == b"abcdef"
    assert one.read(4) + one.read(4) + one.read(4) == b"abcdef"
    assert one.position == 6


def test_gzip_is_read_through(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n" * 1000))
    (opened,) = open_sources(str(path))
    assert opened.stem == "talk"
    assert opened.is_lines
    assert opened.size == path.stat().st_size


def test_gzip_lines_and_a_damaged_archive(tmp_path: Path) -> None:
    path = tmp_path / "talk.gz"
    whole = gzip.compress(bytes(range(256)) * 4000)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="archive is damaged"):
        [opened.read(1 << 30) for opened in open_sources(str(path))]


def test_the_conversations_of_a_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("chat.html", "<html>")
        archive.writestr("conversations-001.json", "[2]")
        archive.writestr("conversations-000.json", "[1]")
    assert [opened.read(100) for opened in open_sources(str(path))] == [b"[1]", b"[2]"]


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_a_zip_archive_without_conversations(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "export.zip"
    if content is None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other.json", "[]")
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="archive"):
        list(open_sources(str(path)))


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (b'{"type":"conversation","format":"sessions-actor","version":1}', "jsonl"),
        (b'{"message_tree_id": "x", "prompt": {"role": "prompter"}}', "oasst"),
        (b'{"type":"user","uuid":"u","parentUuid":null,"message":{"role":"user"}}', "claude-code"),
        (b'[{"title":"T","mapping":{"a":{"message":{"content":{"parts":["x"]}}}}}]', "chatgpt"),
        (b'[{"id":"1","role":"user","parts":[{"type":"text"}]}]', "ai-sdk"),
        (b'[{"id":"1","role":"user","content":"hi","toolInvocations":[]}]', "ai-sdk"),
        (b'{"messages":[{"role":"user","content":"my \\"parts\\": [1]"}]}', "openai"),
        (b"SQLite format 3\0....", "durable-object"),
        (b"hello", None),
        (b"", None),
    ],
)
def test_the_beginning_of_a_file_shows_its_format(text: bytes, form: str | None) -> None:
    one = text_source(text)
    assert detect(one) == form
    assert one.read(1000) == text


def test_a_source_closes_its_file() -> None:
    stream = io.BytesIO(b"")
    with Source(stream, label="x", stem="x"):
        pass
    assert stream.closed
