"""A SQLite VFS whose files fail, or whose process dies, when a test says so.

It passes everything on to the default VFS, counts writes and syncs per kind of file ("main" or
"wal"), and can undo writes that were never synced, which is what a power loss does.
"""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable

import apsw

MAIN, WAL, OTHER = "main", "wal", "other"


class FaultyVfs(apsw.VFS):
    """Register under a name; hand that name to `Storage(vfs=...)`."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.calls: Counter[tuple[str, str]] = Counter()
        self.files: list[FaultyFile] = []
        self._fault: Callable[[str, str], None] | None = None

    def xOpen(self, name: object, flags: list[int]) -> "FaultyFile":
        """Open a file that asks this VFS before it writes or syncs."""
        kind = OTHER
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            kind = MAIN
        elif flags[0] & apsw.SQLITE_OPEN_WAL:
            kind = WAL
        file = FaultyFile(self, name, flags, kind)
        self.files.append(file)
        return file

    def arm(self, fault: Callable[[str, str], None]) -> None:
        """From now on call `fault(action, kind)` before each "write" and "sync"."""
        self.calls.clear()
        self._fault = fault

    def disarm(self) -> None:
        """Let everything succeed again."""
        self._fault = None

    def before(self, action: str, kind: str) -> None:
        """Count a call and let the fault happen."""
        self.calls[action, kind] += 1
        if self._fault is not None:
            self._fault(action, kind)


class FaultyFile(apsw.VFSFile):
    """A file of the default VFS that can fail."""

    def __init__(self, vfs: FaultyVfs, name: object, flags: list[int], kind: str) -> None:
        super().__init__("", name, flags)  # type: ignore[arg-type]
        self._vfs, self._kind = vfs, kind
        self.path = name.filename() if isinstance(name, apsw.URIFilename) else name
        # What unsynced writes replaced, newest last: offset, old bytes, old size.
        self._unsynced: list[tuple[int, bytes, int]] = []

    def xWrite(self, data: bytes, offset: int) -> None:
        """Write, remembering what was there."""
        self._vfs.before("write", self._kind)
        size = super().xFileSize()
        held = min(len(data), max(0, size - offset))
        old = super().xRead(held, offset) if held else b""
        self._unsynced.append((offset, old, size))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        """Make what was written durable."""
        self._vfs.before("sync", self._kind)
        super().xSync(flags)
        self._unsynced.clear()

    def lose_unsynced(self, chance: random.Random) -> None:
        """Undo unsynced writes from some point on, and tear the one at that point."""
        if not self._unsynced or not isinstance(self.path, str):
            return
        keep = chance.randrange(len(self._unsynced) + 1)
        descriptor = os.open(self.path, os.O_RDWR)
        for offset, old, size in reversed(self._unsynced[keep:]):
            os.pwrite(descriptor, old, offset)
            os.ftruncate(descriptor, max(size, offset + len(old)))
        os.close(descriptor)


def fail_with(error: type[apsw.Error], action: str, kind: str) -> Callable[[str, str], None]:
    """Make one kind of call fail, every time."""

    def fault(did: str, where: str) -> None:
        if (did, where) == (action, kind):
            raise error(f"injected: {action} of {kind}")

    return fault


def die_at(
    vfs: FaultyVfs, number: int, *, power_loss: random.Random | None = None
) -> Callable[[str, str], None]:
    """Kill this process without warning before the given call, counted from 1."""
    left = number

    def fault(_: str, __: str) -> None:
        nonlocal left
        left -= 1
        if left:
            return
        if power_loss is not None:
            for file in vfs.files:
                file.lose_unsynced(power_loss)
        os.kill(os.getpid(), signal.SIGKILL)

    return fault
