"""Another framework's message inside one of ours, exactly, and nothing of it twice.

What people read and search (texts, arguments, results, images) moves into the message's `parts`,
where search, token estimates, compaction and attachments find it. The rest stays as it was in a
template under a key of the framework's name, with a list of holes:

    {"id": "…", "role": "user", "parts": [{"type": "text", "text": "Hello"}],
     "openai": {"item": {"role": "user", "content": null}, "holes": [[0, "text", "content"]]}}

A hole is `[part, key of the part, *path in the template]`; a part that fills none is listed alone.
`fill` puts every value back, so the value read is equal to the one written, key order included; who
edits a part edits what the framework reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sessions_actor.codec import dumps, loads

NOTHING: Final = object()
"""What `get` and `fill` return where there is nothing: None is a value."""


class Template:
    """A value from which parts are taken out, one by one."""

    def __init__(self, value: Any) -> None:
        """Copy a value, as JSON holds it.

        Raises: TypeError for what JSON cannot hold.
        """
        self.value = loads(dumps(value, "item"))
        self.parts: list[dict[str, Any]] = []
        self.holes: list[list[Any]] = []

    def get(self, *path: Any) -> Any:
        """Return what stands at a place, `NOTHING` where there is none."""
        return _at(self.value, path)

    def take(self, key: str, *path: Any, **part: Any) -> None:
        """Move the value at a place into a part of its own, under a key; `part` is the rest."""
        held = _at(self.value, path[:-1])
        taken, held[path[-1]] = held[path[-1]], None
        self.holes.append([len(self.parts), key, *path])
        self.parts.append({**part, key: taken})

    def mark(self, **part: Any) -> None:
        """Add a part that fills no hole: what follows belongs to it."""
        self.holes.append([len(self.parts)])
        self.parts.append(part)

    def stored(self, name: str) -> dict[str, Any]:
        """Return what a message keeps under the framework's key."""
        return {name: self.value, "holes": self.holes}


def fill(stored: object, name: str, parts: Sequence[Mapping[str, Any]]) -> Any:
    """Return the value that a template was made of; `NOTHING` when parts no longer fit it.

    It fills `stored` itself, which is to come fresh from the store.
    """
    if not isinstance(stored, Mapping) or name not in stored:
        return NOTHING
    holes = stored.get("holes")
    # A part too many, or too few, was edited in: the template does not know where it belongs.
    if not isinstance(holes, list) or len(holes) != len(parts):
        return NOTHING
    for number, hole in enumerate(holes):
        if not isinstance(hole, list) or hole[:1] != [number]:
            return NOTHING
        if len(hole) == 1:
            continue
        held = _at(stored[name], hole[2:-1])
        if len(hole) < 3 or hole[1] not in parts[number] or not _has(held, hole[-1]):
            return NOTHING
        held[hole[-1]] = parts[number][hole[1]]
    return stored[name]


def _at(value: Any, path: Sequence[Any]) -> Any:
    for step in path:
        if not _has(value, step):
            return NOTHING
        value = value[step]
    return value


def _has(value: Any, step: Any) -> bool:
    if isinstance(value, dict):
        return step in value
    return isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value)


def media_type_of(url: str) -> str | None:
    """Return the media type that a base64 `data:` URL declares; None for any other text."""
    header, comma, _ = url.partition(",")
    if not comma or not header.startswith("data:") or not header.endswith(";base64"):
        return None
    return header[5:-7].split(";")[0] or "application/octet-stream"
