"""An event loop whose clock moves only when nothing is left to do: then up to the next timer.

A test on it waits for no clock, and no timer runs out because its process got no processor for a
while. Only for what stays on the loop: work on a thread would seem to take for ever. A module of
tests that runs on it says `LOOP = VirtualTimeLoop`; see `conftest`.
"""

import asyncio
import selectors


class _Jumping(selectors.DefaultSelector):
    """Looks once; where the loop would sleep, the clock moves instead."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; after a time that is virtual if that is nothing."""
        if timeout is None:
            return super().select(None)
        found = super().select(0)
        if not found and timeout > 0:
            self.loop.moved_s += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop on a clock of its own."""

    def __init__(self) -> None:
        self.moved_s = 0.0
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self.moved_s
