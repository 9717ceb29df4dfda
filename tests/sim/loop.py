"""Event loops of simulated processes on one virtual clock, run in an order drawn from a seed.

Rules:
- Each process has a loop of its own. Within one its callbacks run first in, first out, as asyncio
  promises; which process runs next, and for how many callbacks, is drawn.
- Time passes only between callbacks: a little for each burst, else up to the next timer. No thread,
  no real clock and no order of addresses in memory takes part, so a seed is one history.
- A loop that is halted (its process was killed) never runs anything again, not even what stands in
  a `finally`: what it held is kept until the simulation is over.

What it does not do: know what a process is, or a message.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final

# Callbacks that one process runs before another may.
BURST_MAX: Final = 12
# Virtual seconds that a burst takes, at most.
BURST_S: Final = 0.0002
# Virtual seconds that work on a thread takes, at most.
THREAD_S: Final = 0.02


class Handle:
    """A callback that waits for its turn."""

    __slots__ = ("_when", "args", "callback", "cancelled_", "context")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.callback, self.args = callback, args
        self.context = copy_context() if context is None else context
        self.cancelled_ = False
        self._when = 0.0

    def cancel(self) -> None:
        """Keep it from running."""
        self.cancelled_ = True

    def cancelled(self) -> bool:
        """Say whether it was cancelled."""
        return self.cancelled_

    def when(self) -> float:
        """Return the time of a timer."""
        return self._when


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._number = next(SimTask._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimFuture(asyncio.Future[Any]):
    """A future whose place in a set does not depend on its address."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(SimTask._numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class Scheduler:
    """The clock, and all loops."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.now = 0.0
        self.steps = 0
        self.current: ProcessLoop | None = None
        self.errors: list[BaseException] = []
        self._ready: list[ProcessLoop] = []
        self._timers: list[tuple[float, int, ProcessLoop, Handle]] = []
        self._count = itertools.count()

    def at(self, when: float, loop: "ProcessLoop", handle: Handle) -> None:
        """Have a loop run a callback at a time."""
        handle._when = when
        heapq.heappush(self._timers, (when, next(self._count), loop, handle))

    def wake(self, loop: "ProcessLoop") -> None:
        """Note that a loop has something to run."""
        if not loop.queued:
            loop.queued = True
            self._ready.append(loop)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run until a condition holds, looked at after each burst.

        Raises: AssertionError when nothing is left that could bring it about; what a callback of
            the product let escape.
        """
        random, ready, timers = self.rng.random, self._ready, self._timers
        while not done():
            self._take_due()
            while not ready:
                assert timers, "the simulation stands still"
                self.now = max(self.now, timers[0][0])
                self._take_due()
            place = int(random() * len(ready))
            loop = ready[place]
            if loop.halted or loop.frozen or not loop.callbacks:
                ready[place] = ready[-1]
                ready.pop()
                loop.queued = False
                continue
            self._burst(loop, 1 + int(random() * BURST_MAX))
            self.now += random() * BURST_S
            if self.errors:
                raise self.errors[0]

    def _take_due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            _, _, loop, handle = heapq.heappop(timers)
            if not handle.cancelled_ and not loop.halted:
                loop.callbacks.append(handle)
                self.wake(loop)

    def _burst(self, loop: "ProcessLoop", count: int) -> None:
        self.current = loop
        asyncio._set_running_loop(loop)
        callbacks = loop.callbacks
        try:
            for _ in range(count):
                if not callbacks or loop.halted or loop.frozen:
                    break
                if loop.fuse is not None:
                    loop.fuse -= 1
                    if loop.fuse < 0:
                        loop.fuse = None
                        loop.on_fuse()
                        break
                handle = callbacks.popleft()
                if not handle.cancelled_:
                    self.steps += 1
                    try:
                        handle.context.run(handle.callback, *handle.args)
                    except BaseException as error:
                        self.errors.append(error)
        finally:
            asyncio._set_running_loop(None)
            self.current = None


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(
        self, scheduler: Scheduler, owner: Any, clock_offset: float = 0.0, clock_rate: float = 1.0
    ) -> None:
        self.scheduler, self.owner = scheduler, owner
        self.callbacks: deque[Handle] = deque()
        self.queued = self.halted = self.frozen = False
        # Callbacks that may still run before `on_fuse` is called instead of the next.
        self.fuse: int | None = None
        self.on_fuse: Callable[[], None] = lambda: None
        self._offset, self._rate = clock_offset, clock_rate
        self._kept: list[Any] = []
        self._base = Context()

    # ----------------------------------------------------------------- as asyncio asks for it

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def time(self) -> float:
        return self.scheduler.now * self._rate + self._offset

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, context)
        self.callbacks.append(handle)
        if not self.queued:
            self.scheduler.wake(self)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = Handle(callback, args, context)
        self.scheduler.at(self.scheduler.now + max(0.0, delay) / self._rate, self, handle)
        return handle

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: Any = None, context: Context | None = None
    ) -> Any:
        return SimTask(coro, loop=self, name=name or "task", context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = SimFuture(loop=self)

        def work() -> None:
            asyncio._set_running_loop(None)  # a thread has no loop
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)
            finally:
                asyncio._set_running_loop(self)

        self.call_later(self.scheduler.rng.random() * THREAD_S, work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Pass over what nobody asked for: a future's error, a task that was dropped."""

    # ---------------------------------------------------------------------- from the outside

    def post(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Have the loop run a callback that belongs to none of its tasks."""
        handle = Handle(callback, args, self._base.copy())
        self.scheduler.at(self.scheduler.now + delay, self, handle)
        return handle

    def halt(self) -> None:
        """Never run anything again."""
        self.halted = True
        self._kept += [*self.callbacks, *asyncio.all_tasks(self)]
        self._kept += [h for _, _, loop, h in self.scheduler._timers if loop is self]
        self.callbacks.clear()

    def freeze(self) -> None:
        """Stop where it stands: what comes due waits, the clock goes on."""
        self.frozen = True

    def thaw(self) -> None:
        """Go on."""
        self.frozen = False
        if self.callbacks and not self.halted:
            self.scheduler.wake(self)
