"""Who is followed: conversations whose change feed someone reads, and who served them in turn.

A follower pulls from the activation it knows until that ends, then asks for the next one. This
keeps the line of activations of each followed conversation, so that a follower misses none.
Kept in memory for a minute after anyone last asked; pure.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from sessions_actor.channel import Address

FOLLOWED_S: Final = 60.0
LINE_MAX: Final = 16
NAMES_MAX: Final = 4096

assert LINE_MAX >= 2


class Following:
    """The lines of activations of followed conversations."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}
        self._lines: dict[str, deque[Address]] = {}

    def is_followed(self, name: str) -> bool:
        """Say whether someone asked lately."""
        return self._until.get(name, 0.0) > self._now()

    def follow(self, name: str, address: Address) -> None:
        """Note that someone follows a conversation and came as far as this activation."""
        now = self._now()
        if not self.is_followed(name):
            self._lines.pop(name, None)
        self._until[name] = now + FOLLOWED_S
        line = self._lines.setdefault(name, deque(maxlen=LINE_MAX))
        if not line or line[-1].epoch < address.epoch:
            line.append(address)
        if len(self._until) > NAMES_MAX:
            self._until = {one: until for one, until in self._until.items() if until > now}
            self._lines = {one: line for one, line in self._lines.items() if one in self._until}

    def activated(self, address: Address) -> None:
        """Add an activation to its conversation's line, if that is followed."""
        line = self._lines.get(address.name)
        if line is not None and line[-1].epoch < address.epoch:
            line.append(address)

    def successor(self, name: str, epoch: int) -> Address | None:
        """Return the activation that came next after an epoch; None when that is not known."""
        line = self._lines.get(name, ())
        epochs = [address.epoch for address in line]
        if epoch not in epochs or epochs[-1] == epoch:
            return None
        return line[epochs.index(epoch) + 1]
