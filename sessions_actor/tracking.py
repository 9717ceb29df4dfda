"""Which rows of a file changed since a moment: what a copy that began then has to send again.

Every change of a row passes SQLite's preupdate hook, whoever makes it and in whichever table, so
nothing has to be told what was written. Keys are kept, never values: a row is read again when it
is sent. A change that is rolled back leaves its key behind, which costs a read and no more.

It does not see changes of the schema; it only says that one happened.
"""

from __future__ import annotations

import apsw

from .gate import META_TABLE
from .sessions.sql import Database
from .tables import SEQUENCES, Row, Table, tables_of


class ChangeTracker:
    """Collects the keys of changed rows until it is stopped."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._places: dict[str, tuple[int, ...] | None] = {
            name: self._places_of(name) for name in tables_of(db)
        }
        self._changed: dict[str, dict[Row, None]] = {}
        self._schema = db.pragma("schema_version")
        db.preupdate_hook(self._note, id=self)

    def _places_of(self, name: str) -> tuple[int, ...] | None:
        """Where the key stands among a row's values; None for a rowid."""
        table = Table.of(self._db, name)
        if table.by_rowid:
            return None
        rows = self._db.execute("SELECT name FROM pragma_table_xinfo(?)", (name,))
        columns = [row[0] for row in rows]
        return tuple(columns.index(column) for column in table.key)

    def stop(self) -> None:
        """Stop collecting."""
        self._db.preupdate_hook(None, id=self)

    @property
    def count(self) -> int:
        """How many changed rows were not taken yet."""
        return sum(map(len, self._changed.values()))

    @property
    def schema_changed(self) -> bool:
        """Whether tables, indexes or triggers came, went or changed since the beginning."""
        return bool(self._db.pragma("schema_version") != self._schema)

    def take(self, limit: int) -> tuple[str, list[Row]] | None:
        """Take the keys of some changed rows of one table; None when there are none."""
        for name, keys in self._changed.items():
            taken = [key for key, _ in zip(keys, range(limit), strict=False)]
            for key in taken:
                del keys[key]
            if not keys:
                del self._changed[name]
            return name, taken
        return None

    def _note(self, change: apsw.PreUpdate) -> None:
        name = change.table_name
        if change.database_name != "main" or name in (META_TABLE, SEQUENCES):
            return
        if name not in self._places:
            return  # a new table: the schema changed, which is told
        keys = self._changed.setdefault(name, {})
        places = self._places[name]
        if places is None:
            keys[(change.rowid,)] = None
            keys[(change.rowid_new,)] = None
            return
        for values in (change.old, change.new):
            if values is not None:
                keys[tuple(values[place] for place in places)] = None
