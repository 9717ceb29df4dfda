"""SQL for capabilities and hosts: `storage.sql.exec`.

Rules: what a call writes is one op of the gate; rows are read at once, so no read transaction
outlives a call; a statement that would reach past the conversation's own data or its gate
(transaction control, other files, settings of the connection) is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apsw

from .gate import Gate

Bindings = Sequence[Any] | Mapping[str, Any]

# How many distinct writing statements are remembered before starting over.
_WRITERS_REMEMBERED = 512

# The first word of a statement, behind white space and comments; the name of a setting.
_GAP = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*"
_WORD = re.compile(_GAP + r"([A-Za-z]*)", re.DOTALL)
_SETTING = re.compile(rf"{_GAP}(?:main{_GAP}\.{_GAP})?([A-Za-z_]*)", re.DOTALL | re.IGNORECASE)

_USE_TRANSACTION = "use storage.transaction() instead"
_ONE_FILE = "one conversation is one file"
_REFUSED = {
    "BEGIN": _USE_TRANSACTION,
    "COMMIT": _USE_TRANSACTION,
    "END": _USE_TRANSACTION,
    "ROLLBACK": _USE_TRANSACTION,
    "SAVEPOINT": _USE_TRANSACTION,
    "RELEASE": _USE_TRANSACTION,
    "ATTACH": _ONE_FILE,
    "DETACH": _ONE_FILE,
    "VACUUM": "freed pages are used again, so the file need not be rebuilt",
}
# What a conversation's own code may ask of SQLite, and set.
_SETTINGS = frozenset(
    {
        "application_id",
        "case_sensitive_like",
        "collation_list",
        "compile_options",
        "data_version",
        "defer_foreign_keys",
        "encoding",
        "foreign_key_check",
        "foreign_key_list",
        "foreign_keys",
        "freelist_count",
        "function_list",
        "ignore_check_constraints",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "legacy_alter_table",
        "module_list",
        "optimize",
        "page_count",
        "page_size",
        "pragma_list",
        "quick_check",
        "recursive_triggers",
        "reverse_unordered_selects",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    }
)


class _WritesError(Exception):
    """A statement that writes was met outside an op."""


class SqlCursor:
    """The result of `sql.exec`: all rows of its last statement, as dicts by column name."""

    def __init__(
        self, columns: tuple[str, ...], rows: list[tuple[Any, ...]], rows_written: int
    ) -> None:
        self._columns, self._rows, self._rows_written = columns, rows, rows_written

    @property
    def column_names(self) -> tuple[str, ...]:
        """The result's columns, in order; empty for a statement that returns nothing."""
        return self._columns

    @property
    def rows_written(self) -> int:
        """Rows that all its statements inserted, updated and deleted, by triggers too."""
        return self._rows_written

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            yield dict(zip(self._columns, row, strict=True))

    def to_list(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return list(self)

    def raw(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples, which keep columns of one name apart."""
        return list(self._rows)

    def one(self) -> dict[str, Any]:
        """Return the only row.

        Raises: ValueError when there is none or more than one.
        """
        if len(self._rows) != 1:
            raise ValueError(f"expected exactly one row, got {len(self._rows)}")
        return next(iter(self))


class SqlStorage:
    """Run statements of any kind, safely; see `Storage.fetch` for the fast way to read."""

    def __init__(self, db: apsw.Connection, gate: Gate) -> None:
        self._db, self._gate = db, gate
        self._writers: set[str] = set()
        self._watched: dict[str, bool] = {}

    def watch(self, word: str) -> None:
        """Note from now on whether a statement that writes names a table so; see `named`."""
        self._watched[word] = False

    def named(self, word: str) -> bool:
        """Tell whether a statement that may have written named a watched word."""
        return self._watched[word]

    def exec(self, query: str, *params: Any) -> SqlCursor:
        """Run one or more statements; their parameters follow one another.

        Outside an op, what a call writes is one op of its own: all or nothing, durable with the
        group.

        Args: positional parameters, or a single mapping for named ones.
        Raises: apsw.Error for what is wrong with a statement, RuntimeError for one that is not
            available here, QuotaExceededError, StorageError, OutputGateBrokenError.
        Cost: the rows of the last statement are all in memory.
        """
        self._gate.check()
        bindings: Bindings = params
        if len(params) == 1 and isinstance(params[0], Mapping):
            bindings = params[0]
        if self._gate.in_op or query not in self._writers:
            try:
                return self._run(query, bindings)
            except _WritesError:
                if len(self._writers) >= _WRITERS_REMEMBERED:
                    self._writers.clear()
                self._writers.add(query)
            except apsw.Error as error:
                seen = self._gate.translate(error)
                if seen is error:
                    raise
                raise seen from error
        return self._gate.perform(lambda: self._run(query, bindings))

    def _run(self, query: str, bindings: Bindings) -> SqlCursor:
        rows: list[tuple[Any, ...]] = []
        columns: tuple[str, ...] = ()
        writes = False

        def before_statement(cursor: apsw.Cursor, statement: str, _: object) -> bool:
            nonlocal columns, writes
            _refuse(statement)
            if not cursor.is_readonly:
                if not self._gate.in_op:
                    raise _WritesError
                writes = True
            rows.clear()
            columns = tuple(column[0] for column in cursor.get_description())
            return True

        cursor = self._db.cursor()
        cursor.exec_trace = before_statement
        written_before = self._db.total_changes()
        for row in cursor.execute(query, bindings):
            rows.append(row)  # a next statement empties it
        if writes:
            for word in self._watched:
                self._watched[word] |= word in query.lower()
            # A loop of small statements inside one op must not outrun the quota by far.
            self._gate.check_growth()
        return SqlCursor(columns, rows, self._db.total_changes() - written_before)


def _refuse(statement: str) -> None:
    word = _WORD.match(statement)
    assert word is not None  # it matches the empty text too
    name = word[1].upper()
    if name == "PRAGMA":
        setting = _SETTING.match(statement, word.end())
        if setting is None or setting[1].lower() not in _SETTINGS:
            raise RuntimeError(f"not available here: {statement.strip()[:80]}")
    elif name in _REFUSED:
        raise RuntimeError(f"{name} is not available here: {_REFUSED[name]}")
