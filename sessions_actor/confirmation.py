"""What a write waits for after its own disk: a confirmation that a replica has it too.

Rules:
- One confirmation is under way at a time. It covers every group that was committed before it
  began; groups committed meanwhile gather and share the next one.
- One that fails is tried again for as long as somebody waits. Who has waited `timeout_s` is told
  with the error of the last try; the group stays committed, and is confirmed with the next that
  succeeds. Nothing is lost, skipped or undone by a failure.
- Whoever reads what is not confirmed yet waits as its writer does.

What it does not do: know what a replica is, or run while nobody waits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from .errors import ReplicaUnavailableError, SessionsActorError

RETRY_FIRST_S: Final = 0.02
RETRY_MAX_S: Final = 0.5
TRIES_MIN: Final = 4
NO_ANSWER: Final = "no answer yet"

assert RETRY_FIRST_S <= RETRY_MAX_S

Confirm = Callable[[], Awaitable[None]]
"""Returns once a replica has everything that was committed before the call."""


@dataclass(eq=False, slots=True)
class _Group:
    """Waiters for one committed group, and when their patience ends."""

    number: int
    waiters: list[asyncio.Future[None]]
    alarm: asyncio.TimerHandle


class Confirmation:
    """Gathers committed groups and has them confirmed; see the module.

    Args:
        confirm: may raise anything: it is tried again. What is there at the start counts as not
            confirmed.
        reason: what is told to those who wait too long before anything failed.
    """

    def __init__(self, confirm: Confirm, timeout_s: float, reason: str = NO_ANSWER) -> None:
        self._confirm, self._timeout_s = confirm, timeout_s
        self._committed, self._confirmed = 1, 0
        self._groups: list[_Group] = []
        self._task: asyncio.Task[None] | None = None
        self._reason = reason
        self._ended: SessionsActorError | None = None
        self._gave_up = False
        self.on_late: Callable[[], object] = lambda: None
        """Called when writes are confirmed after all whose writers were told otherwise."""

    @property
    def complete(self) -> bool:
        """Whether everything committed is confirmed."""
        return self._confirmed == self._committed

    def committed(self, waiters: list[asyncio.Future[None]]) -> None:
        """Take over those who wait for a group that was committed just now."""
        self._committed += 1
        if self._ended is not None:
            _fail(waiters, self._ended)
        elif waiters:
            self._wait(waiters)

    async def all(self) -> None:
        """Wait until everything committed so far is confirmed.

        Raises: ReplicaUnavailableError when that takes too long.
        """
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)
        if not self.complete:
            waiter = asyncio.get_running_loop().create_future()
            self._wait([waiter])
            await waiter

    def end(self, error: SessionsActorError) -> None:
        """Confirm nothing any more: who waits and who comes is told why."""
        self._ended = error
        for group in self._groups:
            self._fail(group, error)
        self._groups.clear()
        if self._task is not None:
            self._task.cancel()

    def _wait(self, waiters: list[asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        number = self._committed
        if self._groups and self._groups[-1].number == number:
            # Readers of one unconfirmed state share the patience of the first.
            self._groups[-1].waiters += waiters
            return
        group = _Group(number, waiters, loop.call_later(self._timeout_s, self._give_up, number))
        self._groups.append(group)
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    def _give_up(self, number: int) -> None:
        self._gave_up = True
        error = ReplicaUnavailableError(self._reason, self._timeout_s)
        for group in [group for group in self._groups if group.number <= number]:
            self._groups.remove(group)
            self._fail(group, error)

    def _fail(self, group: _Group, error: SessionsActorError) -> None:
        group.alarm.cancel()
        _fail(group.waiters, error)

    async def _run(self) -> None:
        # Whoever comes while we pause has time left for several tries.
        longest_s = min(RETRY_MAX_S, self._timeout_s / TRIES_MIN)
        pause_s = RETRY_FIRST_S
        while self._groups:
            target = self._committed
            try:
                await self._confirm()
            except Exception as error:  # whatever keeps us from the replica may end by itself
                self._reason = str(error) or type(error).__name__
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)
            else:
                pause_s = RETRY_FIRST_S
                self._reached(target)

    def _reached(self, target: int) -> None:
        self._confirmed = max(self._confirmed, target)
        if self._gave_up:
            self._gave_up = False
            self.on_late()
        done = [group for group in self._groups if group.number <= target]
        del self._groups[: len(done)]
        for group in done:
            group.alarm.cancel()
            for waiter in group.waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _fail(waiters: list[asyncio.Future[None]], error: SessionsActorError) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(type(error)(*error.args))
