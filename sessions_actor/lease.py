"""A node's lease: until when the conversations of a node may acknowledge anything.

A router grants it to a node, for a *term*, and every process of that node reads it from one word
of shared memory: renewing it renews it for all conversations at once, and looking at it costs no
call. When a router takes conversations from a node whose lease ran out, it ends the term; who was
bound in an earlier term never acknowledges again, whenever it wakes.

Rules:
- Times are those of one machine's clock, which goes on while the machine sleeps. A lease counts
  from when its renewal was asked for, a router counts it from when the request arrived: whatever
  the delay, a node gives up first. No clock is compared with another machine's.
- A word only moves forward: a holder who slept on an old grant takes nothing back.

What it does not do: talk to a router (the node's agent does), or keep a second process out of a
file (the file's lock does).
"""

import hashlib
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from .errors import StorageError

WORD_BYTES: Final = 8
TERM_BITS: Final = 20
_TERM_MASK: Final = (1 << TERM_BITS) - 1

# A grant counts this much shorter at the node than at the router: clocks drift apart.
DRIFT: Final = 0.01

Clock = Callable[[], float]


def lease_clock() -> float:
    """Return seconds of this machine's clock that goes on while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


# On Linux the monotonic clock stands still while a machine sleeps, elsewhere it does not.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class NodeLease:
    """One lease as the processes of its node see it.

    Args: `word` is 8 bytes of memory, shared by those processes.
    """

    def __init__(self, word: memoryview, clock: Clock = lease_clock) -> None:
        self._word, self._clock = word.cast("Q"), clock

    @classmethod
    def in_memory(cls, clock: Clock = lease_clock) -> "NodeLease":
        """Make one for a single process."""
        return cls(memoryview(bytearray(WORD_BYTES)), clock)

    @property
    def term(self) -> int:
        """The term that was granted last; 0 before any was."""
        return self._word[0] & _TERM_MASK

    @property
    def left_s(self) -> float:
        """Seconds for which the lease still stands; 0 when it does not."""
        return max(0.0, (self._word[0] >> TERM_BITS) / 1000 - self._clock())

    def holds(self, term: int) -> bool:
        """Say whether what was bound in a term may acknowledge now. Cost: no call, under 1 us."""
        word: int = self._word[0]
        return word & _TERM_MASK == term & _TERM_MASK and (word >> TERM_BITS) > self._clock() * 1000

    def ended(self, term: int) -> bool:
        """Say whether a later term began: what was bound in this one is over for good."""
        return self.term > term & _TERM_MASK

    def grant(self, term: int, asked_at: float, ttl_s: float) -> None:
        """Note a grant; an older one changes nothing.

        Args: `asked_at` is the clock's time at which it was asked for.
        """
        until_ms = int((asked_at + ttl_s * (1 - DRIFT)) * 1000)
        known: int = self._word[0]
        if (term & _TERM_MASK, until_ms) > (known & _TERM_MASK, known >> TERM_BITS):
            # One word, so that nobody reads the time of one term with the number of another.
            self._word[0] = until_ms << TERM_BITS | term & _TERM_MASK

    def now(self) -> float:
        """Return the time that `grant` means."""
        return self._clock()


def lease_file(namespace: str, router: str, node_id: str) -> Path:
    """Return where a node keeps the lease that a router of a deployment granted it.

    In a folder of this user's own, which is made on first use.
    Raises: StorageError when that folder is someone else's.
    """
    folder = Path(tempfile.gettempdir()) / f"sessions-actor-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StorageError(str(folder), "is not this user's alone: remove it, or set TMPDIR")
    whose = hashlib.sha256(f"{namespace}\0{router}\0{node_id}".encode()).hexdigest()[:32]
    return folder / f"{whose}.lease"


def open_lease(file: Path) -> NodeLease:
    """Map a lease's file, making it on first use.

    Raises: StorageError.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size < WORD_BYTES:
                os.ftruncate(descriptor, WORD_BYTES)
            return NodeLease(memoryview(mmap.mmap(descriptor, WORD_BYTES)))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(str(file), f"{error.strerror}; a node keeps its lease there") from error
