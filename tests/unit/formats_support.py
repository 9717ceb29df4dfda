"""A deployment in memory with the methods that importers, exporters and the CLI use."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from router.formats import (
    IMPORTERS,
    ImportSummary,
    Problem,
    Reader,
    export_one,
    import_conversations,
    text_source,
)
from sessions_actor.records import Compaction, HistoryRow


class MemorySession:
    """Rows, overlays and configuration of one session, as plain lists."""

    def __init__(self) -> None:
        self.rows: dict[str, HistoryRow] = {}
        self.overlays: dict[str, Compaction] = {}
        self.config: dict[str, str] = {}

    async def import_messages(self, items: Iterable[HistoryRow]) -> int:
        """Import all or nothing, as the engine does."""
        items = list(items)
        for item in items:
            if str(item.message["id"]).startswith("refused"):
                raise ValueError("message.id: refused")
        before = len(self.rows)
        for item in items:
            row = replace(item, seq=len(self.rows) + 1)
            self.rows.setdefault(item.message["id"], row)
        return len(self.rows) - before

    async def import_compactions(self, overlays: Iterable[Compaction]) -> int:
        """Import overlays under their own ids."""
        before = len(self.overlays)
        for overlay in overlays:
            self.overlays.setdefault(overlay.id, overlay)
        return len(self.overlays) - before

    async def import_config(self, entries: Mapping[str, str]) -> int:
        """Import entries whose keys are new."""
        before = len(self.config)
        self.config = {**entries, **self.config}
        return len(self.config) - before

    async def history_rows(self) -> AsyncIterator[HistoryRow]:
        """Stream the rows in the order of writing."""
        for row in list(self.rows.values()):
            yield row

    async def history(self, *, leaf_id: str | None = None) -> AsyncIterator[dict[str, Any]]:
        """Stream a path, root first (overlays not applied)."""
        at = leaf_id or next(reversed(self.rows), None)
        path = []
        while at in self.rows:
            path.append(self.rows[at].message)
            at = self.rows[at].parent_id
        for message in reversed(path):
            yield message

    async def get_compactions(self) -> list[Compaction]:
        """List the overlays."""
        return list(self.overlays.values())

    async def get_config(self) -> dict[str, str]:
        """Return the configuration."""
        return dict(self.config)


class MemoryConversation:
    """Sessions by id."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sessions: dict[str, MemorySession] = {}

    def session(self, session_id: str = "") -> MemorySession:
        """Return a session, made on first use."""
        return self.sessions.setdefault(session_id, MemorySession())

    async def session_ids(self) -> list[str]:
        """List the sessions that hold anything."""
        return [
            one for one, held in self.sessions.items() if held.rows or held.overlays or held.config
        ]


class MemoryClient:
    """Conversations by name."""

    def __init__(self) -> None:
        self.conversations: dict[str, MemoryConversation] = {}

    def get(self, name: str) -> MemoryConversation:
        """Return a conversation, made on first use."""
        if name not in self.conversations:
            self.conversations[name] = MemoryConversation(name)
        return self.conversations[name]

    def rows(self, name: str, session_id: str = "") -> list[HistoryRow]:
        """Return a session's rows."""
        return list(self.conversations[name].session(session_id).rows.values())


class Imported:
    """A finished import: the client, the sum, the problems."""

    def __init__(self, client: MemoryClient, summary: ImportSummary, found: list[Problem]) -> None:
        self.client, self.summary, self.problems = client, summary, found

    def shape(self, name: str, session_id: str = "") -> dict[str, str | None]:
        """Return id -> parent of a session, in the order of writing."""
        rows = self.client.rows(name, session_id)
        return {row.message["id"]: row.parent_id for row in rows}

    def message(self, name: str, message_id: str, session_id: str = "") -> dict[str, Any]:
        """Return one message."""
        return self.client.conversations[name].session(session_id).rows[message_id].message


async def run_import(
    form: str,
    data: bytes,
    *,
    label: str = "file",
    client: MemoryClient | None = None,
    name: str | None = None,
) -> Imported:
    """Import bytes into a deployment in memory."""
    client = client or MemoryClient()
    problems: list[Problem] = []
    reader = Reader(text_source(data, label), problems.append, created_at=1_000)
    summary = await import_conversations(
        client, IMPORTERS[form](reader), report=problems.append, name=name
    )
    return Imported(client, summary, problems)


async def run_export(client: MemoryClient, form: str, names: list[str] | None = None) -> bytes:
    """Export conversations as one file."""
    names = names or sorted(client.conversations)
    pieces = [
        piece
        for name in names
        async for piece in export_one(client.get(name), form, alone=len(names) == 1)
    ]
    return b"".join(pieces)
