"""Sanitising removes what it names and nothing else, once, and leaves its input alone."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sessions_actor.codec import dumps
from sessions_actor.messages import JS_SPACE, sanitize, strip_reserved, validate_message

from .json_values import law, messages_of, values

_openai = st.one_of(
    st.fixed_dictionaries(
        {}, optional={"itemId": values, "reasoningEncryptedContent": values, "k": st.just(1)}
    ),
    st.sampled_from(("text", 0, None, False)),
    st.just([1, 2]),
)
_metadata = st.one_of(
    st.fixed_dictionaries({}, optional={"openai": _openai, "other": st.just({})}),
    st.sampled_from((None, "openai", 5)),
    st.lists(st.just("openai"), max_size=1),
)
_words = st.one_of(st.text(st.sampled_from(JS_SPACE + "\x1c\x85\u200b"), max_size=2), values)
_parts = st.fixed_dictionaries(
    {"type": st.sampled_from(("text", "reasoning"))},
    optional={
        "text": _words,
        "reasoning": _words,
        "providerMetadata": _metadata,
        "callProviderMetadata": _metadata,
        "after": st.just(1),
    },
)
messages = messages_of(_parts)


def blank(value: Any) -> bool:
    return not isinstance(value, str) or all(c in JS_SPACE for c in value)


def slow_sanitize(message: Any) -> Any:
    """Delete from a deep copy."""
    message = copy.deepcopy(message)
    kept = []
    for part in message["parts"]:
        for key in ("providerMetadata", "callProviderMetadata"):
            metadata = part.get(key)
            if not isinstance(metadata, dict) or not isinstance(metadata.get("openai"), dict):
                continue
            openai = metadata["openai"]
            openai.pop("itemId", None)
            openai.pop("reasoningEncryptedContent", None)
            if not openai:
                del metadata["openai"]
            if not metadata:
                del part[key]
        if part["type"] == "reasoning" and not part.get("providerMetadata"):
            if blank(part.get("text")) and blank(part.get("reasoning")):
                continue
        elif (
            part["type"] == "reasoning"
            and not isinstance(part["providerMetadata"], (dict, list))
            and blank(part.get("text"))
            and blank(part.get("reasoning"))
        ):
            continue
        kept.append(part)
    return {**message, "parts": kept}


@law
@given(messages)
def test_sanitize(message: Any) -> None:
    validate_message(message)
    before = dumps(message)
    clean = sanitize(message)
    assert dumps(message) == before
    assert clean == slow_sanitize(message)
    assert (clean is message) == (clean == message)
    assert sanitize(clean) is clean


@law
@given(
    messages_of(_parts, max_size=1),
    st.one_of(st.dictionaries(st.sampled_from("abc"), st.none()), values),
    st.sets(st.sampled_from("abcd")),
)
def test_strip_reserved(message: Any, metadata: Any, keys: set[str]) -> None:
    message["metadata"] = metadata
    before = dumps(message)
    stripped: Any = strip_reserved(message, keys)
    assert dumps(message) == before
    held = isinstance(metadata, dict) and not keys.isdisjoint(metadata)
    assert (stripped is message) == (not held)
    if held:
        left = {key: value for key, value in metadata.items() if key not in keys}
        assert stripped.get("metadata", {}) == left
        assert ("metadata" in stripped) == bool(left)
        assert [key for key in stripped if key != "metadata"] == [
            key for key in message if key != "metadata"
        ]
