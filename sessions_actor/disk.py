"""The disk that holds conversations' files: its identity, and chores that need no database.

A storage root carries a file with an id made on first use. Nodes that mount the same disk find the
same id, whatever Ray calls them today.
"""

import contextlib
import hashlib
import os
import uuid
from functools import cache
from pathlib import Path

from .database_file import make_parent, private, remove_database
from .errors import StorageError

DISK_ID_FILE = "disk-id"

# Set on a node that keeps files elsewhere than the deployment's settings say.
NODE_ROOT_VARIABLE = "SESSIONS_ACTOR_NODE_STORAGE_ROOT"


def root_here(storage_root: str) -> Path:
    """Return where this node keeps a deployment's files.

    The deployment's storage root, unless the node says otherwise: then a folder below that, one
    for each root, so that several deployments may share a node.
    """
    own = os.environ.get(NODE_ROOT_VARIABLE)
    if not own:
        return Path(storage_root)
    return Path(own) / hashlib.sha256(storage_root.encode()).hexdigest()[:16]


def disk_id(root: Path) -> str:
    """Return the id of the disk under a storage root, making root and id on first use.

    Raises: StorageError when the root cannot be made or written.
    """
    file = root / DISK_ID_FILE
    make_parent(str(file))
    try:
        if not file.exists():
            _write_once(file, uuid.uuid4().hex)
        return file.read_text().strip()
    except OSError as error:
        reason = f"{error.strerror}; check the folder's owner and mode, or set storage_root"
        raise StorageError(str(root), reason) from error


@cache
def machine_id() -> str:
    """Return what tells one running machine from another: its processes share file locks.

    Containers of one machine have the same; a machine that starts anew has another.
    """
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{uuid.getnode():012x}"


def _write_once(file: Path, text: str) -> None:
    """Write a file unless another caller is first; a crash leaves none or a whole one."""
    draft = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    with open(draft, "x", opener=private) as new:
        new.write(text)
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink()


def remove_file(root: Path, file: str) -> bool:
    """Remove a conversation's file, durably; False while something has it open."""
    try:
        remove_database(root / file)
    except StorageError:
        return False
    return True


def file_bytes(root: Path, file: str) -> int | None:
    """Return a file's size with its log; None when it is not there."""
    try:
        size = (root / file).stat().st_size
    except OSError:
        return None
    with contextlib.suppress(OSError):
        size += (root / f"{file}-wal").stat().st_size
    return size
