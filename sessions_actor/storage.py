"""The storage of one conversation: a private SQLite file behind an output gate.

Rules: see `gate` for when a write is durable and `database_file` for what may be opened. All of
it runs on the thread that opened it, and reading never opens a write transaction.

What it does not do: know anything of messages, retry, or shrink the file (freed pages are used
again).
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import apsw

from .confirmation import Confirmation
from .database_file import (
    ENGINE_PREFIX,
    REPLICATED_WAL_PAGES_MAX,
    FileLock,
    connect,
    make_parent,
    prepare,
    settle,
    settled_at,
)
from .errors import SessionsActorError, StorageCorruptError
from .gate import META_TABLE, Gate
from .keyvalue import KeyValue
from .limits import QUOTA_BYTES_DEFAULT
from .sql import Bindings, SqlStorage

_CLOSED_AT = "closed_at_ns"
# Stands in a file whose log was cut back before all of it was copied, until the file is.
LOG_CUT = "log_cut"

T = TypeVar("T")
Row = tuple[Any, ...]


class Meta:
    """What the file says of itself: whose it is, its epoch, when it was made."""

    _CREATE = (
        f"CREATE TABLE IF NOT EXISTS {META_TABLE} (key TEXT PRIMARY KEY NOT NULL, value)"
        " WITHOUT ROWID"
    )
    _PUT = (
        f"INSERT INTO {META_TABLE} VALUES (?, ?)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    )

    def __init__(self, storage: "Storage") -> None:
        self._storage = storage

    def get(self, key: str) -> Any:
        """Return what stands under a key, or None."""
        return self.get_all().get(key)

    def get_all(self) -> dict[str, Any]:
        """Return every key with its value; nothing for a file that was never activated."""
        found = self._storage.fetch("SELECT 1 FROM sqlite_schema WHERE name = ?", (META_TABLE,))
        return dict(self._storage.fetch(f"SELECT key, value FROM {META_TABLE}")) if found else {}

    def put(self, values: Mapping[str, str | int | bytes | None]) -> None:
        """Store values under their keys, all or none; a used-up quota does not stop this."""
        storage = self._storage

        def write() -> None:
            storage.write(self._CREATE)
            storage.write_many(self._PUT, values.items())

        with storage.reserve():
            storage.perform(write)


class Storage:
    """A conversation's file, open.

    `sql`, `kv` and `meta` are its three faces. Async methods wait until what they did or saw is
    durable; the others do not, and their caller waits with `durable()` before telling anyone.
    `perform`, `submit`, `durable`, `reserve`, `freeze` and `thaw` are the gate's own methods.

    Args:
        path: the file; it and missing folders are made.
        quota_bytes: what the file may grow to. A file that is larger already opens and reads,
            and may be written as long as it does not grow.
        lock: keep every other opener out. Without it the caller has to.
        vfs: the name of a registered SQLite VFS.
    Raises: StorageCorruptError for what is no database, StorageError for what cannot be opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        quota_bytes: int = QUOTA_BYTES_DEFAULT,
        lock: bool = True,
        vfs: str | None = None,
    ) -> None:
        if quota_bytes <= 0:
            raise ValueError(f"quota_bytes is a number of bytes above 0, not {quota_bytes}")
        self._path = os.path.abspath(os.fspath(path))
        self._quota_bytes = quota_bytes
        self._lock = FileLock(self._path)
        make_parent(self._path)
        if lock:
            self._lock.acquire()
        try:
            prepare(self._path)
            settled = settled_at(self._path)
            self._db = connect(self._path, vfs)
        except BaseException:
            self._lock.release()
            raise
        self._gate = Gate(self._db, self._path, quota_bytes)
        self._closed = self._is_replicated = self._is_copied = False
        self._log_cut: Callable[[], object] = lambda: None
        self._is_cut = False
        self.perform = self._gate.perform
        self.submit = self._gate.submit
        self.durable = self._gate.durable
        self.reserve = self._gate.reserve
        self.freeze = self._gate.freeze
        self.thaw = self._gate.thaw
        self.sql = SqlStorage(self._db, self._gate)
        self.kv = KeyValue(self._db, self._gate, self.fetch)
        self.meta = Meta(self)
        self._untouched = settled is not None and settled == self.meta.get(_CLOSED_AT)
        self._on_close: list[Callable[[], Mapping[str, str]]] = []

    # ----------------------------------------------------------------------- statements, fast

    @property
    def connection(self) -> apsw.Connection:
        """The connection itself, for the hot path: write through it only inside an op."""
        return self._db

    def fetch(self, query: str, bindings: Bindings = ()) -> list[Row]:
        """Return all rows of one query that only reads.

        Raises: as `sql.exec`.
        """
        self._gate.check()
        try:
            return self._db.execute(query, bindings).fetchall()
        except apsw.Error as error:
            seen = self._gate.translate(error)
            if seen is error:
                raise
            raise seen from error

    def fetch_one(self, query: str, bindings: Bindings = ()) -> Row | None:
        """Return the first row of one query that only reads, or None."""
        self._gate.check()
        try:
            row: Row | None = self._db.execute(query, bindings).fetchone()
        except apsw.Error as error:
            seen = self._gate.translate(error)
            if seen is error:
                raise
            raise seen from error
        return row

    def write(self, query: str, bindings: Bindings = ()) -> None:
        """Run one statement inside an op.

        Raises: RuntimeError outside an op; errors of SQLite as they are, which `perform` reports.
        """
        self._require_op()
        self._db.execute(query, bindings)

    def write_many(self, query: str, rows: Iterable[Bindings]) -> None:
        """Run one statement inside an op for each row of bindings."""
        self._require_op()
        self._db.executemany(query, rows)

    def _require_op(self) -> None:
        if not self._gate.in_op:
            raise RuntimeError("writes belong inside storage.perform() or storage.transaction()")

    # --------------------------------------------------------------------------- group commit

    def transaction(self, op: Callable[[], T]) -> T:
        """Run a function whose writes stand or fall together; inside an op it is undone alone.

        The function holds no await. As everything that writes, it is durable with its group.
        Raises: what the function raised, after undoing it.
        """
        return self._gate.perform(op)

    def flush(self) -> None:
        """Commit everything written so far, now.

        Raises: OutputGateBrokenError when that fails; RuntimeError inside an op.
        """
        self._gate.flush()

    def fence(self, epoch: int) -> None:
        """Refuse every write once the file carries another epoch than this one."""
        self._gate.fence(epoch)

    def replicate(self, confirmation: Confirmation | None) -> None:
        """Leave checkpoints to an engine that copies the log, from now on until `close()`.

        The log stays beside the file when that closes: the engine goes on where it was. It is cut
        back here only when the engine has not done so for long, which `on_log_cut` tells.

        Args: `confirmation` is what every group waits for after its commit, if it has to.
        """
        self._is_replicated = True
        self._db.set_wal_hook(self._cut_long_log)
        if confirmation is not None:
            self._gate.confirm_with(confirmation)

    @property
    def is_replicated(self) -> bool:
        """Whether an engine copies the log."""
        return self._is_replicated

    def on_log_cut(self, callback: Callable[[], object]) -> None:
        """Call back when the log is cut back though the engine may not have read all of it.

        The file notes it under `LOG_CUT` before, for whoever has it copied next.
        """
        self._log_cut = callback

    def _cut_long_log(self, db: apsw.Connection, schema: str, pages: int) -> int:
        if pages < REPLICATED_WAL_PAGES_MAX:
            return apsw.SQLITE_OK
        with contextlib.suppress(apsw.Error):
            if not self._is_cut:
                self._is_cut = True  # the note is a commit as well
                db.execute(f"INSERT OR REPLACE INTO {META_TABLE} VALUES (?, 1)", (LOG_CUT,))
                self._log_cut()
            db.wal_checkpoint(schema, apsw.SQLITE_CHECKPOINT_PASSIVE)
        return apsw.SQLITE_OK

    def copied(self) -> None:
        """Note that the engine has all of the log and let go of it: closing may fold it.

        A log that is folded before that is a gap in the copy, which the engine does not see until
        something is written again.
        """
        self._is_copied = True

    def translate(self, error: apsw.Error) -> Exception:
        """Return what to raise for an error met while reading through `connection`."""
        return self._gate.translate(error)

    @property
    def broken(self) -> SessionsActorError | None:
        """Why nothing works any more, or None."""
        return self._gate.broken

    @property
    def pending(self) -> bool:
        """Whether something was written that is not durable yet."""
        return self._gate.pending

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call back after each group that was committed."""
        self._gate.on_commit(callback)

    def on_rollback(self, callback: Callable[[], None]) -> None:
        """Call back whenever an op was undone, so that caches above forget.

        A broken gate does not call: nothing can be read through such a cache any more.
        """
        self._gate.on_rollback(callback)

    def on_broken(self, callback: Callable[[SessionsActorError], None]) -> None:
        """Call back once, with the reason, when a commit fails or the disk does."""
        self._gate.on_broken(callback)

    def on_close(self, callback: Callable[[], Mapping[str, str]]) -> None:
        """Ask for `meta` values to leave in the file when it is closed; see `untouched`."""
        self._on_close.append(callback)

    # ------------------------------------------------------------------------ entries, waiting

    @overload
    async def get(self, key: str) -> Any: ...
    @overload
    async def get(self, key: Sequence[str]) -> dict[str, Any]: ...
    async def get(self, key: str | Sequence[str]) -> Any:
        """Return the value of a key or None; of several keys, the entries that exist."""
        found = self.kv.get(key) if isinstance(key, str) else self.kv.get_many(key)
        await self.durable()
        return found

    @overload
    async def put(self, key: str, value: Any) -> None: ...
    @overload
    async def put(self, key: Mapping[str, Any]) -> None: ...
    async def put(self, key: str | Mapping[str, Any], value: Any = None) -> None:
        """Store one entry, or several, all or none."""
        self.kv.put_many({key: value} if isinstance(key, str) else key)
        await self.durable()

    @overload
    async def delete(self, key: str) -> bool: ...
    @overload
    async def delete(self, key: Sequence[str]) -> int: ...
    async def delete(self, key: str | Sequence[str]) -> bool | int:
        """Remove a key and tell whether it was there; of several keys, how many were."""
        if isinstance(key, str):
            removed: bool | int = self.kv.delete(key)
        else:
            removed = self.kv.delete_many(key)
        await self.durable()
        return removed

    async def list(
        self,
        *,
        prefix: str = "",
        start: str | None = None,
        start_after: str | None = None,
        end: str | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> dict[str, Any]:
        """Return entries in key order; see `KeyValue.list`."""
        found = self.kv.list(
            prefix=prefix,
            start=start,
            start_after=start_after,
            end=end,
            limit=limit,
            reverse=reverse,
        )
        await self.durable()
        return found

    # -------------------------------------------------------------------------------- the file

    @property
    def path(self) -> str:
        """The file's absolute path."""
        return self._path

    @property
    def quota_bytes(self) -> int:
        """What the file may grow to."""
        return self._quota_bytes

    @property
    def database_size(self) -> int:
        """Bytes of the database, free pages included, its log not."""
        self._gate.check()
        pages: int = self._db.pragma("page_count")
        page_bytes: int = self._db.pragma("page_size")
        return pages * page_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages in use: what deletes lower and the quota is about."""
        self._gate.check()
        return self._gate.used_bytes

    @property
    def untouched(self) -> bool:
        """Whether nobody wrote to the file since values were left in it by `on_close`.

        Such values may say what would take long to find out. The file's own time of change tells:
        it is set when the file is closed, to the time that is written in it, and whatever writes
        to it later, of whatever program, moves it. A crash, a copy, an older version leave a
        file that counts as touched.
        """
        return self._untouched

    def data_tables(self) -> tuple[str, ...]:
        """Return the ordinary tables, sorted: what a copy of the conversation has to carry.

        Left out are SQLite's, workerd's and the replication engine's own, views, virtual tables
        and what these keep.
        """
        rows = self.fetch("SELECT name, type FROM pragma_table_list WHERE schema = 'main'")
        own = ("sqlite_", "_cf_", ENGINE_PREFIX)
        return tuple(
            sorted(name for name, kind in rows if kind == "table" and not name.startswith(own))
        )

    def check(self) -> Sequence[str]:
        """Return what is wrong with the file, one line each; nothing when it is sound.

        Commits what is open first, because a damaged page would take it along.
        Raises: OutputGateBrokenError, RuntimeError inside an op.
        Cost: reads the whole file.
        """
        self.flush()
        damage: list[str] = []
        try:
            for (line,) in self._db.execute("PRAGMA integrity_check"):
                if line != "ok":
                    damage.append(line)
            for table, rowid, parent, _ in self._db.execute("PRAGMA foreign_key_check"):
                damage.append(f"row {rowid} of {table} points at no row of {parent}")
        except apsw.Error as error:
            seen = self.translate(error)
            if not isinstance(seen, StorageCorruptError):
                raise seen from error
            damage.append(seen.check)
        return damage

    def close(self) -> None:
        """Commit what is open, fold the log into the file and let others open it.

        Closing twice is fine.
        Raises: OutputGateBrokenError when that last commit fails; the file is closed all the same.
        """
        if self._closed:
            return
        if self._gate.in_op:
            raise RuntimeError("an op cannot close the storage it runs in")
        closed_at = None
        try:
            closed_at = self._leave()
            self._gate.close()
        finally:
            self._closed = True
            try:
                self._close_connection()
                if closed_at is not None and self._gate.broken is None:
                    settle(self._path, closed_at)
            finally:
                self._lock.release()

    def _leave(self) -> int | None:
        """Write what `on_close` was asked for; return the time to date the file with."""
        if self._is_replicated:
            return None  # its log stays, so the file will count as touched
        values = {key: text for ask in self._on_close for key, text in ask().items()}
        if not values or self._gate.broken is not None:
            return None
        unchanged = self._untouched and not self._db.total_changes()
        if unchanged and values.items() <= self.meta.get_all().items():
            return None  # all of it stands
        closed_at = time.time_ns()
        try:
            self.meta.put(values | {_CLOSED_AT: closed_at})
        except (SessionsActorError, apsw.Error):
            return None  # the next opener looks for itself
        return closed_at

    def _is_log_short(self) -> bool:
        """Whether the log is shorter than the file it belongs to.

        A log that is folded has its engine copy the file as a whole next time: that is worth it
        where the log is the longer of the two, which keeps sleeping conversations small.
        """
        pages, page_bytes = self._db.pragma("page_count"), self._db.pragma("page_size")
        try:
            return bool(os.stat(f"{self._path}-wal").st_size <= pages * page_bytes)
        except OSError:
            return True

    def _close_connection(self) -> None:
        keeps_log = self._is_replicated and (not self._is_copied or self._is_log_short())
        if self._gate.broken is None and not keeps_log:
            # Not needed for durability: a reader from outside may keep us from it, and then the
            # next opener does it.
            self._db.set_busy_timeout(0)
            with contextlib.suppress(apsw.Error):
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        else:
            # A disk that failed is left alone; so is a log that is being copied.
            self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        # Closing tries to fold the log as well.
        with contextlib.suppress(apsw.Error):
            self._db.close(True)
