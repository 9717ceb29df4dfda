"""A conversation's way to its replica: the control socket of the node's replication daemon.

Rules:
- The daemon reads the file's log by itself; what is asked of it here is to know of the file
  (`register`), to have the replica up to date now (`sync`), and to let go (`unregister`).
- A daemon that was started again knows no file any more: whoever asks registers again, and the
  daemon goes on where the replica ends.
- At `REPLICATED` an acknowledgement waits for the sync (see `confirmation`). At `ASYNC` a sync
  follows each commit within `ASYNC_DELAY_S`, and nobody waits for it.
- The first sync of a new line copies the whole file. It has the time that takes, and is not begun
  anew while the file is open: who waits meanwhile is told after `timeout_s`, as ever.

What it does not do: start the daemon, choose where replicas lie, or restore from them.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import math
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import apsw

from . import meters
from .confirmation import NO_ANSWER, Confirmation
from .database_file import BUSY_TIMEOUT_MS, engine_folder, trim_engine_folder
from .errors import ReplicaUnavailableError
from .gate import META_TABLE
from .logs import log
from .storage import LOG_CUT, Storage

# How long writes gather before an asynchronous sync; with the sync itself, well below a second.
ASYNC_DELAY_S: Final = 0.2
RETRY_S: Final = 0.5
# How long the daemon may take for the first copy of a file, whole: longer by what its size takes at
# this rate, at most so long.
FIRST_COPY_BYTES_PER_S: Final = 1 << 20
FIRST_COPY_TIMEOUT_S: Final = 3600.0
# One that has gone on for so long is under way; a store that refuses says so before.
UNDER_WAY_S: Final = 1.0
# More pages than the daemon writes into a log by itself when it begins with a file.
TOUCHES: Final = 64
# Between two requests to copy what was committed while the one before was carried out.
BEHIND_PAUSE_S: Final = 0.02
# How long a request may go unanswered beyond the time that the daemon was given.
GRACE_S: Final = 1.0
FORGET_TIMEOUT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 1 << 20
NOT_FOUND: Final = (404, 409)

# What the daemon says when the files are gone or damaged in which it keeps what it has read.
_STATE_LOST: Final = re.compile(r"no such file|corrupt|invalid|EOF", re.I)

FIRST_COPY: Final = "its first copy, of the whole file, is under way"

SOCKET_FILE: Final = "replication.sock"
# What the kernel takes as the path of a socket, on every system we run on.
SOCKET_PATH_BYTES_MAX: Final = 100


class Durability(StrEnum):
    """What an acknowledged write has survived."""

    LOCAL = "local"
    """The loss of the process or of power: it is on its node's disk."""

    ASYNC = "async"
    """As `local`; its replica follows within a second."""

    REPLICATED = "replicated"
    """The loss of the node and its disk: the replica has it."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """Where the replica of one file lies, and what its writes wait for, at most `timeout_s`.

    `socket` is the daemon's; empty: that of the disk the file is on. `mark` is a file that is there
    where the replica's folder is mounted; empty: there is none to look for. `is_new` says that the
    replica may hold nothing of the file yet.
    """

    url: str
    durability: Durability
    timeout_s: float
    socket: str = ""
    mark: str = ""
    is_new: bool = False
    is_stale: bool = False
    """Whether the file was written to while nobody copied it: it is copied whole."""


def socket_path(root: Path) -> str:
    """Return where the daemon of a disk listens: beside its files, or in a private folder of the
    temporary one when that path is too long for a socket.
    """
    beside = root / SOCKET_FILE
    if len(os.fsencode(beside)) <= SOCKET_PATH_BYTES_MAX:
        return str(beside)
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return os.path.join(tempfile.gettempdir(), f"sessions-actor-{os.getuid()}", f"{digest}.sock")


async def check_mark(mark: str, timeout_s: float) -> None:
    """Make sure that a folder of replicas is mounted here: the engine would make one on this disk.

    Raises: ReplicaUnavailableError.
    """
    if not mark:
        return
    try:
        async with asyncio.timeout(timeout_s):
            there = await asyncio.to_thread(os.path.exists, mark)
    except TimeoutError:
        raise ReplicaUnavailableError(f"no answer about {mark}", timeout_s) from None
    if not there:
        reason = f"the folder of replicas is not mounted on this node: it lacks {mark}"
        raise ReplicaUnavailableError(reason, 0.0)


class ControlSocket:
    """Requests to a daemon, one after another over one connection. HTTP/1.1, JSON both ways."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()
        self._ended = False

    async def ask(
        self, method: str, target: str, body: dict[str, Any] | None = None, *, timeout_s: float
    ) -> tuple[int, dict[str, Any]]:
        """Make one request; returns the status and the answer.

        Raises: OSError, EOFError, ValueError and TimeoutError when there is no sound answer.
        """
        async with self._turn:
            if self._ended:
                raise OSError("nothing is asked any more")
            kept = self._streams is not None
            try:
                return await asyncio.wait_for(self._exchange(method, target, body), timeout_s)
            except TimeoutError:
                self.close()  # an answer may still come: nobody must take it for theirs
                raise
            except (OSError, EOFError):
                self.close()
                if not kept or self._ended:
                    raise
            except BaseException:
                self.close()
                raise
            # The daemon closed a connection that was kept: it is asked once more on a new one.
            try:
                return await asyncio.wait_for(self._exchange(method, target, body), timeout_s)
            except BaseException:
                self.close()
                raise

    async def _exchange(
        self, method: str, target: str, body: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(self._path)
        reader, writer = self._streams
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: daemon\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        answer = json.loads(await _body(reader, headers) or b"{}")
        if headers.get("connection") == "close":
            self.close()
        if not isinstance(answer, dict):
            raise ValueError(f"an answer is an object, not {type(answer).__name__}")
        return status, answer

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    def end(self) -> None:
        """Close the connection for good: what is under way fails, and nothing is asked again."""
        self._ended = True
        self.close()


def is_state_lost(reason: str, path: str) -> bool:
    """Say whether the daemon complains of its own files beside a database, not of the store.

    Such a message names their folder; others may hold a key of the store, and so any word at all.
    """
    folder = engine_folder(path)
    return folder in reason and _STATE_LOST.search(reason.replace(folder, "")) is not None


def _touch(path: str) -> None:
    """Write the first page of a database as it is, often enough for a log of some length."""
    with _beside(path) as db:
        db.pragma("synchronous", "off")
        for _ in range(TOUCHES):
            db.pragma("user_version", db.pragma("user_version"))


def _empty_log(path: str) -> None:
    """Fold a database's log into it, all of it.

    Raises: ReplicaUnavailableError while somebody keeps us from it.
    """
    with _beside(path) as db:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)


def _is_cut(path: str) -> bool:
    """Say whether a file notes that its log was cut back before all of it was copied."""
    if not os.path.exists(path):
        return False
    with _beside(path) as db:
        if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (META_TABLE,)).fetchall():
            return False
        query = f"SELECT value FROM {META_TABLE} WHERE key = ?"
        return any(value for (value,) in db.execute(query, (LOG_CUT,)))


def _forget_cut(path: str) -> None:
    with _beside(path) as db:
        if db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (META_TABLE,)).fetchall():
            db.execute(f"DELETE FROM {META_TABLE} WHERE key = ?", (LOG_CUT,))


@contextlib.contextmanager
def _beside(path: str) -> Iterator[apsw.Connection]:
    """Open a connection beside that of who has the file open, if anybody has."""
    try:
        db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.set_busy_timeout(BUSY_TIMEOUT_MS)
            db.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # it knows of the log now
            yield db
        finally:
            db.close()
    except apsw.Error as error:
        raise ReplicaUnavailableError(f"its log is in use: {error}", 0.0) from None


async def forget_file(root: Path, file: str) -> None:
    """Have the daemon of a disk let go of a file that is about to be removed, if it has it."""
    socket = socket_path(root)
    if not os.path.exists(socket):
        return
    control = ControlSocket(socket)
    order = {"path": str(root / file), "timeout": 1}
    with contextlib.suppress(OSError, EOFError, ValueError, TimeoutError):
        await control.ask("POST", "/unregister", order, timeout_s=FORGET_TIMEOUT_S)
    control.close()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        size = int(headers.get("content-length", "0"))
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
        return await reader.readexactly(size)
    chunks: list[bytes] = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
        chunks.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(chunks)


class Replica:
    """The replica of one file: while that is open, from `start` to `finish`, or once, by `sync`."""

    def __init__(self, path: str, spec: ReplicaSpec) -> None:
        self._path, self._spec = path, spec
        self._socket = ControlSocket(spec.socket)
        self._position = 0
        # When the oldest commit was made that the replica lacks, and the oldest that came after
        # the sync under way began.
        self._behind_since: float | None = None
        self._behind_next: float | None = None
        self._syncing = asyncio.Lock()
        self._is_unreachable = False
        self._copying_since: float | None = None
        # Whether the log was cut back before the engine had all of it.
        self._has_gap = self._is_noted = spec.is_stale
        self._is_ours = False
        self._confirmation: Confirmation | None = None
        self._following: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def url(self) -> str:
        """Where it lies."""
        return self._spec.url

    @property
    def position(self) -> int:
        """The transaction that the replica has for sure; 0 while that is not known."""
        return self._position

    @property
    def is_copying(self) -> bool:
        """Whether the first copy of the whole file is under way."""
        since = self._copying_since
        enough_s = min(UNDER_WAY_S, self._spec.timeout_s / 2)
        return since is not None and asyncio.get_running_loop().time() - since >= enough_s

    @property
    def _is_first(self) -> bool:
        # Noted until a whole copy has succeeded: one that failed takes as long again.
        return self._is_noted or (self._spec.is_new and self._position == 0)

    @property
    def lag_s(self) -> float:
        """For how long the replica has lacked something that is committed; 0 when it lacks none."""
        since = self._behind_since
        return 0.0 if since is None else time.monotonic() - since

    def start(self, storage: Storage) -> None:
        """Have the open file copied from now on."""
        storage.on_commit(self._committed)
        storage.on_log_cut(self._log_was_cut)
        storage.replicate(None)
        self._committed()

    def hold_back(self, storage: Storage) -> None:
        """Have what is asked from now on wait for what is there, and for writes, to be copied.

        Nobody is given anything before this; it does nothing where durability demands nothing.
        """
        spec = self._spec
        if spec.durability is Durability.REPLICATED:
            reason = FIRST_COPY if spec.is_new else NO_ANSWER
            self._confirmation = Confirmation(self.sync, spec.timeout_s, reason)
            storage.flush()
            storage.replicate(self._confirmation)

    async def sync(self) -> None:
        """Bring the replica up to what is committed now.

        Raises: ReplicaUnavailableError when the daemon or the replica does not do it in time.
        """
        async with self._syncing:
            self._behind_next, began = None, time.monotonic()
            try:
                self._position = await self._synced()
            except ReplicaUnavailableError as error:
                meters.REPLICA_SYNCS.inc("error")
                self._tell(error)
                raise
            else:
                self._behind_since = self._behind_next
                meters.REPLICA_SYNCS.inc("ok")
                meters.REPLICA_SYNC_SECONDS.observe(time.monotonic() - began)
                self._tell(None)
            finally:
                meters.REPLICATION_LAG_SECONDS.set(self.lag_s)

    async def _synced(self) -> int:
        """Have the daemon bring the replica up to date; returns up to which transaction."""
        if not self._is_ours:
            await self._check_mark()
            # An activation before this one may have named another place to the daemon, which
            # would go on with it whatever it is told now.
            await self._let_go()
            if await asyncio.to_thread(_is_cut, self._path):
                self._has_gap = self._is_noted = True
            self._is_ours = True
        limit_s = self._limit_s()
        order = {"path": self._path, "wait": True, "timeout": math.ceil(limit_s)}
        self._copying_since = asyncio.get_running_loop().time() if self._is_first else None
        try:
            if self._has_gap:
                await self._prepare_whole(order)
            answer = await self._order("/sync", order)
        except ReplicaUnavailableError as error:
            if not is_state_lost(error.reason, self._path):
                raise
            await self._start_over()
            answer = await self._order("/sync", order)
        finally:
            self._copying_since = None
        # Commits go on meanwhile: the daemon counts those, and has copied what it began with.
        wanted, deadline = answer.get("txid", 0), time.monotonic() + limit_s
        while answer.get("replicated_txid", 0) < wanted:
            if time.monotonic() >= deadline:
                raise ReplicaUnavailableError("the replica is behind after a sync", 0.0)
            await asyncio.sleep(BEHIND_PAUSE_S)
            answer = await self._order("/sync", order)
        await self._check_mark()
        if self._is_noted and not self._has_gap:
            await asyncio.to_thread(_forget_cut, self._path)
            self._is_noted = False
        position: int = answer.get("replicated_txid", 0)
        return position

    async def _prepare_whole(self, order: dict[str, Any]) -> None:
        """Have the next sync copy the whole file, whatever the daemon knows of it.

        It takes a log that begins anew for one that it had read to the end before. What makes it
        copy the file is a log that is shorter than what it has read of it: so it reads something,
        then the log is emptied while it does not have the file.
        """
        await asyncio.to_thread(_touch, self._path)
        await self._order("/sync", order)
        await self._let_go()
        await asyncio.to_thread(_empty_log, self._path)
        self._has_gap = False

    def _log_was_cut(self) -> None:
        self._has_gap = self._is_noted = True

    def _limit_s(self) -> float:
        """Return how long the daemon may take for a sync."""
        limit_s = self._spec.timeout_s
        if self._is_first:
            with contextlib.suppress(OSError):
                size = os.path.getsize(self._path) + os.path.getsize(f"{self._path}-wal")
                limit_s += size / FIRST_COPY_BYTES_PER_S
        return min(limit_s, max(FIRST_COPY_TIMEOUT_S, self._spec.timeout_s))

    def _tell(self, error: ReplicaUnavailableError | None) -> None:
        """Log that the replica is out of reach, and that it is back, once each."""
        if (error is not None) is self._is_unreachable:
            return
        self._is_unreachable = error is not None
        if error is not None:
            log(logging.WARNING, "replica.unreachable", source=self._path, error=error)
        else:
            log(logging.INFO, "replica.reached", source=self._path)

    async def finish(self) -> bool:
        """Bring the replica up to date and let go of the file; says whether that was done.

        A file that could not be brought up to date stays with the daemon, which goes on trying.
        """
        self._ended = True
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        try:
            async with asyncio.timeout(self._spec.timeout_s):
                await self.sync()
                await self._order("/unregister", {"path": self._path})
            trim_engine_folder(self._path)
        except (ReplicaUnavailableError, TimeoutError):
            return False
        finally:
            self._let_go_of_daemon()
        return True

    def on_late(self, callback: Callable[[], object]) -> None:
        """Call back when writes are confirmed after all whose writers were told otherwise."""
        if self._confirmation is not None:
            self._confirmation.on_late = callback

    def abandon(self) -> None:
        """Let go of the connection; the daemon keeps what it knows."""
        self._ended = True
        if self._following is not None:
            self._following.cancel()
        self._let_go_of_daemon()

    # ------------------------------------------------------------------------------ within

    def _let_go_of_daemon(self) -> None:
        """Ask nothing any more, whoever waits: another owner may ask by now."""
        if self._confirmation is not None:
            self._confirmation.end(ReplicaUnavailableError("its owner has ended", 0.0))
        self._socket.end()

    def _committed(self) -> None:
        now = time.monotonic()
        if self._behind_since is None:
            self._behind_since = now
        if self._behind_next is None:
            self._behind_next = now
        if self._spec.durability is Durability.ASYNC and not self._ended:
            with contextlib.suppress(RuntimeError):  # no loop: the next commit in one sees to it
                self._follow(asyncio.get_running_loop())

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._following is None or self._following.done():
            self._following = loop.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        pause_s = ASYNC_DELAY_S
        while self._behind_since is not None:
            await asyncio.sleep(pause_s)
            try:
                await self.sync()
            except ReplicaUnavailableError:  # told by `lag_s`, tried until it succeeds
                pause_s = RETRY_S
            else:
                pause_s = ASYNC_DELAY_S

    async def _order(self, target: str, body: dict[str, Any]) -> dict[str, Any]:
        status, answer = await self._ask(target, body)
        if status in NOT_FOUND and target == "/sync":
            status, answer = await self._register()
            if status == 200:
                status, answer = await self._ask(target, body)
        if status != 200:
            raise ReplicaUnavailableError(str(answer.get("error", f"status {status}")), 0.0)
        return answer

    async def _check_mark(self) -> None:
        """See `check_mark`; the daemon begins anew with the file when the folder is not there."""
        try:
            await check_mark(self._spec.mark, self._spec.timeout_s)
        except ReplicaUnavailableError:
            # What it has just written lies on this disk: it must not take that for copied and go
            # on behind it once the folder is there.
            self._is_ours = False
            with contextlib.suppress(ReplicaUnavailableError):
                await self._let_go()
            raise

    async def _start_over(self) -> None:
        """Have the daemon forget what it kept of the file: it copies it whole into the line."""
        with contextlib.suppress(ReplicaUnavailableError):
            await self._let_go()
        shutil.rmtree(engine_folder(self._path), ignore_errors=True)

    async def _let_go(self) -> None:
        """Have the daemon know nothing of the file, as far as it knew it."""
        await self._order("/unregister", {"path": self._path, "timeout": 1})

    async def _register(self) -> tuple[int, dict[str, Any]]:
        known = {"path": self._path, "replica_url": self._spec.url}
        return await self._ask("/register", known)

    async def _ask(self, target: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        limit = max(math.ceil(self._spec.timeout_s), body.get("timeout", 0)) + GRACE_S
        try:
            return await self._socket.ask("POST", target, body, timeout_s=limit)
        except TimeoutError:
            raise ReplicaUnavailableError("the replication daemon is silent", limit) from None
        except (OSError, EOFError, ValueError) as error:
            reason = f"no replication daemon answers on this node: {error}"
            raise ReplicaUnavailableError(reason, 0.0) from None
