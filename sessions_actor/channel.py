"""The way from one event loop to one conversation: finds its owner, gathers, retries.

Rules:
- What is asked while a frame is under way travels together as the next one, in order, each part
  with its own outcome. Calls that may take long travel alone and hold up nobody.
- The owner's address is kept until it proves wrong; only then is the resolver asked.
- What waits is bounded in calls and bytes; past that a call fails at once (see `overload`).
- A call ends with its result, with an error of its own, or, after `call_timeout_s` without reaching
  an owner, with TimeoutError. A call that an owner is working on may take its time. One that meets
  an owner which moves is given that time anew, but waits no longer than `SEALED_TOTAL_S` for moves.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from . import tracing, wire
from .errors import MigratingError, OutputGateBrokenError
from .limits import MIB
from .overload import Bounds, Load
from .retry import CutShortError, Tries, Verdict, judge
from .waiting import Reply
from .wire import Answer, Part

FRAME_PARTS_MAX: Final = 256
FRAME_BYTES_MAX: Final = 4 * MIB

# An owner that has not answered for so long is asked after.
SUSPECT_AFTER_S: Final = 3.0
COLLECT_WAIT_S: Final = 2.0
# A seal lasts for the last changes and the start of the next owner, whatever is moved.
SEALED_TOTAL_S: Final = 120.0

assert COLLECT_WAIT_S < SUSPECT_AFTER_S


@dataclass(frozen=True, slots=True)
class Address:
    """Where a conversation is served: an actor and the epoch of its activation."""

    name: str
    epoch: int
    actor: Any


class Succession(NamedTuple):
    """A later activation of a conversation; `next` says that none came in between."""

    address: Address
    next: bool


class Resolver(Protocol):
    """Finds owners; picklable, so that handles are."""

    @property
    def call_timeout_s(self) -> float:
        """How long a call is retried."""

    @property
    def bounds(self) -> Bounds:
        """What may wait in one conversation."""

    async def resolve(self, name: str, failed: Address | None) -> Address:
        """Return the conversation's owner, activating it if need be.

        Args: `failed` is an address that did not work: it is verified before it is given again.
        """

    async def succession(self, name: str, epoch: int, wait_s: float) -> Succession | None:
        """Wait for an activation after an epoch without causing one; None when none came."""


@dataclass(slots=True, eq=False)
class Call:
    """A call under way: its outcome to come, and then the owner that gave it."""

    part: Part
    deadline: float
    repeatable: bool
    future: asyncio.Future[bytes]
    tries: Tries = field(default_factory=Tries)
    owner: Address | None = None
    refused: Exception | None = None
    """Why the last owner that was reached did not carry it out."""
    sealed_until: float | None = None
    """Until when it waits for owners that move, once it met one."""

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Channel:
    """Calls from one event loop to one conversation."""

    def __init__(self, name: str, resolver: Resolver) -> None:
        self.name = name
        self.resolver = resolver
        self._loop = asyncio.get_running_loop()
        self._address: Address | None = None
        self._failed: Address | None = None
        self._locating = asyncio.Lock()
        self._load = Load(resolver.bounds)
        self._queue: OrderedDict[Call, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending = False

    @property
    def busy(self) -> bool:
        """Whether calls wait or are under way."""
        return bool(self._queue or self._tasks)

    async def call(self, session_id: str, method: str, args: bytes) -> bytes:
        """Make one call; returns what `wire.load_result` reads.

        Raises: what the conversation raised; RoutingError, StorageError from the resolver;
            OverloadedError at once when too much waits, here or there; TimeoutError when no
            owner was reached in time.
        """
        known = wire.METHODS[method]
        self._load.take(len(args))
        call = self._new(Part(session_id, method, args), known.repeatable)
        try:
            if known.alone:
                await self._deliver([call])
            else:
                self._enqueue(call)
            return await call.future
        finally:
            self._queue.pop(call, None)  # given up before it travelled
            self._load.give_back(len(args))

    def start(self, session_id: str, method: str, args: bytes) -> Call:
        """Queue one call that travels with others, without waiting for it."""
        call = self._new(Part(session_id, method, args), wire.METHODS[method].repeatable)
        self._enqueue(call)
        return call

    def _new(self, part: Part, repeatable: bool) -> Call:
        deadline = self._loop.time() + self.resolver.call_timeout_s
        future: asyncio.Future[bytes] = self._loop.create_future()
        span = tracing.client_span(self.name, part.session_id, part.method)
        if span is not None:
            part = part._replace(trace=span.parent)
            future.add_done_callback(partial(_end_span, span))
        return Call(part, deadline, repeatable, future)

    # ------------------------------------------------------------------------------ sending

    def _enqueue(self, call: Call) -> None:
        self._queue[call] = None
        if not self._sending:
            self._sending = True
            self._spawn(self._send())

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self) -> None:
        try:
            while self._queue:
                await self._deliver(self._take())
        finally:
            self._sending = False

    def _take(self) -> list[Call]:
        """Take what travels together as the next frame."""
        calls: list[Call] = []
        size = 0
        while self._queue and len(calls) < FRAME_PARTS_MAX:
            call = next(iter(self._queue))
            size += len(call.part.args)
            if calls and size > FRAME_BYTES_MAX:
                break
            del self._queue[call]
            calls.append(call)
        return calls

    async def _deliver(self, calls: Sequence[Call]) -> None:
        """Send a frame until every call in it has an outcome or a ticket."""
        while True:
            calls = [call for call in calls if not call.future.done()]
            if not calls:
                return
            try:
                address = await self._locate(min(call.deadline for call in calls))
            except Exception as error:
                now = self._loop.time()
                for call in calls:
                    if not isinstance(error, TimeoutError):
                        call.fail(error)
                    elif call.deadline <= now:
                        call.fail(error if call.refused is None else self._timeout(call.refused))
                continue
            try:
                late = max(calls, key=lambda call: call.deadline)
                frame = wire.pack_request(self.name, address.epoch, [call.part for call in calls])
                reply = await self._reply(address, address.actor.serve.remote(frame), late)
                answers = wire.unpack_reply(reply)
            except Exception as error:
                calls = [call for call in calls if self._again(call, address, error)]
            else:
                calls = [
                    call
                    for call, answer in zip(calls, answers, strict=True)
                    if self._settle(call, address, answer)
                ]
            if calls:
                await asyncio.sleep(max(call.tries.wait_s() for call in calls))

    def _settle(self, call: Call, address: Address, answer: Answer) -> bool:
        """Give a call its outcome; says whether it is to be made again instead."""
        if answer.tag == wire.OK:
            call.owner = address
            if not call.future.done():
                call.future.set_result(answer.data)
            return False
        if answer.tag == wire.WAITING:
            self._spawn(self._collect(call, address, answer.data.decode()))
            return False
        error = CutShortError() if answer.tag == wire.CUT else wire.load_error(answer.data)
        if answer.tag == wire.ERROR and not isinstance(error, OutputGateBrokenError):
            call.fail(error)  # also where it speaks of an owner: the host's code asked another
            return False
        return self._again(call, address, error)

    def _again(self, call: Call, address: Address, error: Exception) -> bool:
        """Note a failed try; says whether there is another, and fails the call if not."""
        verdict = judge(error)
        if verdict is not Verdict.RAISE:
            self._drop(address)
        if not call.tries.failed(error, repeatable=call.repeatable):
            if isinstance(error, CutShortError):
                error = MigratingError(self.name, 0.0)
            call.fail(error)
            return False
        if verdict is Verdict.REFUSED:
            call.refused = error
        if isinstance(error, MigratingError):
            now = self._loop.time()
            if call.sealed_until is None:
                call.sealed_until = now + SEALED_TOTAL_S
            longer = min(now + self.resolver.call_timeout_s, call.sealed_until)
            call.deadline = max(call.deadline, longer)
        if self._loop.time() >= call.deadline:
            call.fail(self._timeout(error))
            return False
        if verdict is Verdict.LOST:
            call.part = call.part._replace(again=True)
        return True

    async def _collect(self, call: Call, address: Address, ticket: str) -> None:
        """Fetch the outcome of a call that takes long; send it again if that fails."""
        while not call.future.done():
            asked = address.actor.collect.remote(self.name, address.epoch, ticket, COLLECT_WAIT_S)
            found: Answer | Exception
            try:
                (found,) = wire.unpack_reply(await self._reply(address, asked, None))
            except Exception as error:
                found = error
            if isinstance(found, Answer) and found.tag == wire.WAITING:
                continue
            # Its owner was at work until now: only from here on is it without one.
            call.deadline = self._loop.time() + self.resolver.call_timeout_s
            if isinstance(found, Exception):
                again = self._again(call, address, found)
            else:
                again = self._settle(call, address, found)
            if again:
                await self._deliver([call])
            return

    # ----------------------------------------------------------------------------- reaching

    async def locate(self) -> Address:
        """Return the owner's address, asking for it when none is known."""
        return await self._locate(self._loop.time() + self.resolver.call_timeout_s)

    async def _locate(self, deadline: float) -> Address:
        if self._address is not None:
            return self._address
        async with self._locating:
            if self._address is None:
                self._address = await self._resolve(self._failed, deadline)
            return self._address

    async def _resolve(self, failed: Address | None, deadline: float) -> Address:
        left = deadline - self._loop.time()
        try:
            return await asyncio.wait_for(self.resolver.resolve(self.name, failed), left)
        except TimeoutError as error:
            raise self._timeout(error) from error

    def _drop(self, address: Address) -> None:
        if self._address is None or self._address.epoch == address.epoch:
            self._address, self._failed = None, address

    async def _reply(self, address: Address, asked: Any, call: Call | None) -> bytes:
        """Wait for an answer, asking after an owner who is silent.

        Args: `call` is the one that may wait longest; None when the owner is working on it.
        Raises: CutShortError when another owner took over; TimeoutError past the deadline.
        """
        deadline = None if call is None else call.deadline
        reply = Reply(asked)
        try:
            while True:
                wait_s = SUSPECT_AFTER_S
                if deadline is not None:
                    wait_s = min(wait_s, max(0.0, deadline - self._loop.time()))
                if await reply.came(wait_s):
                    answer: bytes = reply.result()
                    return answer
                if call is not None and self._loop.time() >= call.deadline:
                    raise self._timeout(call.refused)
                until = self._loop.time() + self.resolver.call_timeout_s
                owner = await self._resolve(address, until if deadline is None else deadline)
                if owner.epoch != address.epoch:
                    self._drop(address)
                    self._address = owner
                    raise CutShortError
        finally:
            reply.drop()

    def _timeout(self, cause: BaseException | None) -> TimeoutError:
        known = f" ({cause})" if cause is not None and str(cause) else ""
        return TimeoutError(
            f"conversation {self.name!r} did not answer within"
            f" {self.resolver.call_timeout_s:g} s{known}"
        )


def _end_span(span: tracing.ClientSpan, outcome: asyncio.Future[bytes]) -> None:
    error = asyncio.CancelledError() if outcome.cancelled() else outcome.exception()
    span.end(error)
