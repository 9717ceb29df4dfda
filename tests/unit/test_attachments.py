"""What leaves a message, what stands in its place, and what comes back."""

import hashlib
from base64 import b64encode
from typing import Any

import pytest

from sessions_actor.attachments import (
    Extracted,
    Payload,
    count_pointers,
    extract,
    may_hold_media,
    may_hold_pointer,
    restore,
)
from sessions_actor.codec import dumps

HELLO = b"hello"
TEXT = b64encode(HELLO).decode()
HASH = hashlib.sha256(HELLO).hexdigest()
POINTER = f"attachment:sha256:{HASH}"
URL = f"data:image/png;base64,{TEXT}"


def message(*parts: Any) -> Any:
    return {"id": "m", "role": "user", "parts": list(parts)}


def stored_part(part: Any) -> Any:
    """Extract one part and check that it comes back."""
    given = message(part)
    extracted = extract(given)
    assert dumps(read_back(extracted)) == dumps(given)
    (stored,) = extracted.message["parts"]
    return stored


def read_back(extracted: Extracted) -> Any:
    return restore(
        extracted.message,
        lambda digest: extracted.payloads[digest].data,
        extracted.references,
    )


def file(url: Any = URL, media_type: Any = "image/png", **more: Any) -> Any:
    return {"type": "file", "mediaType": media_type, "url": url, **more}


def test_a_file_part_keeps_its_shape() -> None:
    extracted = extract(message({"type": "text", "text": "look"}, file(filename="x.png")))
    assert extracted.message == message(
        {"type": "text", "text": "look"}, file(POINTER, filename="x.png")
    )
    assert extracted.payloads == {HASH: Payload(HELLO, "image/png")}
    assert extracted.references == (HASH,)


def test_data_with_a_media_type() -> None:
    part = {"type": "tool-x", "output": [{"mediaType": "audio/mp3", "data": TEXT}]}
    assert stored_part(part)["output"] == [{"mediaType": "audio/mp3", "data": POINTER}]


@pytest.mark.parametrize(
    ("url", "media_type", "pointer"),
    [
        (URL, "image/jpeg", f"{POINTER};data:image/png;base64,"),
        (URL, None, f"{POINTER};data:image/png;base64,"),
        (URL, 5, f"{POINTER};data:image/png;base64,"),
        (
            f"data:image/png;name=x;base64,{TEXT}",
            "image/png",
            f"{POINTER};data:image/png;name=x;base64,",
        ),
        (f"data:;base64,{TEXT}", "image/png", f"{POINTER};data:;base64,"),
        (f"data:;base64,{TEXT}", "", POINTER),
        (f"data:a\nb;base64,{TEXT}", "c", f"{POINTER};data:a\nb;base64,"),
        (f"data:image/png;name=x;base64,{TEXT}", "image/png;name=x", POINTER),
    ],
)
def test_the_header_is_kept_with_the_reference(url: str, media_type: Any, pointer: str) -> None:
    stored = stored_part(file(url, media_type))
    assert stored == file(pointer, media_type)


def test_no_key_is_added() -> None:
    stored = stored_part({"type": "file", "url": URL})
    assert stored == {"type": "file", "url": f"{POINTER};data:image/png;base64,"}


@pytest.mark.parametrize(
    "part",
    [
        file("https://example.com/x.png"),
        file("data:image/svg+xml,%3Csvg%3E"),
        file("data:image/png"),
        file("data:image/png;base64"),
        file("data:image/png;base64,_-_-"),
        file("data:image/png;base64,aGVsbG8"),  # no padding
        file("data:image/png;base64,aGVsbG9="),  # stray bits
        file("data:image/png;base64,aGVs bG8="),
        file("data:image/png;base64,aGVsbG8=\n"),
        file("data:image/png;base64,aGVsbG8==="),
        file("data:image/png;base64,東京東京"),
        file("data:image/png;BASE64,aGVsbG8="),
        file("DATA:image/png;base64,aGVsbG8="),
        file("data:image/png;base64 ,aGVsbG8="),
        file(f"data:image/png,{TEXT}"),
        file(media_type="text/plain"),
        file(f"data:text/plain;base64,{TEXT}", None),
        file(f"data:text/html;charset=utf-8;base64,{TEXT}", None),
        {"type": "file", "mediaType": "text/csv", "data": TEXT},
        {"type": "file", "mediaType": "application/sql", "data": "SELECT 1"},
        {"type": "file", "mediaType": "", "data": TEXT},
        {"type": "file", "mimeType": "image/png", "data": TEXT},
        {"type": "file", "mediaType": None, "data": TEXT},
        {"type": "file", "mediaType": "image/png", "data": [TEXT]},
        {"type": "file", "mediaType": "image/png", "url": "https://e.com/x", "data": TEXT},
    ],
)
def test_what_stays(part: Any) -> None:
    given = message(part)
    extracted = extract(given)
    assert extracted.message is given
    assert extracted.payloads == {}


@pytest.mark.parametrize("media_type", ["TEXT/plain", "text", "application/json"])
def test_media_types_compare_by_case_and_slash(media_type: str) -> None:
    assert stored_part(file(f"data:{media_type};base64,{TEXT}", media_type))["url"] == POINTER


def test_beside_a_payload_in_the_url_data_stays() -> None:
    assert stored_part(file(data=TEXT)) == file(POINTER, data=TEXT)


def test_an_empty_payload_is_a_payload() -> None:
    extracted = extract(message(file("data:image/png;base64,")))
    assert [payload.data for payload in extracted.payloads.values()] == [b""]
    assert read_back(extracted) == message(file("data:image/png;base64,"))


def test_one_payload_many_places() -> None:
    given = message(*[file() for _ in range(50)], file(media_type="image/jpeg"))
    extracted = extract(given)
    assert extracted.references == (HASH,)
    assert count_pointers(extracted.message, extracted.references) == {HASH: 51}
    assert read_back(extracted) == given


def test_references_are_in_order_of_appearance() -> None:
    urls = [b64encode(bytes([number])).decode() for number in (9, 3, 5, 3)]
    given = message(*[file(f"data:image/png;base64,{text}") for text in urls])
    extracted = extract(given)
    assert [extracted.payloads[digest].data for digest in extracted.references] == [
        b"\x09",
        b"\x03",
        b"\x05",
    ]


@pytest.mark.parametrize("levels", range(12))
def test_eight_levels_are_looked_at(levels: int) -> None:
    value: Any = {"mediaType": "image/png", "data": TEXT}
    for _ in range(levels):
        value = {"in": value}
    part = {"type": "tool-x", "output": value}  # the part is on level 1, its output on level 2
    extracted = extract(message(part))
    assert bool(extracted.payloads) == (levels + 2 <= 8)
    assert read_back(extracted) == message(part)


def test_the_walk_goes_on_below_an_object_that_gave_its_payload() -> None:
    inner = {"mediaType": "audio/mp3", "data": b64encode(b"inner").decode()}
    stored = stored_part(file(more=[inner], data=inner))
    assert stored["url"] == POINTER
    assert stored["data"]["data"].startswith("attachment:sha256:")
    assert stored["more"][0]["data"].startswith("attachment:sha256:")


def test_metadata_is_not_looked_into() -> None:
    given = message()
    given["metadata"] = {"mediaType": "image/png", "data": TEXT, "url": POINTER}
    assert extract(given).message is given
    assert restore(given, lambda digest: HELLO, [HASH]) is given


FROM_OUTSIDE = [
    POINTER,
    f"{POINTER};data:image/png;base64,",
    "attachment:verbatim:x",
    "attachment:verbatim:attachment:verbatim:x",
    "attachment:",
    "attachment:sha256:zz",
]


@pytest.mark.parametrize("text", FROM_OUTSIDE)
@pytest.mark.parametrize("field", ["url", "data"])
def test_text_from_outside_is_never_a_pointer(text: str, field: str) -> None:
    for part in ({"type": "file", field: text}, {"type": "tool-x", "output": [{field: text}]}):
        given = message(part)
        extracted = extract(given)
        assert extracted.payloads == {}
        assert may_hold_pointer(dumps(extracted.message))
        assert count_pointers(extracted.message, [HASH]) == {}
        assert restore(extracted.message, lambda digest: b"another's", [HASH]) == given


def test_text_from_outside_in_other_fields_is_left_alone() -> None:
    given = message({"type": "text", "text": POINTER}, {"type": "x", "href": "attachment:"})
    assert extract(given).message is given


def test_a_pointer_from_outside_hides_nothing() -> None:
    inner = {"mediaType": "image/png", "data": TEXT}
    stored = stored_part({"type": "file", "url": POINTER, **inner, "more": inner})
    assert stored["url"] == f"attachment:verbatim:{POINTER}"
    assert stored["data"] == stored["more"]["data"] == POINTER


def test_a_pointer_resolves_only_where_it_is_held() -> None:
    stored = message(file(POINTER))
    assert restore(stored, lambda digest: HELLO, []) is stored
    assert restore(stored, lambda digest: None, [HASH]) is stored
    assert restore(stored, lambda digest: HELLO, [HASH]) == message(file())


def test_a_plain_pointer_takes_the_type_of_its_part() -> None:
    given = message(file(POINTER, "audio/wav"), {"type": "file", "url": POINTER})
    first, second = restore(given, lambda digest: HELLO, [HASH])["parts"]
    assert first["url"] == f"data:audio/wav;base64,{TEXT}"
    assert second["url"] == f"data:application/octet-stream;base64,{TEXT}"


def test_input_is_never_changed() -> None:
    given = message(file(), {"type": "tool-x", "output": (file(), [file()])})
    before = dumps(given)
    extracted = extract(given)
    stored = dumps(extracted.message)
    read_back(extracted)
    assert dumps(given) == before
    assert dumps(extracted.message) == stored


def test_may_hold_pointer() -> None:
    assert may_hold_pointer(dumps(message(file(POINTER))))
    assert not may_hold_pointer(dumps(message({"type": "text", "text": "an attachment: none"})))


def test_may_hold_media() -> None:
    for part in (file(), file(POINTER), {"type": "x", "mediaType": "a/b", "data": TEXT}):
        assert may_hold_media(dumps(message(part)))
    assert not may_hold_media(dumps(message({"type": "text", "text": "data: none"})))
