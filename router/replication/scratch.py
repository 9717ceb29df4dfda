"""Files that somebody works on for a while beside a conversation's: copies, restores to compare.

Each is locked for as long as its process works on it. What nobody holds was left by a process that
was killed; the node's agent removes it at its start.
"""

import contextlib
import shutil
import uuid
from pathlib import Path
from typing import Final

from sessions_actor.database_file import FileLock
from sessions_actor.errors import StorageError
from sessions_actor.limits import MIB

_FOLDER: Final = "scratch"
_SUFFIX: Final = ".sqlite"
# What is left free on the disk for those who are served.
SPARE_BYTES: Final = 256 * MIB


class Scratch:
    """A place for a file beside a conversation's; closing removes what is there.

    `used_at` is whatever its user counts by.

    Args: `size` is how large the file may become: the disk must have room for it and more.
    Raises: OSError, StorageError when it cannot be made.
    """

    def __init__(self, beside: Path, size: int) -> None:
        folder = beside.parent / _FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < size + SPARE_BYTES:
            needed = (size + SPARE_BYTES - free) // MIB + 1
            raise StorageError(
                str(folder),
                f"{needed} MiB too few are free for a copy of {size // MIB} MiB beside what is"
                " served; make room on that disk",
            )
        self.path = folder / f"{uuid.uuid4().hex}{_SUFFIX}"
        self.used_at = 0.0
        self._lock = FileLock(str(self.path))
        self._lock.acquire()

    def close(self) -> None:
        """Remove the file and what stands by it; closing twice is fine."""
        _remove(self.path)
        self._lock.release()


def clear_scratch(root: Path) -> None:
    """Remove what processes left that ended before they could."""
    for found in list(root.glob(f"conversations/*/{_FOLDER}/*{_SUFFIX}*")):
        path = found.with_name(found.name.partition(_SUFFIX)[0] + _SUFFIX)
        lock = FileLock(str(path))
        try:
            lock.acquire()
        except StorageError:
            continue  # somebody works on it
        _remove(path)
        lock.release()


def _remove(path: Path) -> None:
    for left in path.parent.glob(f"{path.name}*"):
        if left.name != f"{path.name}.lock":
            with contextlib.suppress(OSError):
                left.unlink()
