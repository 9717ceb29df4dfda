"""What a message is, and what every write does to it before it is stored.

A message is a plain JSON dict. Functions here never change their input: they return it, the same
object, when there is nothing to do, and a copy that shares what stayed otherwise.

Not here: which parts are media (`attachments`), how JSON is written (`codec`).
"""

from collections.abc import Collection
from typing import Any, NotRequired, TypedDict

# What JavaScript's `trim` and `\s` take for white space. Python's differs: it has U+001C to U+001F
# and U+0085, and lacks U+FEFF.
JS_SPACE = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)

_PROVIDER_KEYS = ("providerMetadata", "callProviderMetadata")
_EPHEMERAL_KEYS = ("itemId", "reasoningEncryptedContent")


MessagePart = dict[str, Any]
"""One part of a message: a string under `type` says which; the other keys depend on it."""


class SessionMessage(TypedDict):
    """A message of a session. Keys beyond these are kept, in order."""

    id: str
    role: str
    parts: list[MessagePart]
    metadata: NotRequired[Any]
    createdAt: NotRequired[Any]


def validate_message(message: object) -> None:
    """Check that a value has the shape of a message.

    Raises: ValueError naming the field ("message.parts[2].type: a string is required").
    """
    if not isinstance(message, dict):
        raise ValueError(f"message: an object is required, not {type(message).__name__}")
    validate_id(message.get("id"), "message.id")
    role = message.get("role")
    if not isinstance(role, str):
        raise _not_a_string("message.role", role)
    _refuse_lone_surrogates("message.role", role)
    parts = message.get("parts")
    if not isinstance(parts, list):
        raise ValueError(f"message.parts: a list is required, not {_kind(parts)}")
    for index, part in enumerate(parts):
        if not isinstance(part, dict):
            raise ValueError(f"message.parts[{index}]: an object is required, not {_kind(part)}")
        if not isinstance(part.get("type"), str):
            raise _not_a_string(f"message.parts[{index}].type", part.get("type"))


def validate_id(value: object, field: str) -> None:
    """Check a message's id: a string, not empty, and expressible in UTF-8.

    Raises: ValueError naming the field.
    """
    if not isinstance(value, str):
        raise _not_a_string(field, value)
    if not value:
        raise ValueError(f"{field}: an empty string is no id")
    _refuse_lone_surrogates(field, value)


def _refuse_lone_surrogates(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{field}: holds a lone surrogate at index {error.start}") from None


def _not_a_string(field: str, value: object) -> ValueError:
    return ValueError(f"{field}: a string is required, not {_kind(value)}")


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def sanitize(message: SessionMessage) -> SessionMessage:
    """Remove what providers mean for one request only, and reasoning parts that say nothing.

    Returns: the same object when there is nothing to remove. A provider's object that lost a key
    moves to the end of its part, where the reference leaves it.
    Source: Writes.
    """
    parts = message["parts"]
    kept: list[MessagePart] | None = None
    for index, part in enumerate(parts):
        clean = part
        for key in _PROVIDER_KEYS:
            if key in clean:
                clean = _without_ephemeral(clean, key)
        drop = clean["type"] == "reasoning" and _says_nothing(clean)
        if kept is None and (drop or clean is not part):
            kept = parts[:index]
        if kept is not None and not drop:
            kept.append(clean)
    return message if kept is None else {**message, "parts": kept}


def _without_ephemeral(part: MessagePart, key: str) -> MessagePart:
    metadata = part[key]
    if not isinstance(metadata, dict):
        return part
    openai = metadata.get("openai")
    if not isinstance(openai, dict):
        return part
    lasting = {name: value for name, value in openai.items() if name not in _EPHEMERAL_KEYS}
    if lasting and len(lasting) == len(openai):
        return part
    others = {name: value for name, value in metadata.items() if name != "openai"}
    if lasting:
        others["openai"] = lasting
    rest = {name: value for name, value in part.items() if name != key}
    if others:
        rest[key] = others
    return rest


def _says_nothing(part: MessagePart) -> bool:
    metadata = part.get("providerMetadata")
    if isinstance(metadata, (dict, list)) and metadata:
        return False
    return _is_blank(part.get("text")) and _is_blank(part.get("reasoning"))


def _is_blank(value: Any) -> bool:
    return not isinstance(value, str) or not value.strip(JS_SPACE)


def strip_reserved(message: SessionMessage, keys: Collection[str]) -> SessionMessage:
    """Remove metadata keys that only the server may set; metadata left empty goes too.

    Returns: the same object when it has none of them.
    """
    metadata = message.get("metadata")
    if not isinstance(metadata, dict) or not any(key in metadata for key in keys):
        return message
    kept = {name: value for name, value in metadata.items() if name not in keys}
    if kept:
        return {**message, "metadata": kept}
    bare = message.copy()
    del bare["metadata"]
    return bare
