"""Replicas that no file needs any more, each kept for a time: a table of the directory.

The statement that lets go of a file notes its replica here, in the same transaction; who removes
it strikes it off. Nothing is noted in a deployment without replicas.
"""

from collections.abc import Callable
from typing import NamedTuple

from sessions_actor.storage import Storage

SCHEMA = """
CREATE TABLE IF NOT EXISTS spent_lines (
  name BLOB NOT NULL, up_to INTEGER NOT NULL, due_at INTEGER NOT NULL, PRIMARY KEY (name, up_to)
) WITHOUT ROWID;
"""


class Spent(NamedTuple):
    """Lines of a conversation's replica, up to a generation, that were kept long enough."""

    name: str
    up_to: int


class Keep(NamedTuple):
    """For how many ms replicas are kept: those of files left behind, those of the deleted."""

    left_ms: int
    deleted_ms: int


class SpentLines:
    """The table, in an open directory."""

    def __init__(self, storage: Storage, now_ms: Callable[[], int]) -> None:
        self._storage, self._now_ms = storage, now_ms
        self.keep: Keep | None = None

    def left(self, name: str, generation: int) -> None:
        """Note, inside an op, that a conversation went on in another file than this one."""
        if self.keep is not None:
            self._note(name, generation, self.keep.left_ms)

    def deleted(self, name: str, generation: int) -> None:
        """Note, inside an op, that a conversation was deleted."""
        if self.keep is not None:
            self._note(name, generation, self.keep.deleted_ms)

    def _note(self, name: str, up_to: int, after_ms: int) -> None:
        self._storage.write(
            "INSERT OR REPLACE INTO spent_lines VALUES (?, ?, ?)",
            (name.encode(), up_to, self._now_ms() + after_ms),
        )

    def due(self, limit: int = 10) -> list[Spent]:
        """Return replicas that were kept long enough, those due first.

        One whose record is still to be written waits for that: it would be all that is left of it.
        So does the last that was complete, until the file that came after it is copied.
        """
        rows = self._storage.fetch(
            "SELECT name, up_to FROM spent_lines WHERE due_at <= ? AND NOT EXISTS (SELECT 1 FROM"
            " due_records WHERE due_records.name = spent_lines.name AND generation <= up_to)"
            " AND NOT EXISTS (SELECT 1 FROM conversations WHERE conversations.name ="
            " spent_lines.name AND line BETWEEN 1 AND up_to AND line <> generation)"
            " ORDER BY due_at LIMIT ?",
            (self._now_ms(), limit),
        )
        return [Spent(name.decode(), up_to) for name, up_to in rows]

    async def postponed(self, spent: Spent, by_ms: int) -> None:
        """Have replicas wait that could not be removed."""
        await self._storage.submit(
            lambda: self._storage.write(
                "UPDATE spent_lines SET due_at = ? WHERE name = ? AND up_to = ?",
                (self._now_ms() + by_ms, spent.name.encode(), spent.up_to),
            )
        )

    async def removed(self, spent: Spent) -> None:
        """Strike off replicas that are gone."""
        await self._storage.submit(
            lambda: self._storage.write(
                "DELETE FROM spent_lines WHERE name = ? AND up_to <= ?",
                (spent.name.encode(), spent.up_to),
            )
        )
