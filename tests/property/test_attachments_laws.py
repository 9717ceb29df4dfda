"""Extraction is undone exactly, whatever a message holds, and no text from outside is a pointer."""

import base64
import copy
import hashlib
from typing import Any

from hypothesis import example, given

from sessions_actor.attachments import (
    count_pointers,
    extract,
    may_hold_media,
    may_hold_pointer,
    restore,
)
from sessions_actor.codec import dumps

from .json_values import HASHES, PAYLOADS, law, media_messages

LOAD = dict(zip(HASHES, PAYLOADS, strict=True)).get


def is_payload(text: str, media_type: str) -> bool:
    """Tell canonical base64 of a type that is not text, without haste."""
    if media_type.startswith("text/"):
        return False
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode() == text
    except ValueError:
        return False


def slow_extract(value: Any, depth: int, found: list[bytes]) -> Any:
    """Copy a tree, replacing what the rules name."""
    if isinstance(value, list):
        return [slow_extract(entry, depth + 1, found) for entry in value]
    if not isinstance(value, dict):
        return value
    result = {key: slow_extract(entry, depth + 1, found) for key, entry in value.items()}
    if depth > 8:
        return copy.deepcopy(value)
    declared = value["mediaType"] if isinstance(value.get("mediaType"), str) else None
    url, data = value.get("url"), value.get("data")

    def pointer(text: str) -> str:
        found.append(base64.b64decode(text))
        return "attachment:sha256:" + hashlib.sha256(found[-1]).hexdigest()

    for field, text in (("url", url), ("data", data)):
        if isinstance(text, str) and text.startswith("attachment:"):
            result[field] = "attachment:verbatim:" + text
    if isinstance(url, str) and url.startswith("data:") and "," in url:
        header, text = url.split(",", 1)
        own = header[len("data:") : -len(";base64")] or "application/octet-stream"
        if header[len("data:") :].endswith(";base64") and is_payload(
            text, own if declared is None else declared
        ):
            same = declared is not None and header == f"data:{declared};base64"
            result["url"] = pointer(text) + ("" if same else f";{header},")
    looked_at = not isinstance(url, str) or url.startswith("attachment:")
    if looked_at and isinstance(data, str) and declared and is_payload(data, declared):
        result["data"] = pointer(data)
    return result


@law
@given(media_messages)
@example({"id": "a", "role": "u", "parts": [{"type": "file", "url": "attachment:verbatim:x"}]})
def test_extract_is_undone_by_restore(message: Any) -> None:
    before = dumps(message)
    extracted = extract(message)
    assert dumps(message) == before
    restored = restore(extracted.message, LOAD, extracted.references)
    assert dumps(restored) == before


@law
@given(media_messages)
def test_extract_agrees_with_a_simple_version(message: Any) -> None:
    found: list[bytes] = []
    stored = {**message, "parts": slow_extract(message["parts"], 0, found)}
    extracted = extract(message)
    assert dumps(extracted.message) == dumps(stored)
    assert {payload.data for payload in extracted.payloads.values()} == set(found)
    assert all(
        hashlib.sha256(payload.data).hexdigest() == digest
        for digest, payload in extracted.payloads.items()
    )
    assert extracted.references == tuple(extracted.payloads)
    counts = count_pointers(extracted.message, extracted.references)
    assert sum(counts.values()) == len(found)
    assert set(counts) == set(extracted.references)


@law
@given(media_messages)
def test_the_same_object_comes_back_when_nothing_changes(message: Any) -> None:
    extracted = extract(message)
    assert (extracted.message is message) == (dumps(extracted.message) == dumps(message))
    if not may_hold_media(dumps(message)):
        assert extracted.message is message
    restored = restore(message, LOAD, HASHES)
    assert (restored is message) == (dumps(restored) == dumps(message))
    if not may_hold_pointer(dumps(message)):
        assert restored is message
        assert count_pointers(message, HASHES) == {}


@law
@given(media_messages)
def test_a_message_reads_no_payload_it_did_not_bring(message: Any) -> None:
    asked: list[str] = []

    def load(digest: str) -> bytes | None:
        asked.append(digest)
        return LOAD(digest)

    extracted = extract(message)
    restore(extracted.message, load, HASHES)  # as if it held every payload there is
    assert set(asked) == set(extracted.references)
