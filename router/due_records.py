"""Records of replicas that are due: whose a line is, and when a conversation was deleted.

A table of the directory. The statement that gives a conversation a file, or takes its last, notes
here in the same transaction what the store is to be told; who has written it strikes it off.
Nothing is noted in a deployment without replicas.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from sessions_actor.storage import Storage

from .entries import Entry

SCHEMA = """
CREATE TABLE IF NOT EXISTS due_records (
  name BLOB NOT NULL, generation INTEGER NOT NULL, epoch INTEGER NOT NULL,
  created_at INTEGER NOT NULL, quota_bytes INTEGER, deleted_at INTEGER,
  PRIMARY KEY (name, generation)
) WITHOUT ROWID;
"""

PAGE_RECORDS: Final = 32


class DueRecord(NamedTuple):
    """A record as it is to be written; see `replication.replicas.Record`."""

    name: str
    generation: int
    epoch: int
    created_at: int
    quota_bytes: int | None
    deleted_at: int | None


class DueRecords:
    """The table, in an open directory."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.is_on = False

    def note(self, entry: Entry, deleted_at: int | None = None) -> None:
        """Note, inside an op, that a line is a conversation's own; or that it was deleted."""
        if self.is_on:
            self._storage.write(
                "INSERT OR REPLACE INTO due_records VALUES (?, ?, ?, ?, ?, ?)",
                (
                    entry.name.encode(),
                    entry.generation,
                    entry.epoch,
                    entry.created_at,
                    entry.quota_bytes,
                    deleted_at,
                ),
            )

    async def page(self, after: DueRecord | None) -> list[DueRecord]:
        """Return the records behind one, in order, once it is durable that they are due."""
        bound = (b"", 0) if after is None else (after.name.encode(), after.generation)
        rows = self._storage.fetch(
            "SELECT * FROM due_records WHERE (name, generation) > (?, ?)"
            " ORDER BY name, generation LIMIT ?",
            (*bound, PAGE_RECORDS),
        )
        if rows:
            await self._storage.durable()
        return [DueRecord(name.decode(), *rest) for name, *rest in rows]

    def generations(self, name: str) -> list[int]:
        """Return the lines of a conversation whose records are due."""
        query = "SELECT generation FROM due_records WHERE name = ?"
        return [generation for (generation,) in self._storage.fetch(query, (name.encode(),))]

    async def written(self, records: Sequence[DueRecord]) -> None:
        """Strike off records that the store has, as they are; what was noted since stays."""
        await self._storage.submit(
            lambda: self._storage.write_many(
                "DELETE FROM due_records WHERE name = ? AND generation = ? AND epoch = ?"
                " AND deleted_at IS ?",
                [(r.name.encode(), r.generation, r.epoch, r.deleted_at) for r in records],
            )
        )
