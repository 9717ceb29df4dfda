"""Which parts of a message are media payloads, how they leave it, and how they come back.

The stored form of a message holds a pointer where a payload was:

    attachment:sha256:<64 hex>                         the payload, as the part's own type says
    attachment:sha256:<64 hex>;data:image/png;x;base64,   the payload after this very header
    attachment:verbatim:<text>                         text from outside that looks like a pointer

`restore` undoes `extract` exactly, for every message: nothing but the text of `url` and `data`
fields changes, only base64 that re-encodes to itself leaves, and text that came in looking like a
pointer is marked, so that no message can name a payload it did not bring.

Pure: payloads are handed out and asked for; where they are kept is not decided here.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from pybase64 import b64decode, b64encode_as_string

from .limits import WALK_DEPTH_MAX
from .messages import SessionMessage

_SCHEME = "attachment:"
_VERBATIM = "attachment:verbatim:"
_POINTER = re.compile(r"attachment:sha256:([0-9a-f]{64})(?:;(.*))?", re.DOTALL)
_SCHEME_IN_JSON = b'"' + _SCHEME.encode()

_DEFAULT_MEDIA_TYPE = "application/octet-stream"

_Fields = Callable[[dict[str, Any]], dict[str, Any]]
"""What the `url` and `data` of one object become; an empty dict when they stay."""


class Payload(NamedTuple):
    """The bytes of one attachment, and the media type it was first seen with."""

    data: bytes
    media_type: str


_TEXT_PART = {"type", "text"}


class Extracted(NamedTuple):
    """A message's stored form, the payloads that left it by SHA-256, and their hashes in order."""

    message: SessionMessage
    payloads: dict[str, Payload]
    references: tuple[str, ...]


def extract(message: SessionMessage) -> Extracted:
    """Take the media payloads out of a message.

    An object anywhere in `parts`, down to 8 levels, gives its payload when it has a `url` that is
    a base64 `data:` URL, or, lacking a `url`, a base64 `data` and a `mediaType`. Text stays.

    Returns: the message itself, the same object, when nothing in it changes.
    Source: Attachments.
    """
    if all(
        part.keys() == _TEXT_PART and isinstance(part["text"], str) for part in message["parts"]
    ):
        return Extracted(message, {}, ())  # as most are: there is nowhere to look
    payloads: dict[str, Payload] = {}

    def point_at(found: Payload) -> str:
        digest = hashlib.sha256(found.data).hexdigest()
        payloads.setdefault(digest, found)
        return f"attachment:sha256:{digest}"

    def fields(part: dict[str, Any]) -> dict[str, Any]:
        url, data = part.get("url"), part.get("data")
        changes: dict[str, Any] = {}
        url_decides = isinstance(url, str)
        if isinstance(url, str):
            if url.startswith(_SCHEME):
                changes["url"] = _VERBATIM + url
                url_decides = False
            elif (payload := _payload_of_url(url, part)) is not None:
                header = url[: url.index(",") + 1]
                changes["url"] = point_at(payload)
                if header != _own_header(part):
                    changes["url"] += ";" + header
        if isinstance(data, str):
            if data.startswith(_SCHEME):
                changes["data"] = _VERBATIM + data
            elif not url_decides and (payload := _payload_of_data(data, part)) is not None:
                changes["data"] = point_at(payload)
        return changes

    stored = _with_fields(message, fields)
    return Extracted(stored, payloads, tuple(payloads))


def restore(
    message: SessionMessage, load: Callable[[str], bytes | None], held: Collection[str]
) -> SessionMessage:
    """Put payloads back where `extract` took them from.

    Args: `load` returns the bytes of a hash. `held` are the hashes this message holds references
    to: a pointer to anything else stays as it is, and so does one whose bytes are gone.
    Returns: the same object when nothing changes.
    """

    def fields(part: dict[str, Any]) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        for field in ("url", "data"):
            text = part.get(field)
            if not isinstance(text, str) or not text.startswith(_SCHEME):
                continue
            if text.startswith(_VERBATIM):
                changes[field] = text[len(_VERBATIM) :]
            elif (pointer := _pointer_in(field, text, held)) is not None:
                digest, header = pointer
                data = load(digest)
                if data is not None:
                    if field == "url" and header is None:
                        header = _own_header(part) or f"data:{_DEFAULT_MEDIA_TYPE};base64,"
                    changes[field] = (header or "") + b64encode_as_string(data)
        return changes

    return _with_fields(message, fields)


def may_hold_pointer(content: bytes) -> bool:
    """Tell whether stored JSON might need `restore`; False is certain. A substring search."""
    return _SCHEME_IN_JSON in content


def may_hold_media(content: bytes) -> bool:
    """Tell whether a message, given as JSON, might need `extract`; False is certain."""
    if b";base64," in content or _SCHEME_IN_JSON in content:
        return True
    return b'"mediaType":' in content and b'"data":' in content


def count_pointers(message: SessionMessage, held: Collection[str]) -> dict[str, int]:
    """Count how often each payload stands in the restored form of a stored message."""
    counts: dict[str, int] = {}

    def fields(part: dict[str, Any]) -> dict[str, Any]:
        for field in ("url", "data"):
            pointer = _pointer_in(field, part.get(field), held)
            if pointer is not None:
                counts[pointer[0]] = counts.get(pointer[0], 0) + 1
        return {}

    _with_fields(message, fields)
    return counts


def _pointer_in(field: str, text: Any, held: Collection[str]) -> tuple[str, str | None] | None:
    """Return (hash, header written with it) when a field's text points at a held payload."""
    found = _POINTER.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in held or (field == "data" and found[2] is not None):
        return None
    return found[1], found[2]


def _own_header(part: dict[str, Any]) -> str | None:
    """Return the header of the `data:` URL that a part's own media type makes."""
    media_type = part.get("mediaType")
    return f"data:{media_type};base64," if isinstance(media_type, str) else None


def _payload_of_url(url: str, part: dict[str, Any]) -> Payload | None:
    if not url.startswith("data:"):
        return None
    header, comma, text = url.partition(",")
    own_type = header.removeprefix("data:")
    if not comma or not own_type.endswith(";base64"):
        return None
    declared = part.get("mediaType")
    if not isinstance(declared, str):
        declared = own_type.removesuffix(";base64") or _DEFAULT_MEDIA_TYPE
    return _payload(text, declared)


def _payload_of_data(text: str, part: dict[str, Any]) -> Payload | None:
    declared = part.get("mediaType")
    return _payload(text, declared) if isinstance(declared, str) and declared else None


def _payload(text: str, media_type: str) -> Payload | None:
    """Decode base64 that re-encodes to exactly itself, unless its type is text."""
    if media_type.startswith("text/") or len(text) % 4:
        return None
    try:
        data = b64decode(text, validate=True)
    except ValueError:
        return None
    # Strict decoding leaves one doubt: bits behind the last byte, which are not all zero.
    end = (len(data) - 1) // 3 * 3 if data else 0
    return Payload(data, media_type) if b64encode_as_string(data[end:]) == text[-4:] else None


def _with_fields(message: SessionMessage, fields: _Fields) -> SessionMessage:
    parts = message["parts"]
    walked = _walk(parts, 0, fields)
    return message if walked is parts else {**message, "parts": walked}


def _walk(value: Any, depth: int, fields: _Fields) -> Any:
    """Return a container with every object's fields replaced; itself when none changes."""
    changed: Any = None
    if isinstance(value, dict) and ("url" in value or "data" in value):
        changes = fields(value)
        if changes:
            changed = {**value, **changes}
    if depth == WALK_DEPTH_MAX:
        return value if changed is None else changed
    entries: Iterable[Any] = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in entries:
        if not isinstance(entry, str) and isinstance(entry, (dict, list, tuple)):
            walked = _walk(entry, depth + 1, fields)
            if walked is not entry:
                if changed is None:
                    changed = dict(value) if isinstance(value, dict) else list(value)
                changed[key] = walked
    return value if changed is None else changed
