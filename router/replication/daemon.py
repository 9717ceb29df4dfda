"""The replication daemon of a node: started, watched, started again, ended with its owner.

Rules:
- One daemon serves one disk, whoever starts it: a lock beside the files sees to that. Where two
  nodes share a disk, the second waits to take over.
- It ends when its owner does, also when that is killed: a shell between them watches a pipe.
- It knows no files at its start; activations name theirs (`sessions_actor.replica`).

What it does not do: decide what is replicated or where to.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sessions_actor.database_file import make_parent, private
from sessions_actor.errors import StorageError
from sessions_actor.logs import log
from sessions_actor.replica import ControlSocket, socket_path

from .engine import END_SYNC_S, config, environment, find_program

LOCK_FILE: Final = "replication.lock"
CONFIG_FILE: Final = "replication.json"

LOCK_LOOK_S: Final = 0.2
READY_LOOK_S: Final = 0.02
WATCH_S: Final = 1.0
RETRY_S: Final = 5.0
PROBE_TIMEOUT_S: Final = 2.0
RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 5.0
# One that ran for so long did not fail at its start.
RAN_WELL_S: Final = 30.0
END_WAIT_S: Final = END_SYNC_S + 2.0

# Ends the daemon when the pipe on its standard input closes, however its owner ended.
_WATCH: Final = """
exec 3<&0
"$@" </dev/null 3<&- &
daemon=$!
{ cat <&3 >/dev/null; kill -TERM $daemon 2>/dev/null; } &
wait $daemon
"""


def prepare_socket_folder(path: str) -> None:
    """Make the folder of a socket, private to us.

    Raises: StorageError when somebody else owns it.
    """
    folder = os.path.dirname(path)
    make_parent(path)
    status = os.lstat(folder)
    if status.st_uid != os.getuid() or not os.path.isdir(folder) or os.path.islink(folder):
        raise StorageError(folder, "belongs to someone else; set TMPDIR to a folder of yours")


@dataclass(frozen=True, slots=True)
class DaemonTerms:
    """What a deployment asks of its daemons; see `engine.config`."""

    retention_s: float
    exact_s: float


class Daemon:
    """Keeps a disk's daemon running.

    Args: `root` is the storage root on this node.
    Raises: StorageError when the engine is not installed here.
    """

    def __init__(self, root: Path, terms: DaemonTerms) -> None:
        self._program = find_program()
        self._root = root
        self.socket = socket_path(root)
        self._text = config(self.socket, retention_s=terms.retention_s, exact_s=terms.exact_s)
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The process that watches over the daemon, while this object runs it."""
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Keep the daemon running until cancelled, then end it.

        A disk that refuses is tried again: its conversations fail with ReplicaUnavailableError
        meanwhile, and `doctor` tells of it.
        """
        clock = asyncio.get_running_loop().time
        pause_s, told = RESTART_FIRST_S, ""
        while True:
            began = clock()
            try:
                lock = await self._lock()
                try:
                    await self._run_once(lock)
                finally:
                    os.close(lock)
            except (StorageError, OSError) as error:
                if str(error) != told:
                    log(logging.ERROR, "replication.failed", error=error)
                told = str(error)
            if clock() - began >= RAN_WELL_S:
                pause_s, told = RESTART_FIRST_S, ""
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RESTART_MAX_S)

    async def ready(self, timeout_s: float) -> None:
        """Wait until a daemon of this disk answers.

        Raises: StorageError when none does in time.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not await answers(self.socket):
            if asyncio.get_running_loop().time() >= deadline:
                reason = f"the replication daemon does not answer within {timeout_s:g} s"
                raise StorageError(str(self._root), f"{reason}; see the log of the node's agent")
            await asyncio.sleep(READY_LOOK_S)

    async def _lock(self) -> int:
        """Wait for the right to run the daemon of this disk; returns what holds it."""
        while True:
            lock = self._try_lock()
            if lock is not None:
                return lock
            await asyncio.sleep(LOCK_LOOK_S)

    def _try_lock(self) -> int | None:
        path = self._root / LOCK_FILE
        make_parent(str(path))
        prepare_socket_folder(self.socket)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Somebody may have removed the folder meanwhile: a lock that no path leads to is none.
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return lock
        os.close(lock)
        return None

    def _write_config(self) -> Path:
        path = self._root / CONFIG_FILE
        with open(path, "w", opener=private) as file:
            file.write(self._text)
        return path

    async def _run_once(self, lock: int) -> None:
        """Start the daemon and wait for its end."""
        path = self._write_config()
        self.starts += 1
        # The children inherit the lock: it is free when the last of them has ended.
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _WATCH, "replication"),
            *(self._program, "replicate", "-no-expand-env", "-config", str(path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=str(self._root),
            env=environment(),
            pass_fds=(lock,),
            start_new_session=True,
            umask=0o077,
        )
        self._process = process
        ended = asyncio.ensure_future(process.wait())
        try:
            # A daemon whose files were removed serves nobody any more.
            while not ended.done() and path.exists():
                await asyncio.wait([ended], timeout=WATCH_S)
        finally:
            self._process = None
            ended.cancel()
            await _end(process)


def keep_running(root: Path, terms: DaemonTerms) -> None:
    """Keep a disk's daemon running for ever, for a thread of its own.

    A node whose engine is missing goes on without: its activations fail with
    ReplicaUnavailableError, `doctor` tells why, and it is tried again.
    """
    told = ""
    while True:
        try:
            asyncio.run(Daemon(root, terms).run())
        except (StorageError, OSError) as error:
            if str(error) != told:
                told = str(error)
                log(logging.ERROR, "replication.failed", error=error)
        time.sleep(RETRY_S)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close the pipe and wait for all of it to end; kill what does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.shield(asyncio.wait_for(process.wait(), END_WAIT_S))
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.wait()


async def answers(socket: str) -> bool:
    """Say whether a daemon listens at a socket."""
    control = ControlSocket(socket)
    try:
        status, _ = await control.ask("GET", "/info", timeout_s=PROBE_TIMEOUT_S)
    except (OSError, EOFError, ValueError, TimeoutError):
        return False
    finally:
        control.close()
    return status == 200
