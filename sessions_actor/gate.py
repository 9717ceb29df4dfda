"""The output gate of one SQLite connection: what arrives together commits together.

Rules:
- An op is a plain function that reads and writes through the connection and holds no await. It
  runs once, at once, under a savepoint of its own, inside the group transaction; if it raises,
  what it wrote is undone and the rest of the group stands.
- The group commits in the next turn of the event loop, so that every op which arrives until then
  shares its fsync. Without a running loop each op commits before it returns.
- Nothing may be told to anyone before `durable()` returns. Where a replica must have it as well
  (`confirm_with`), that is waited for after the commit; a failure there breaks nothing.
- A commit that fails, or a transaction that SQLite gave up, breaks the gate for good: what the
  connection holds in memory can no longer be trusted, so everything that waits and everything
  that comes is refused. Open the file again: it holds what was durable.
- The quota is checked when an op ends, by the size the file would have. SQLite's own
  `max_page_count` stands a fixed slack above it, because the error it raises may roll back the
  whole group, and only the op that does not fit must fail.

One thread uses a gate. What it does not do: time out, retry, or run anything in the background.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from time import perf_counter
from types import CoroutineType
from typing import TypeVar

import apsw

from . import meters, tracing
from .confirmation import Confirmation
from .errors import (
    OutputGateBrokenError,
    QuotaExceededError,
    SessionsActorError,
    StaleEpochError,
    StorageCorruptError,
    StorageError,
)
from .limits import MIB

T = TypeVar("T")

# How far a single op may carry the file past its quota before SQLite itself stops it, and how far
# from the quota a group must start for the check after each op to be left out.
QUOTA_SLACK_BYTES = 1024 * MIB

META_TABLE = "sessions_actor_meta"

# Spelled so that no statement of a user meets these in the statement cache.
_BEGIN = "BEGIN IMMEDIATE /* gate */"
_COMMIT = "COMMIT /* gate */"
_ROLLBACK = "ROLLBACK /* gate */"
_SAVEPOINT = "SAVEPOINT sessions_actor_op /* gate */"
_RELEASE = "RELEASE sessions_actor_op /* gate */"
_ROLLBACK_TO = "ROLLBACK TO sessions_actor_op /* gate */"
_PAGE_COUNT = "PRAGMA page_count"
_EPOCH = f"SELECT value FROM {META_TABLE} WHERE key = 'epoch'"

_reserve_in_use: ContextVar[bool] = ContextVar("sessions_actor_reserve", default=False)

_running_loop = asyncio._get_running_loop

# What tells that the disk or the file system failed, whatever the statement was.
_DISK_ERRORS = (
    apsw.IOError,
    apsw.CantOpenError,
    apsw.NoLFSError,
    apsw.ProtocolError,
)
_CORRUPT_ERRORS = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)


class Gate:
    """Group commit and output gate over one connection.

    Args: `quota_bytes` bounds the file's pages; `path` names it in errors.
    """

    def __init__(self, db: apsw.Connection, path: str, quota_bytes: int) -> None:
        self._db, self._path, self._quota_bytes = db, path, quota_bytes
        # A cursor kept for these short statements costs half of `db.execute`.
        self._execute = db.cursor().execute
        self._page_bytes: int = db.pragma("page_size")
        self._page_limit = quota_bytes // self._page_bytes
        self._slack_pages = QUOTA_SLACK_BYTES // self._page_bytes
        self._pages: int = db.pragma("page_count")
        db.pragma("max_page_count", max(self._page_limit, self._pages) + self._slack_pages)
        self._identity = self._file_identity()
        self._open = False
        self._depth = 0
        self._op_reserved = False
        self._near_quota = True
        self._spilled = 0
        self._ops, self._began_at, self._changes = 0, 0.0, 0
        self._epoch: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._broken: SessionsActorError | None = None
        self._confirmation: Confirmation | None = None
        self._closed = False
        self._frozen: SessionsActorError | None = None
        self._on_commit: list[Callable[[], None]] = []
        self._on_rollback: list[Callable[[], None]] = []
        self._on_broken: list[Callable[[SessionsActorError], None]] = []

    # ------------------------------------------------------------------------------- state

    @property
    def broken(self) -> SessionsActorError | None:
        """Why the gate is broken, or None while it works."""
        return self._broken

    @property
    def pending(self) -> bool:
        """Whether something was written that is not durable yet."""
        return self._open

    @property
    def in_op(self) -> bool:
        """Whether an op is running right now."""
        return self._depth > 0

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages that hold something: deletes lower it."""
        pages: int = self._db.pragma("page_count")
        free: int = self._db.pragma("freelist_count")
        return (pages - free) * self._page_bytes

    def check(self) -> None:
        """Refuse when the gate is broken or closed.

        Raises: OutputGateBrokenError, StaleEpochError, RuntimeError after `close()`.
        """
        if self._broken is not None:
            raise type(self._broken)(*self._broken.args)
        if self._closed:
            raise RuntimeError(f"the storage of {self._path} is closed")

    def fence(self, epoch: int) -> None:
        """Hold an epoch: each group first makes sure that the file still carries it.

        A later owner who stamped a higher one breaks this gate with StaleEpochError.
        """
        self._epoch = epoch

    def freeze(self, error: SessionsActorError) -> None:
        """Commit what is open, and refuse every op from now on with an error, until `thaw()`.

        Who copies the file reads the last of it then; reads that are no ops go on.
        Raises: OutputGateBrokenError when that commit fails.
        """
        self.flush()
        self._frozen = error

    def thaw(self) -> None:
        """Take ops again."""
        self._frozen = None

    def confirm_with(self, confirmation: Confirmation) -> None:
        """Have every group confirmed after its commit, before anyone who waits wakes."""
        self._confirmation = confirmation

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call back after each group that was committed."""
        self._on_commit.append(callback)

    def on_rollback(self, callback: Callable[[], None]) -> None:
        """Call back whenever an op or the group was undone: caches above must forget."""
        self._on_rollback.append(callback)

    def on_broken(self, callback: Callable[[SessionsActorError], None]) -> None:
        """Call back once, with the reason, when the gate breaks."""
        self._on_broken.append(callback)

    @contextlib.contextmanager
    def reserve(self) -> Iterator[None]:
        """Let ops pass the quota: for what frees space or fences.

        It covers the ops begun in this block; within an op, that whole op.
        """
        if self._depth:
            self._op_reserved = True
        token = _reserve_in_use.set(True)
        try:
            yield
        finally:
            _reserve_in_use.reset(token)

    # --------------------------------------------------------------------------------- ops

    def perform(self, op: Callable[[], T]) -> T:
        """Run an op at once, under its own savepoint, inside the group transaction.

        What it returns may be used but not told to anyone before `durable()` returned. An op
        inside an op is undone alone when the outer one catches its error.

        Raises: what the op raised; QuotaExceededError, StorageError, OutputGateBrokenError.
        """
        try:
            if not self._open:
                self._begin()
            result = self._run(op)
        except BaseException:
            if self._depth == 0 and self._open:
                # The caller is told why its own op failed, not that the rest did as well.
                with contextlib.suppress(OutputGateBrokenError):
                    self._end_turn()
            raise
        if self._depth == 0:
            self._end_turn()
        return result

    async def submit(self, op: Callable[[], T]) -> T:
        """Perform an op and wait until it is durable.

        Cancelling the wait does not undo the op.
        """
        result = self.perform(op)
        await self.durable()
        return result

    async def durable(self) -> None:
        """Wait until everything written so far is durable: at once when nothing pends.

        Raises: OutputGateBrokenError when it never will be; ReplicaUnavailableError when a replica
            must have it and does not answer.
        """
        self.check()
        if not self._open:
            if self._confirmation is not None:
                await self._confirmation.all()
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._end_turn()
        if tracing.active:
            await tracing.waited(waiter, "commit")
        else:
            await waiter

    def flush(self) -> None:
        """Commit the group now.

        Raises: OutputGateBrokenError when the commit fails; RuntimeError inside an op.
        """
        self.check()
        if self._depth:
            raise RuntimeError("an op cannot commit: it is part of a group")
        self._loop = None
        if not self._open:
            return
        if self._file_identity() != self._identity:
            # SQLite would go on writing to a file that no path leads to.
            raise self._break("the file was removed or replaced")
        asked_at = perf_counter()
        try:
            self._execute(_COMMIT)
        except apsw.Error as error:
            raise self._break(f"commit failed: {error}") from error
        self._open = False
        self._note_commit(asked_at)
        waiters, self._waiters = self._waiters, []
        if self._confirmation is not None:
            self._confirmation.committed(waiters)
        else:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        for callback in self._on_commit:
            callback()

    def _note_commit(self, asked_at: float) -> None:
        now = perf_counter()
        meters.COMMIT_SECONDS.observe(now - asked_at)
        meters.GATE_WAIT_SECONDS.observe(now - self._began_at)
        meters.COMMIT_OPS.observe(self._ops)
        meters.ROWS_WRITTEN.inc(by=self._db.total_changes() - self._changes)

    def check_growth(self) -> int:
        """Return the file's pages, or refuse when the running op carried them past the quota.

        `perform` asks this at the end of each op; ask it inside an op that writes without bound.
        Raises: QuotaExceededError.
        """
        pages: int = self._execute(_PAGE_COUNT).get
        # A file that was past the quota before, or grew by way of the reserve, may be written as
        # long as it does not grow.
        grown = pages > self._page_limit and pages > self._pages
        if grown and not (self._op_reserved or _reserve_in_use.get()):
            raise self._quota_error()
        return pages

    def translate(self, error: apsw.Error) -> Exception:
        """Return what a caller should see for an error of SQLite, breaking the gate if it must.

        Errors of the statement itself (syntax, constraint, type) are returned as they are.
        """
        if self._broken is not None:
            return type(self._broken)(*self._broken.args)
        gone = self._open and not self._db.in_transaction
        if gone or isinstance(error, _DISK_ERRORS):
            return self._break(f"SQLite gave up the transaction: {error}" if gone else str(error))
        if isinstance(error, apsw.FullError):
            return self._full(error)
        if isinstance(error, _CORRUPT_ERRORS):
            if self._open:
                # SQLite refuses to commit a transaction that met a damaged page, even by reading.
                self._break(f"the file is damaged: {error}")
            return StorageCorruptError(self._path, str(error))
        if isinstance(error, apsw.BusyError):
            return StorageError(self._path, f"another program holds it ({error}); close that one")
        if isinstance(error, apsw.ReadOnlyError):
            return StorageError(self._path, f"cannot be written ({error}); check its permissions")
        return error

    def close(self) -> None:
        """Commit what is open and refuse everything from now on; closing twice is fine.

        Raises: OutputGateBrokenError when that last commit fails.
        """
        if self._closed:
            return
        try:
            if self._broken is None:
                self.flush()
        finally:
            self._closed = True

    # ------------------------------------------------------------------------------ within

    def _end_turn(self) -> None:
        """See to it that the group is committed: soon in a loop, now without one."""
        loop = _running_loop()
        if loop is None:
            self.flush()
        elif loop is not self._loop:
            self._loop = loop
            loop.call_soon(self._flush_in_loop)

    def _begin(self) -> None:
        """Open the group."""
        self.check()
        if self._frozen is not None:
            raise type(self._frozen)(*self._frozen.args)
        try:
            self._execute(_BEGIN)
            self._open = True
            self._pages = self._execute(_PAGE_COUNT).get
            self._near_quota = self._page_limit - self._pages < self._slack_pages
            self._spilled = self._db.status(apsw.SQLITE_DBSTATUS_CACHE_SPILL)[0]
            self._ops, self._began_at = 0, perf_counter()
            self._changes = self._db.total_changes()
            if self._epoch is not None:
                self._check_epoch(self._epoch)
        except apsw.Error as error:
            raise self.translate(error) from error

    def _check_epoch(self, presented: int) -> None:
        row = self._execute(_EPOCH).fetchone()
        current = presented if row is None else row[0]
        if current != presented:
            raise self._break_with(StaleEpochError(presented, current))

    def _run(self, op: Callable[[], T]) -> T:
        """Run an op under a savepoint; undo it when it raises."""
        try:
            self._execute(_SAVEPOINT)
            self._depth += 1
            try:
                result = op()
                if self._depth == 1:
                    self._end_op(result)
            except BaseException as error:
                # First translate: it looks at what SQLite left of the transaction.
                seen = self.translate(error) if isinstance(error, apsw.Error) else error
                if self._broken is None:
                    self._execute(_ROLLBACK_TO)
                    self._execute(_RELEASE)
                    self._tell_rollback()
                    if isinstance(seen, QuotaExceededError):
                        # What is in use now, without the op that did not fit.
                        seen = self._quota_error()
                if seen is error:
                    raise
                raise seen from error
            else:
                self._execute(_RELEASE)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._op_reserved = False
        except apsw.Error as error:
            seen = self.translate(error)
            if seen is error:
                raise
            raise seen from error
        return result

    def _end_op(self, result: object) -> None:
        """Hold an outermost op to its bounds before its savepoint is released."""
        self._ops += 1
        if type(result) is CoroutineType:
            result.close()
            raise TypeError("an op is a plain function: it cannot await")
        if self._db.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            # Left alone, this would fail the commit of the whole group.
            raise apsw.ConstraintError("FOREIGN KEY constraint failed")
        if self._near_quota:
            self._pages = self.check_growth()

    def _flush_in_loop(self) -> None:
        # Those who wait are told by their futures.
        if not self._closed and self._broken is None:
            with contextlib.suppress(OutputGateBrokenError):
                self.flush()

    def _full(self, error: apsw.FullError) -> Exception:
        """Tell a statement that hit the hard limit from a disk without space.

        To get from the quota to the hard limit, an op must have spilled about the whole slack
        out of the page cache; a full disk stops it earlier.
        """
        spilled = self._db.status(apsw.SQLITE_DBSTATUS_CACHE_SPILL)[0] - self._spilled
        if spilled > self._slack_pages // 2:
            return self._quota_error()
        return self._break(f"the disk is full: {error}")

    def _quota_error(self) -> QuotaExceededError:
        return QuotaExceededError(self.used_bytes, self._quota_bytes, self._path)

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _tell_rollback(self) -> None:
        for callback in self._on_rollback:
            callback()

    def _break(self, reason: str) -> SessionsActorError:
        return self._break_with(OutputGateBrokenError(self._path, reason))

    def _break_with(self, error: SessionsActorError) -> SessionsActorError:
        """Break the gate for good and tell everyone who waits; return what to raise.

        Caches above are not told to forget: nothing is read through them any more.
        """
        assert self._broken is None
        self._broken = error
        meters.GATE_BROKEN.inc(type(error).__name__)
        self._open = False
        self._loop = None
        if self._db.in_transaction:
            # Whether this succeeds does not matter any more: nothing will be committed.
            with contextlib.suppress(apsw.Error):
                self._execute(_ROLLBACK)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(type(error)(*error.args))
        if self._confirmation is not None:
            self._confirmation.end(error)
        for callback in self._on_broken:
            callback(error)
        return type(error)(*error.args)
