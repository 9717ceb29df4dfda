"""Processes of this machine, as /proc shows them: whose they are, what they do, signals to them.

Ray gives its workers titles: `ray::ConversationActor.serve` while it runs a call, and so on.
Signals go to one process at a time, found by where it descends from: never by a name alone.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ACTOR, ROUTER = "ConversationActor", "RouterActor"
AGENT = "AgentActor"

_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Become the parent of what is orphaned below this process, so that it can be found."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _fields(pid: int) -> list[str]:
    """State, parent and so on of a process; nothing when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return []


def is_running(pid: int) -> bool:
    """Say whether a process is there and no zombie."""
    fields = _fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def is_frozen(pid: int) -> bool:
    """Say whether a process is stopped."""
    return _fields(pid)[:1] == ["T"]


def descendants(pid: int) -> list[int]:
    """Return the processes below one, zombies left out."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _fields(int(entry.name))
            if fields and fields[0] not in "ZX":
                below.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        here = below.get(pending.pop(), [])
        found += here
        pending += here
    return found


def workers(pid: int, *classes: str) -> list[int]:
    """Return the processes below one that run an actor of one of these classes."""
    titles = tuple(f"ray::{name}".encode() for name in classes)
    found = []
    for below in descendants(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{below}/cmdline").read_bytes().startswith(titles):
                found.append(below)
    return found


def own_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other."""
    found = 0
    for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if text.startswith("Private_"):
            found += int(text.split()[1]) * 1024
    return found


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; says whether the process was there."""
    if not is_running(pid):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def kill(pid: int) -> bool:
    """End a process without warning, frozen or not."""
    return send(pid, signal.SIGKILL)


def kill_with_all_below(*pids: int) -> None:
    """End processes and everything below them at one moment, whatever waits for their end."""
    found = [one for pid in pids for one in (pid, *descendants(pid))]
    for pid in found:
        freeze(pid)  # nobody sees another end before its own
    for pid in found:
        kill(pid)


def freeze(pid: int) -> bool:
    """Stop a process where it stands."""
    return send(pid, signal.SIGSTOP)


def resume(pid: int) -> bool:
    """Let a frozen process go on."""
    return send(pid, signal.SIGCONT)


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Freeze processes for a while."""
    for pid in pids:
        freeze(pid)
    try:
        yield
    finally:
        for pid in pids:
            resume(pid)


def reap() -> None:
    """Take leave of adopted workers that have ended, so that no zombies gather."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{entry.name}/stat").read_text()
                fields = text.rsplit(")", 1)[1].split()
                if fields[0] == "Z" and int(fields[1]) == os.getpid() and "(ray::" in text:
                    os.waitpid(int(entry.name), os.WNOHANG)
