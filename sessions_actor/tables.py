"""Any table of a file by its key: how to read it in windows, row by row, and write it again.

The key of a table without rowids is its primary key, in that order; of any other the rowid, which
is written along with the columns, so that a copy keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .database_file import ENGINE_PREFIX
from .gate import META_TABLE
from .sessions.sql import Database

SEQUENCES = "sqlite_sequence"
# What SQLite and the replication engine keep for themselves in a file.
NOT_COPIED = ("sqlite_", ENGINE_PREFIX)

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """How to read one table by its key and write it again."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    by_rowid: bool

    @classmethod
    def of(cls, db: Database, name: str) -> Table:
        """Look a table up."""
        rows = db.execute(
            "SELECT name, pk FROM pragma_table_xinfo(?) WHERE hidden = 0", (name,)
        ).fetchall()
        columns = tuple(row[0] for row in rows)
        ((without_rowid,),) = db.execute(
            "SELECT wr FROM pragma_table_list(?) WHERE schema = 'main'", (name,)
        ).fetchall()
        if without_rowid:
            key = tuple(row[0] for row in sorted(rows, key=lambda row: row[1]) if row[1])
        else:
            taken = {column.lower() for column in columns}
            alias = next(a for a in ("rowid", "_rowid_", "oid") if a not in taken)
            key, columns = (alias,), (alias, *columns)
        return cls(name, columns, key, not without_rowid)

    def window(self, db: Database, after: Row | None, limit: int) -> list[Row]:
        """Read rows past a key. The key's values end each row."""
        key = ", ".join(map(quoted, self.key))
        names = ", ".join(map(quoted, (*self.columns, *self.key)))
        where = "" if after is None else f" WHERE ({key}) > ({', '.join('?' * len(after))})"
        query = f"SELECT {names} FROM {quoted(self.name)}{where} ORDER BY {key} LIMIT ?"
        return list(db.execute(query, (*(after or ()), limit)))

    def read(self, db: Database, keys: Iterable[Row]) -> tuple[list[Row], list[Row]]:
        """Read the rows of some keys; returns them, and the keys that have none."""
        names, where = ", ".join(map(quoted, self.columns)), self._where()
        query = f"SELECT {names} FROM {quoted(self.name)} WHERE {where}"
        found, gone = [], []
        for key in keys:
            row = db.execute(query, key).fetchone()
            if row is None:
                gone.append(key)
            else:
                found.append(row)
        return found, gone

    def delete(self, db: Database, keys: Iterable[Row]) -> None:
        """Delete the rows of some keys."""
        db.executemany(f"DELETE FROM {quoted(self.name)} WHERE {self._where()}", keys)

    def _where(self) -> str:
        return " AND ".join(f"{quoted(column)} = ?" for column in self.key)

    def insert(self, db: Database, rows: Sequence[Row]) -> None:
        """Write rows as they were; a row of the same key is replaced."""
        names, marks = ", ".join(map(quoted, self.columns)), ", ".join("?" * len(self.columns))
        db.executemany(
            f"INSERT OR REPLACE INTO {quoted(self.name)} ({names}) VALUES ({marks})", rows
        )


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def tables_of(db: Database) -> list[str]:
    """List the tables that hold a conversation, those below virtual tables included."""
    found = db.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', 'shadow')"
        " ORDER BY name = ?, name",
        (SEQUENCES,),
    )
    return [
        name
        for (name,) in found
        if name != META_TABLE and (name == SEQUENCES or not name.startswith(NOT_COPIED))
    ]
