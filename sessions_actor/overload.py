"""How much may wait in one conversation: calls and the bytes they carry, counted at both ends.

Rules:
- Past a bound a call fails at once with OverloadedError; nothing queues without end. The caller
  knows best whether to wait, to drop, or to slow its own callers down.
- A call larger than the whole bound travels beside it, one such call at a time: so it neither
  waits for a quiet moment nor keeps small ones out.

Counted are arguments, which is what callers can pile up; answers are bounded by what is asked.
"""

from dataclasses import dataclass
from typing import Final

from .errors import OverloadedError
from .limits import MIB

PENDING_CALLS_DEFAULT: Final = 4096
PENDING_BYTES_DEFAULT: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most calls, and the most bytes in them, that may wait in one conversation."""

    calls: int = PENDING_CALLS_DEFAULT
    bytes: int = PENDING_BYTES_DEFAULT


class Load:
    """What waits at one end of a conversation. Pure counting."""

    __slots__ = ("_large_bytes", "bounds", "bytes", "calls")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.calls = self.bytes = self._large_bytes = 0

    def take(self, size: int) -> None:
        """Count one call of so many bytes in.

        Raises: OverloadedError, and nothing is counted.
        """
        bounds = self.bounds
        if self.calls >= bounds.calls:
            raise OverloadedError(self.calls, bounds.calls, "calls")
        if size > bounds.bytes:
            if self._large_bytes:
                raise OverloadedError(self._large_bytes, bounds.bytes, "bytes")
            self._large_bytes = size
        elif self.bytes + size > bounds.bytes:
            raise OverloadedError(self.bytes, bounds.bytes, "bytes")
        else:
            self.bytes += size
        self.calls += 1

    def give_back(self, size: int) -> None:
        """Count out a call that was counted in, of the same size."""
        self.calls -= 1
        if size > self.bounds.bytes:
            self._large_bytes = 0
        else:
            self.bytes -= size
        assert self.calls >= 0 <= self.bytes
