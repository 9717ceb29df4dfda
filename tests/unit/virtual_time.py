"""An event loop whose clock moves when nothing is left to do: then up to the next timer.

A test on it waits for no clock, and no timer runs out because its process got no processor for a
while. Work on a thread of the loop's executor takes no time: the clock stands still until it is
done. It does not know of other threads, nor of other processes: what waits for one of those needs
a loop on the real clock. A module of tests that needs one says `LOOP = asyncio.new_event_loop`;
see `conftest`.
"""

import asyncio
import selectors
from asyncio import Future
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

# What a round of the loop takes that has something to do: who is always busy meets its timers too.
ROUND_S: Final = 0.00002


class _Jumping(selectors.DefaultSelector):
    """Looks once; where the loop would sleep, the clock moves instead."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; after a time that is virtual if that is nothing."""
        if timeout is None:
            return super().select(None)
        found = super().select(0)
        if found or timeout <= 0:
            self.loop.moved_s += ROUND_S
            return found
        if self.loop.on_threads:
            return super().select(None)  # whoever is done wakes the loop
        self.loop.moved_s += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop on a clock of its own."""

    def __init__(self) -> None:
        self.moved_s = 0.0
        self.on_threads: set[asyncio.Future[Any]] = set()
        selector = _Jumping()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self.moved_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> Future[T]:
        """Run something on a thread, while no time passes."""
        work = super().run_in_executor(executor, func, *args)
        self.on_threads.add(work)
        work.add_done_callback(self.on_threads.discard)
        return work
