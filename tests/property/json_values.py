"""Generated JSON values and messages, odd ones included: lone surrogates, huge integers, media."""

import base64
import hashlib
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Settings of every law: a busy machine is no counterexample."""


def joined(text: str) -> str:
    """Make one character of each surrogate pair, as JSON does."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


texts = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(), max_size=8).map(joined),
    st.text(
        st.sampled_from('\ud83d\udca5"\\/\x00\x1f\x7f\x85\u2028\ufeffé東💥 a'), max_size=12
    ).map(joined),
)
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.one_of(st.integers(), st.integers(-(2**70), 2**70), st.just(10**700))
scalars = st.one_of(st.none(), st.booleans(), integers, floats, texts)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)

PAYLOADS = (b"", b"hello", b"\x89PNG\r\n\x1a\n", bytes(range(40)))
HASHES = tuple(hashlib.sha256(payload).hexdigest() for payload in PAYLOADS)
MEDIA_TYPES = ("image/png", "text/plain", "TEXT/plain", "text", "", "application/pdf", "é;x=1")

_base64 = st.one_of(
    st.sampled_from(PAYLOADS).map(lambda payload: base64.b64encode(payload).decode()),
    st.sampled_from(
        ("aGk", "aGl=", "aGk=\n", " aGk=", "_-_-", "SELECT 1", "====", "aGk=aGk=", "é", "東京東京")
    ),
)
_headers = st.one_of(
    st.sampled_from(MEDIA_TYPES).map(lambda kind: f"data:{kind};base64,"),
    st.sampled_from(
        ("data:;base64,", "data:base64,", "data:,", "DATA:image/png;base64,", "data:image/png")
    ),
    st.just("data:image/png;name=x;base64,"),
)
_pointers = st.builds(
    lambda scheme, digest, rest: f"attachment:{scheme}{digest}{rest}",
    st.sampled_from(("sha256:", "verbatim:", "verbatim:attachment:sha256:", "SHA256:", "")),
    st.sampled_from((*HASHES, "0" * 64, "zz")),
    st.sampled_from(("", ";", ";data:image/png;base64,", "\n", ";x", "a")),
)
media_texts = st.one_of(
    _base64,
    st.builds(lambda header, text: header + text, _headers, _base64),
    _pointers,
    st.sampled_from(("https://example.com/a.png", "attachment", "attachment:")),
)


def _with_media(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = {
        "type": st.sampled_from(("file", "tool-x", "media")),
        "mediaType": st.one_of(st.sampled_from(MEDIA_TYPES), st.just(5)),
        "url": st.one_of(media_texts, inner),
        "data": st.one_of(media_texts, inner),
        "output": inner,
    }
    return st.one_of(
        st.fixed_dictionaries({}, optional=keys),
        st.lists(inner, max_size=2),
        # Straight down, so that objects lie on both sides of the deepest level looked at.
        st.builds(_nested, st.integers(5, 9), st.sampled_from(("list", "output", "url")), inner),
    )


def _nested(depth: int, way: str, inner: Any) -> Any:
    for _ in range(depth):
        inner = [inner] if way == "list" else {way: inner}
    return inner


_media_leaves = st.one_of(st.none(), st.integers(0, 3), media_texts)
_media_values = st.recursive(_media_leaves, _with_media, max_leaves=5)
_media_objects = _with_media(_media_values).filter(lambda value: isinstance(value, dict))


def messages_of(parts: st.SearchStrategy[Any], max_size: int = 4) -> st.SearchStrategy[Any]:
    """Build messages of such parts."""
    return st.builds(
        lambda id_, parts, more: {"id": id_, "role": "user", "parts": parts, **more},
        st.text("ab", min_size=1, max_size=3),
        st.lists(parts, max_size=max_size),
        st.fixed_dictionaries({}, optional={"metadata": values, "createdAt": texts}),
    )


media_messages = messages_of(_media_objects.map(lambda part: {"type": "file", **part}), max_size=2)
