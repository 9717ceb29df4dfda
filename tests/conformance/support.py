"""What the tests of promises share: a host that notes events, short messages, ways to look inside.

Nothing here knows an expected answer.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw

from sessions_actor import DurableObject, Lifecycle, Sessions, open_object
from sessions_actor.records import ChangeEvent

Message = Any
"""A JSON object. Not typed closer: these tests pass what no type checker would let through."""

COUNTED = (
    "cf_agents_session_messages",
    "cf_agents_session_message_chunks",
    "cf_agents_session_compactions",
    "cf_agents_session_attachment_meta",
    "cf_agents_session_attachment_chunks",
    "cf_agents_session_attachment_refs",
)


class Talk(DurableObject):
    """A conversation that notes its change events and its reports."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.sessions = Sessions(reserved_metadata_keys=("channel",))
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.session = self.sessions.session()
        self.events: list[ChangeEvent] = []
        self.reports: list[Any] = []
        self.sessions.subscribe(self.events.append)
        self.lifecycle.events.subscribe(self.reports.append)

    def reported(self, type: str) -> list[dict[str, Any]]:
        """Return the payloads of the reports of that type."""
        return [dict(event.payload) for event in self.reports if event.type == type]

    def counts(self) -> dict[str, int]:
        """Count the rows of every table of Sessions."""
        selected = ", ".join(f"(SELECT COUNT(*) FROM {table}) AS {table}" for table in COUNTED)
        found: dict[str, int] = self.storage.sql.exec(f"SELECT {selected}").one()
        return found

    def contents(self) -> dict[str, str]:
        """Return the stored JSON of every message's own row, by id."""
        rows = self.storage.sql.exec("SELECT id, content FROM cf_agents_session_messages")
        return {row["id"]: row["content"] for row in rows}

    def problems(self) -> list[str]:
        """Let the engine and SQLite check the file."""
        return [*self.sessions.engine.problems(), *self.storage.check()]


@asynccontextmanager
async def opened(path: Path, cls: type[Talk] = Talk, **options: Any) -> AsyncIterator[Talk]:
    """Open a conversation in a file, or in a folder under a name of its own."""
    file = path / "talk.sqlite" if path.is_dir() else path
    async with open_object(cls, name="talk", path=file, **options) as talk:
        yield talk


def said(message_id: str, text: str = "hi", role: str = "user", **more: Any) -> Message:
    """Make a message of one text."""
    return {"id": message_id, "role": role, "parts": [{"type": "text", "text": text}], **more}


def holding(message_id: str, *parts: Any, role: str = "user") -> Message:
    """Make a message of these parts."""
    return {"id": message_id, "role": role, "parts": list(parts)}


def image(text: str, media_type: str = "image/png", **more: Any) -> dict[str, Any]:
    """Make a file part from base64."""
    url = f"data:{media_type};base64,{text}"
    return {"type": "file", "mediaType": media_type, "url": url, **more}


def ids(messages: Iterable[Message]) -> list[str]:
    """Take the ids."""
    return [message["id"] for message in messages]


def written(value: Any) -> str:
    """Write JSON so that types and the order of keys show."""
    return json.dumps(value, separators=(",", ":"))


def json_bytes(message: Message) -> int:
    """Measure a message as it is returned: compact UTF-8 JSON."""
    return len(json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode())


async def grow(talk: Talk, count: int, prefix: str = "m", session_id: str = "") -> list[str]:
    """Append a chain of messages, a thousand at a time; returns their ids."""
    names = [f"{prefix}{i}" for i in range(count)]
    session = talk.sessions.session(session_id)
    for start in range(0, count, 1000):
        batch = names[start : start + 1000]
        await session.append_messages([said(name, f"text of {name}") for name in batch])
    return names


async def history(talk: Talk, **options: Any) -> list[str]:
    """Stream a path and take the ids."""
    return [message["id"] async for message in talk.session.history(**options)]


def page_reads(talk: Talk) -> Callable[[], int]:
    """Start counting the pages SQLite looks at; the function returned tells how many so far."""
    connection = talk.storage.connection

    def looked() -> int:
        kinds = (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
        return int(sum(connection.status(kind)[0] for kind in kinds))

    start = looked()
    return lambda: looked() - start


async def at_once(*calls: Any) -> list[Any]:
    """Run calls side by side; errors come back as values."""
    return await asyncio.gather(*calls, return_exceptions=True)
