"""The shape of a message, and what sanitising and stripping do to one."""

from typing import Any

import pytest

from sessions_actor.messages import sanitize, strip_reserved, validate_id, validate_message

OPENAI = {"itemId": "i", "reasoningEncryptedContent": "e"}


def message(*parts: dict[str, Any], **more: Any) -> Any:
    return {"id": "m", "role": "user", "parts": list(parts), **more}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "message: an object is required, not NoneType"),
        ([], "message: an object is required, not list"),
        ({}, "message.id: a string is required, not nothing"),
        ({"id": 5}, "message.id: a string is required, not int"),
        ({"id": ""}, "message.id: an empty string is no id"),
        ({"id": "a\ud83d"}, "message.id: holds a lone surrogate at index 1"),
        ({"id": "a"}, "message.role: a string is required, not nothing"),
        ({"id": "a", "role": 1}, "message.role: a string is required, not int"),
        ({"id": "a", "role": "\udfff"}, "message.role: holds a lone surrogate at index 0"),
        ({"id": "a", "role": "u"}, "message.parts: a list is required, not nothing"),
        ({"id": "a", "role": "u", "parts": "x"}, "message.parts: a list is required, not str"),
        ({"id": "a", "role": "u", "parts": {}}, "message.parts: a list is required, not dict"),
        (message("x"), "message.parts[0]: an object is required, not str"),  # type: ignore[arg-type]
        (message({"type": "text"}, {}), "message.parts[1].type: a string is required, not nothing"),
        (message({"type": 1}), "message.parts[0].type: a string is required, not int"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
def test_ill_formed_messages_are_refused_by_field(value: object, text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (compared below)
        validate_message(value)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "value",
    [
        message(),
        message({"type": ""}),
        message({"type": "text", "text": None}, metadata=[1], more=1),
        {"parts": [], "role": "", "id": "\0"},
    ],
)
def test_everything_else_passes(value: object) -> None:
    validate_message(value)


def test_validate_id_names_the_field() -> None:
    validate_id("💥", "parent_id")
    with pytest.raises(ValueError, match=r"^parent_id: "):
        validate_id("", "parent_id")


def part(**keys: Any) -> dict[str, Any]:
    return {"type": "text", "text": "t", **keys}


@pytest.mark.parametrize("key", ["providerMetadata", "callProviderMetadata"])
@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"openai": OPENAI}, None),
        ({"openai": {}}, None),
        ({"openai": {**OPENAI, "k": 1}}, {"openai": {"k": 1}}),
        ({"openai": OPENAI, "other": {}}, {"other": {}}),
        ({"openai": {"itemId": None}, "other": 1}, {"other": 1}),
    ],
)
def test_ephemeral_provider_keys_go(key: str, given: dict[str, Any], left: Any) -> None:
    clean = sanitize(message(part(**{key: given})))
    assert clean == message(part(**({} if left is None else {key: left})))


@pytest.mark.parametrize(
    "metadata",
    [
        {"openai": "text"}, {"openai": [1, 2]}, {"openai": 5}, {"openai": None}, {"openai": False},
        {"openai": {"k": 1}}, {"anthropic": OPENAI}, {}, None, "openai", ["openai"], 5,
    ],
)  # fmt: skip
def test_other_provider_metadata_stays_as_written(metadata: Any) -> None:
    given = message(part(providerMetadata=metadata, after=1), part(callProviderMetadata=metadata))
    assert sanitize(given) is given


def test_what_lost_a_key_moves_to_the_end() -> None:
    given = part(providerMetadata={"openai": {**OPENAI, "k": 1}, "other": 1}, after=1)
    (clean,) = sanitize(message(given))["parts"]
    assert list(clean) == ["type", "text", "after", "providerMetadata"]
    assert list(clean["providerMetadata"]) == ["other", "openai"]


def reasoning(**keys: Any) -> Any:
    return message({"type": "text", "text": "keep"}, {"type": "reasoning", **keys})


@pytest.mark.parametrize(
    "keys",
    [
        {"text": ""}, {"text": "  \n"}, {"text": "\ufeff\u3000"}, {}, {"text": None},
        {"text": "", "providerMetadata": {}}, {"text": "", "providerMetadata": {"openai": OPENAI}},
        {"text": "", "providerMetadata": None}, {"text": "", "providerMetadata": "x"},
        {"text": "", "callProviderMetadata": {"x": 1}}, {"text": "", "reasoning": " "},
        {"text": 5, "reasoning": ["x"]},
    ],
)  # fmt: skip
def test_reasoning_that_says_nothing_goes(keys: dict[str, Any]) -> None:
    assert sanitize(reasoning(**keys)) == message({"type": "text", "text": "keep"})


@pytest.mark.parametrize(
    "keys",
    [
        {"text": "\u200b"}, {"text": "\x1c"}, {"text": "\x85"}, {"text": "ok"},
        {"reasoning": "said here"}, {"text": "", "reasoning": "said here"},
        {"text": "", "providerMetadata": {"anthropic": {"signature": "s"}}},
    ],
)  # fmt: skip
def test_reasoning_that_says_something_stays(keys: dict[str, Any]) -> None:
    given = reasoning(**keys)
    assert sanitize(given) is given


def test_empty_text_parts_stay() -> None:
    given = message({"type": "text", "text": ""})
    assert sanitize(given) is given


def test_strip_reserved() -> None:
    given = message(metadata={"a": 1, "channel": 2, "b": 3})
    assert strip_reserved(given, ("channel",)) == message(metadata={"a": 1, "b": 3})
    assert given == message(metadata={"a": 1, "channel": 2, "b": 3})
    assert strip_reserved(given, ("other",)) is given
    assert strip_reserved(given, ()) is given
    assert "metadata" not in strip_reserved(message(metadata={"channel": 1}), ("channel",))


@pytest.mark.parametrize("metadata", [None, "channel", ["channel"], {}, 5])
def test_metadata_that_is_no_object_stays(metadata: Any) -> None:
    given = message(metadata=metadata)
    assert strip_reserved(given, ("channel",)) is given
