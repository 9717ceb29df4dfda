"""What a message becomes: checks, sanitising, stored form, sizes, estimates, words.

The plain half of the model: functions of one message, written the shortest way the specification
says it and shared with nothing of the engine.
"""

import base64
import copy
import hashlib
import json
import math
import re
import unicodedata
from typing import Any

Message = dict[str, Any]


POINTER = "attachment:sha256:"
VERBATIM = "attachment:verbatim:"
POINTER_BYTES = len(POINTER) + 64
DEPTH_MAX = 8
JS_SPACE = "\t\n\x0b\x0c\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"


def text_of(value: Any) -> str:
    """Write compact JSON, key order kept, lone surrogates escaped; two that pair are one."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)


def is_text(value: object) -> bool:
    """Tell a string without lone surrogates."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


# ------------------------------------------------------------------------------------- messages
def check(message: Any) -> None:
    """Raise what an ill-formed message or one that JSON cannot hold deserves."""
    if not isinstance(message, dict):
        raise ValueError("message")
    for name in ("id", "role"):
        if not is_text(message.get(name)) or (name == "id" and not message["id"]):
            raise ValueError(name)
    parts = message.get("parts")
    if not isinstance(parts, list):
        raise ValueError("parts")
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise ValueError("parts")
    check_json(message)


def check_json(value: Any) -> None:
    """Raise TypeError for what JSON cannot hold."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("key")
        for item in value.values():
            check_json(item)
    elif isinstance(value, list):
        for item in value:
            check_json(item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError("number")
    elif value is not None and not isinstance(value, str | int):
        raise TypeError(type(value).__name__)


def sanitized(message: Message) -> Message:
    """Drop what providers must not see again."""
    parts = []
    for part in message["parts"]:
        part = copy.deepcopy(part)
        for key in ("providerMetadata", "callProviderMetadata"):
            strip_openai(part, key)
        blank = not isinstance(part.get("text"), str) or is_blank(part["text"])
        told = isinstance(part.get("reasoning"), str) and not is_blank(part["reasoning"])
        if part["type"] == "reasoning" and blank and not told and not part.get("providerMetadata"):
            continue
        parts.append(part)
    return {**message, "parts": parts}


def strip_openai(part: Message, key: str) -> None:
    """Remove the two keys of OpenAI, and the objects that leaves empty."""
    metadata = part.get(key)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("openai"), dict):
        return
    openai = metadata["openai"]
    openai.pop("itemId", None)
    openai.pop("reasoningEncryptedContent", None)
    if not openai:
        del metadata["openai"]
        if not metadata:
            del part[key]


def is_blank(text: str) -> bool:
    """Tell text that JavaScript's trim() makes empty."""
    return re.fullmatch(f"[{JS_SPACE}]*", text) is not None


def stripped(message: Message, reserved: tuple[str, ...]) -> Message:
    """Remove reserved metadata keys, as for a client."""
    metadata = message.get("metadata")
    if not isinstance(metadata, dict) or not any(key in metadata for key in reserved):
        return message
    left = {key: value for key, value in metadata.items() if key not in reserved}
    if left:
        return {**message, "metadata": left}
    return {key: value for key, value in message.items() if key != "metadata"}


# ---------------------------------------------------------------------------------- attachments
def payload_of(record: dict[str, Any]) -> tuple[str, bytes, str] | None:
    """Find the payload an object carries: its field, its bytes and the length of its header."""
    declared = record.get("mediaType") if isinstance(record.get("mediaType"), str) else None
    url = record.get("url")
    if isinstance(url, str) and not url.startswith("attachment:"):
        header, comma, text = url.partition(",")
        if not comma or not header.startswith("data:") or not header.endswith(";base64"):
            return None
        own = header[len("data:") : -len(";base64")] or "application/octet-stream"
        data = canonical(text)
        if data is None or (declared if declared is not None else own).startswith("text/"):
            return None
        return "url", data, header + comma
    plain = record.get("data")
    if declared and not declared.startswith("text/") and isinstance(plain, str):
        data = canonical(plain)
        return None if data is None else ("data", data, "")
    return None


def canonical(text: str) -> bytes | None:
    """Decode base64 that encodes back to exactly itself."""
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return data if base64.b64encode(data).decode() == text else None


def stored(message: Message) -> tuple[Message, list[bytes]]:
    """Make the stored form: pointers for payloads; and every payload, as often as it occurs."""
    payloads: list[bytes] = []

    def walk(value: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            return value
        if isinstance(value, list):
            return [walk(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        found = payload_of(value)
        new = {}
        for key, item in value.items():
            if found and key == found[0]:
                payloads.append(found[1])
                pointer = POINTER + hashlib.sha256(found[1]).hexdigest()
                plain = key == "data" or found[2] == f"data:{value.get('mediaType')};base64,"
                new[key] = pointer if plain else f"{pointer};{found[2]}"
            elif key in ("url", "data") and isinstance(item, str) and item[:11] == "attachment:":
                new[key] = VERBATIM + item
            else:
                new[key] = walk(item, depth + 1)
        return new

    return {**message, "parts": walk(message["parts"], 0)}, payloads


def row_bytes(message: Message) -> int:
    """Charge a row: its stored JSON, and the base64 of every payload it shows."""
    form, payloads = stored(message)
    return len(text_of(form).encode()) + sum((len(data) + 2) // 3 * 4 for data in payloads)


# --------------------------------------------------------------------------------------- tokens
def text_tokens(text: str) -> int:
    """Estimate a text."""
    units = len(text) + sum(char > "\uffff" for char in text)
    words = len(re.findall(f"[^{JS_SPACE}]+", text))
    return math.ceil(max(units / 4, words * 1.3))


def value_tokens(value: Any) -> int:
    """Estimate a text, or the JSON of anything else."""
    if value is None:
        return 0
    return text_tokens(value if isinstance(value, str) else text_of(value))


def message_tokens(message: Message) -> int:
    """Estimate a message as it is stamped on its row."""
    tokens = 4
    for part in message["parts"]:
        kind = part["type"]
        first = [part.get("text"), part.get("reasoning"), part.get("output"), part.get("result")]
        if kind in ("text", "reasoning"):
            tokens += value_tokens(first[0] if first[0] is not None else first[1])
        elif kind.startswith("tool-") or kind == "dynamic-tool":
            tokens += value_tokens(part.get("input"))
            tokens += value_tokens(first[2] if first[2] is not None else first[3])
        elif "text" in part:
            tokens += value_tokens(part["text"])
        elif "result" in part:
            tokens += value_tokens(part["result"])
        url = part.get("url")
        if kind == "file" and isinstance(url, str) and url.startswith("data:"):
            tokens += file_tokens(part.get("mediaType"), url)
    return tokens


def file_tokens(media_type: Any, url: str) -> int:
    """Estimate an inline file."""
    if isinstance(media_type, str) and media_type.startswith("image/"):
        return 1600
    header, comma, payload = url.partition(",")
    if not comma:
        return 0
    size = len(payload) * 3 // 4 if header.endswith(";base64") else len(payload)
    return min(math.ceil(size / 4), 20_000)


# --------------------------------------------------------------------------------------- search
def words_of(text: str) -> list[str]:
    """Cut into lower-case words; every CJK character is a word of its own."""
    words: list[str] = []
    joined = False
    for char in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(char)
        if kind == "Mn" and joined:
            continue
        if kind[0] not in "LN":
            joined = False
        elif "\u3040" <= char <= "\u30ff" or "\u4e00" <= char <= "\u9fff":
            words.append(char)
            joined = False
        elif joined:
            words[-1] += char.lower()
        else:
            words.append(char.lower())
            joined = True
    return words


def searchable(message: Message) -> str:
    """Join the text parts."""
    texts = [part.get("text") for part in message["parts"] if part["type"] == "text"]
    return " ".join(text for text in texts if isinstance(text, str))


def matches(message: Message, query: str) -> bool:
    """Tell whether the message's text holds the query as one phrase."""
    wanted, words = words_of(query), words_of(searchable(message))
    if not wanted:
        return False
    return any(words[i : i + len(wanted)] == wanted for i in range(len(words)))
