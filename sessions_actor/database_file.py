"""One SQLite file on disk: its lock, its permissions, its connection.

Rules: a second opener is kept out by a lock file beside the database, also within one process;
files are private to their owner (0600, folders 0700); a file that is not a database is never
written to. Every failure is a StorageError that names the path and says what to do.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
from pathlib import Path
from typing import NoReturn

import apsw

from .errors import StorageCorruptError, StorageError
from .limits import KIB, MIB, SQLITE_VERSION_MIN

# A connection's page cache. A group that changes more spills into the WAL, which is slower.
CACHE_BYTES = 8 * MIB
# After a checkpoint the WAL file is cut back to this; one huge transaction leaves nothing behind.
WAL_BYTES_KEPT = 16 * MIB
# A checkpoint is due when the WAL holds this many pages: 8 MiB at the usual page size.
WAL_PAGES_MAX = 2000
# With an engine that copies the log and checkpoints by itself: only when it has not for long.
REPLICATED_WAL_PAGES_MAX = 16_000
# What the tables begin with that such an engine keeps in the file it copies.
ENGINE_PREFIX = "_litestream_"
# How long a program from outside (a shell, a backup) may hold the file before we give up.
BUSY_TIMEOUT_MS = 2000
STATEMENTS_CACHED = 256

_MAGIC = b"SQLite format 3\0"
_COMPANIONS = ("-wal", "-shm", "-journal")
# What stands beside a database while it is restored, until it is whole.
DRAFT_SUFFIX = ".restoring"
_ENGINE_DRAFTS = ("", *_COMPANIONS, ".tmp", ".tmp-wal", ".tmp-shm")

_ADVICE = {
    errno.EACCES: "permission denied; check the owner and mode of the file and its folder",
    errno.EPERM: "permission denied; check the owner and mode of the file and its folder",
    errno.EROFS: "the file system is read-only; choose a path that can be written",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.ENOTDIR: "a part of the path is no folder; choose another path",
    errno.ENAMETOOLONG: "the path is too long; choose a shorter one",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files; raise the limit (ulimit -n)",
}


def _fail(path: str, error: OSError) -> NoReturn:
    reason = _ADVICE.get(error.errno or 0, f"{error.strerror or error}; check the path")
    raise StorageError(path, reason) from error


class FileLock:
    """The right to open one database file, held as `<path>.lock`.

    The kernel releases it with the process, however that ends. The file is removed on release;
    who finds a removed file under its lock takes the new one.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock_path = f"{path}.lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock or refuse at once.

        Raises: StorageError naming the process that holds it.
        """
        assert self._descriptor is None
        while True:
            try:
                descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                _fail(self._path, error)
            try:
                if not self._take(descriptor):
                    os.close(descriptor)
                    continue
            except BaseException:
                os.close(descriptor)
                raise
            self._descriptor = descriptor
            return

    def _take(self, descriptor: int) -> bool:
        """Lock an opened lock file; False when someone removed it meanwhile."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(self._path, self._held_by(descriptor)) from None
        except OSError as error:
            _fail(self._path, error)
        try:
            if os.stat(self._lock_path).st_ino != os.fstat(descriptor).st_ino:
                return False
        except FileNotFoundError:
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        return True

    def _held_by(self, descriptor: int) -> str:
        holder = os.pread(descriptor, 256, 0).decode(errors="replace").split()
        if len(holder) != 2:
            who = "another process"
        elif holder == [str(os.getpid()), socket.gethostname()]:
            who = "this process"
        else:
            who = f"process {holder[0]} on {holder[1]}"
        return f"{who} has it open already; close it there first"

    def release(self) -> None:
        """Give the lock back; releasing twice is fine."""
        if self._descriptor is None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._lock_path)
        os.close(self._descriptor)
        self._descriptor = None


def make_parent(path: str) -> None:
    """Make the folders that lead to a file, each private to its owner and durable.

    Raises: StorageError.
    """
    missing: list[str] = []
    folder = os.path.dirname(path)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    try:
        for folder in reversed(missing):
            # Another process may be making the same one.
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            sync_folder(os.path.dirname(folder))
    except OSError as error:
        _fail(path, error)


def private(path: str, flags: int) -> int:
    """Open a file that its owner alone may read, as `open(..., opener=private)`."""
    return os.open(path, flags, 0o600)


def sync_folder(path: str) -> None:
    """Make what was created or removed in a folder survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepare(path: str) -> None:
    """Make sure that a private, writable file is there that SQLite may open.

    Raises: StorageCorruptError when it holds something else, which is left as it is.
    """
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StorageError(path, "not a regular file; choose another path")
        head = os.pread(descriptor, len(_MAGIC), 0)
    except IsADirectoryError as error:
        raise StorageError(path, "a folder is there; choose another path") from error
    except OSError as error:
        _fail(path, error)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    # SQLite itself overwrites a foreign file of one byte.
    if head and head != _MAGIC:
        raise StorageCorruptError(path, "the header is not SQLite's")


def connect(path: str, vfs: str | None = None) -> apsw.Connection:
    """Open the connection of a prepared file, in WAL mode with full synchronisation.

    Raises: StorageCorruptError, StorageError; RuntimeError when SQLite is too old.
    """
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < SQLITE_VERSION_MIN:
        wanted = ".".join(map(str, SQLITE_VERSION_MIN))
        raise RuntimeError(f"SQLite {apsw.sqlite_lib_version()} is too old: {wanted} is needed")
    db: apsw.Connection | None = None
    try:
        db = apsw.Connection(
            path,
            flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE,
            vfs=vfs,
            statementcachesize=STATEMENTS_CACHED,
        )
        _configure(db, path)
    except apsw.Error as error:
        if db is not None:
            db.close()
        raise _opening_error(error, path) from error
    except BaseException:
        if db is not None:
            db.close()
        raise
    return db


def _configure(db: apsw.Connection, path: str) -> None:
    db.set_busy_timeout(BUSY_TIMEOUT_MS)
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
    # Plans do not look at bound values: otherwise SQLite parses many a statement anew whenever a
    # value is bound in it, which takes ten times as long as running it.
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    db.pragma("synchronous", "full")
    db.pragma("cache_size", -CACHE_BYTES // KIB)
    # Reading the schema first finds a damaged file before anything is written to it.
    db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    mode = db.pragma("journal_mode", "wal")
    if mode != "wal":
        raise StorageError(path, f"cannot use a write-ahead log here (journal mode {mode})")
    db.pragma("journal_size_limit", WAL_BYTES_KEPT)
    db.wal_autocheckpoint(WAL_PAGES_MAX)


def _opening_error(error: apsw.Error, path: str) -> Exception:
    if isinstance(error, (apsw.NotADBError, apsw.CorruptError, apsw.FormatError)):
        return StorageCorruptError(path, str(error))
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StorageError(path, f"another program holds it ({error}); close that one")
    if isinstance(error, apsw.FullError):
        return StorageError(path, "the disk is full; free some space")
    if isinstance(error, apsw.ReadOnlyError):
        return StorageError(path, f"cannot be written ({error}); check its permissions")
    return StorageError(path, f"cannot be opened ({error}); check the path and the disk")


def engine_folder(path: str) -> str:
    """Return where the engine that copies a database's log keeps what it has read."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}-litestream")


def settled_at(path: str) -> int | None:
    """Return when a closed database was last written to, in ns; None while a log stands by it."""
    try:
        if os.path.exists(path + "-wal") and os.path.getsize(path + "-wal"):
            return None
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def settle(path: str, at_ns: int) -> None:
    """Date a closed database, so that whoever writes to it later is seen; see `settled_at`."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(at_ns, at_ns))


def trim_engine_folder(path: str) -> None:
    """Drop what the engine kept of a log that has been copied; it needs the last piece to go on."""
    try:
        pieces = sorted(Path(engine_folder(path), "ltx", "0").glob("*.ltx"))
        for piece in pieces[:-1]:
            piece.unlink()
    except OSError:
        return  # they are in nobody's way


def remove_draft(path: str | os.PathLike[str]) -> None:
    """Remove what a restore of a database left that did not come to its end."""
    for suffix in _ENGINE_DRAFTS:
        Path(f"{os.fspath(path)}{DRAFT_SUFFIX}{suffix}").unlink(missing_ok=True)


def remove_database(path: str | os.PathLike[str]) -> None:
    """Remove a database with its companions, durably; an absent one is fine.

    Raises: StorageError when it is open somewhere or cannot be removed.
    """
    location = os.path.abspath(os.fspath(path))
    folder = os.path.dirname(location)
    if not os.path.isdir(folder):
        return
    lock = FileLock(location)
    lock.acquire()
    try:
        # The database goes first: a log without it is discarded, the reverse loses writes.
        for suffix in ("", *_COMPANIONS):
            Path(location + suffix).unlink(missing_ok=True)
        remove_draft(location)
        shutil.rmtree(engine_folder(location), ignore_errors=True)
        sync_folder(folder)
    except OSError as error:
        _fail(location, error)
    finally:
        lock.release()
