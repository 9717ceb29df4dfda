"""One activation as its actor serves it: calls, streams, the change feed, seal and end. No Ray.

Rules:
- The parts of a frame start in their order and nothing runs between their first steps, so what
  they write shares one commit, each under its own savepoint.
- An answer leaves after what it saw is durable (every Session method sees to that).
- A call that takes longer than a moment is answered with a ticket, so that it holds up nobody who
  travelled with it; its outcome is collected later.
- SERVING takes calls. SEALED lets them wait: it ends either in SERVING again or in ENDED. ENDED
  refuses them with StaleEpochError: the caller finds the next owner.
- While the last of a file is copied it is frozen: what outlived the seal, a call or a task of the
  hosted class, writes no more, and no such call is acknowledged, whatever it comes to.
"""

import asyncio
import contextlib
import functools
import inspect
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Any, Final

from . import reports, tracing, wire
from .change_log import ChangeLog
from .durable_object import DurableObject
from .errors import (
    MigratingError,
    OverloadedError,
    RemoteCallError,
    RoutingError,
    SessionsActorError,
    StaleEpochError,
)
from .limits import NO_CLIENT_LIMITS, WINDOW_BYTES_MAX, WINDOW_ROWS_MAX, ClientLimits
from .open_object import Activation
from .overload import Bounds, Load
from .records import ChangeEvent, Compaction
from .replica import Replica
from .sessions import Session, Sessions
from .waiting import Countdown, settle
from .wire import Answer, Part, Window, WindowRequest

# A call that is not done by then is answered with a ticket.
PROMPT_S: Final = 0.05
# How long a call waits at a seal before it is told to come again.
SEALED_WAIT_S: Final = 1.0
# How long calls that were cancelled at a seal may take to end.
CANCEL_WAIT_S: Final = 5.0
# Walkers kept open for streams whose reader may come again.
STREAMS_MAX: Final = 64

# A change feed counts as followed for so long after the last pull.
FOLLOWED_S: Final = 60.0

assert PROMPT_S < SEALED_WAIT_S < CANCEL_WAIT_S


class Phase(StrEnum):
    """Whether an activation takes calls."""

    SERVING = "serving"
    SEALED = "sealed"
    ENDED = "ended"


TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.SERVING: frozenset({Phase.SEALED, Phase.ENDED}),
    Phase.SEALED: frozenset({Phase.SERVING, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
assert set(TRANSITIONS) == set(Phase)


@dataclass(frozen=True, slots=True)
class Ended:
    """What an activation tells the directory at its end."""

    file_bytes: int
    last_active_at: int
    followed: bool
    position: int = 0
    """The transaction up to which its replica is complete; 0 without one."""
    behind: bool = False
    """Whether its replica lacks something of the file."""


class Remains:
    """What those who wait may still fetch from an activation: outcomes and changes."""

    def __init__(self, bounds: Bounds) -> None:
        self.log: ChangeLog | None = None
        self._bounds = bounds
        self._tickets: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()
        self._outcomes: OrderedDict[str, int] = OrderedDict()  # sizes, the oldest first
        self._outcome_bytes = 0
        self._count = itertools.count()

    def ticket(self, task: asyncio.Task[Answer]) -> Answer:
        """Give a call that takes long a ticket.

        Outcomes that nobody fetches are kept within the bounds of what may wait: the oldest go.
        """
        ticket = str(next(self._count))
        self._tickets[ticket] = task
        task.add_done_callback(functools.partial(self._came, ticket))
        return Answer(wire.WAITING, ticket.encode())

    def _came(self, ticket: str, task: asyncio.Task[Answer]) -> None:
        size = 0 if task.cancelled() else len(task.result().data)
        self._outcomes[ticket] = size
        self._outcome_bytes += size
        while len(self._outcomes) > 1 and (
            len(self._outcomes) > self._bounds.calls or self._outcome_bytes > self._bounds.bytes
        ):
            self._forget(next(iter(self._outcomes)))

    def _forget(self, ticket: str) -> None:
        self._tickets.pop(ticket, None)
        self._outcome_bytes -= self._outcomes.pop(ticket, 0)

    def slow(self) -> set[asyncio.Task[Answer]]:
        """Calls that have a ticket and are still under way."""
        return {task for task in self._tickets.values() if not task.done()}

    async def collect(self, ticket: str, wait_s: float) -> Answer:
        """Return a ticket's outcome, or the ticket again when it takes longer."""
        task = self._tickets.get(ticket)
        if task is None:
            return Answer(wire.CUT, b"")
        await settle([task], wait_s)
        if not task.done():
            return Answer(wire.WAITING, ticket.encode())
        self._forget(ticket)
        return task.result()


class _Stream:
    """A walker kept open between the pulls of one reader."""

    __slots__ = ("facts", "serial", "session", "walker")

    def __init__(self, session: Session, walker: Any, facts: Any) -> None:
        self.session, self.walker, self.facts = session, walker, facts
        self.serial = 0


def sessions_of(host: DurableObject) -> Sessions:
    """Find the Sessions capability that a host installed.

    Raises: RuntimeError when there is none.
    """
    for value in vars(host).values():
        if isinstance(value, Sessions):
            return value
    raise RuntimeError(
        f"{type(host).__name__} holds no Sessions capability: in its __init__, set"
        " self.sessions = Sessions() and install it with Lifecycle.install(self).use(...)"
    )


class Hosted:
    """A started activation, serving.

    Args:
        follow: record the change feed from the start, for those who followed before.
        on_lost: called once when the output gate broke; the caller ends the activation.
    """

    def __init__(
        self,
        activation: Activation[DurableObject],
        *,
        name: str,
        epoch: int,
        bounds: Bounds,
        client_limits: ClientLimits = NO_CLIENT_LIMITS,
        follow: bool = False,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.epoch = name, epoch
        self.host = activation.host
        self.storage = activation.storage
        self.remains = Remains(bounds)
        self._activation = activation
        self._sessions = sessions_of(self.host)
        self._sessions.limit_clients(client_limits)
        self._load = Load(bounds)
        self._on_lost = on_lost
        self._phase = Phase.SERVING
        self._freezes = 0
        self._moved = asyncio.Event()
        self._quiet = asyncio.Event()
        if activation.replica is not None:
            activation.replica.on_late(self._note_late)
        self._running: set[asyncio.Task[Answer]] = set()
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._clock = asyncio.get_running_loop().time
        self.started_at = self._used_at = self._clock()
        self._active_at_ms = _now_ms()
        self.storage.on_broken(self._lost)
        events = getattr(self.host.installed_lifecycle, "events", None)
        self._end_watch = reports.watch(self, events)
        if follow:
            self._record(complete=True)

    # ------------------------------------------------------------------------------- state

    @property
    def phase(self) -> Phase:
        """Whether it takes calls."""
        return self._phase

    @property
    def pending(self) -> int:
        """Calls under way."""
        return len(self._running)

    @property
    def idle_s(self) -> float:
        """Seconds since the last call ended; 0 while one is under way."""
        return 0.0 if self._running else self._clock() - self._used_at

    @property
    def last_active_at(self) -> int:
        """When the last call came, in ms since the epoch."""
        return self._active_at_ms

    @property
    def followed(self) -> bool:
        """Whether someone pulled the change feed lately."""
        log = self.remains.log
        return log is not None and self._clock() - log.polled_at < FOLLOWED_S

    def _enter(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self._phase], f"{self._phase} to {phase}"
        self._phase = phase
        self._moved.set()
        self._moved = asyncio.Event()

    def _lost(self, error: SessionsActorError) -> None:
        reports.gate_broken(self.name, self.epoch, error)
        if self._phase is not Phase.ENDED:
            self._enter(Phase.ENDED)
            self._on_lost()

    # ------------------------------------------------------------------------------- calls

    async def serve(self, epoch: int, parts: list[Part]) -> list[Answer]:
        """Carry out the parts of one frame; answers come in their order, within a moment."""
        refused = self._take(parts)
        admitted = [part for i, part in enumerate(parts) if i not in refused] if refused else parts
        if not admitted:
            return [refused[i] for i in range(len(parts))]
        refusal = await self._admit(epoch)
        if refusal is not None:
            for part in admitted:
                self._load.give_back(len(part.args))
            reports.refused(self.name, epoch, refusal, len(parts))
            return [Answer(wire.REFUSED, wire.dump_error(refusal))] * len(parts)
        self._active_at_ms = _now_ms()
        tasks, to_end = [], Countdown(len(admitted))
        for part in admitted:
            task = asyncio.create_task(self._run(part, to_end))
            self._running.add(task)
            task.add_done_callback(functools.partial(self._done, len(part.args)))
            tasks.append(task)
        await to_end.wait(PROMPT_S)
        answers = [task.result() if task.done() else self.remains.ticket(task) for task in tasks]
        if not refused:
            return answers
        given = iter(answers)
        return [refused.get(i) or next(given) for i in range(len(parts))]

    def _take(self, parts: list[Part]) -> dict[int, Answer]:
        """Count parts in; return, by place, the answers to those that are too many."""
        refused = {}
        for i, part in enumerate(parts):
            try:
                self._load.take(len(part.args))
            except OverloadedError as error:
                refused[i] = Answer(wire.ERROR, wire.dump_error(error))
                reports.refused(self.name, self.epoch, error, 1)
        return refused

    async def _admit(self, epoch: int) -> RoutingError | None:
        """Wait out a seal; return why the calls are refused, if they are."""
        if self._phase is Phase.SEALED and epoch == self.epoch:
            deadline = self._clock() + SEALED_WAIT_S
            while self._phase is Phase.SEALED:
                left = deadline - self._clock()
                if left <= 0:
                    return MigratingError(self.name, SEALED_WAIT_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._moved.wait(), left)
        if epoch != self.epoch or self._phase is Phase.ENDED:
            return StaleEpochError(epoch, self.epoch)
        return None

    def _done(self, size: int, task: asyncio.Task[Answer]) -> None:
        self._load.give_back(size)
        self._running.discard(task)
        self._used_at = self._clock()
        if not self._running:
            self._quiet.set()

    async def _run(self, part: Part, to_end: Countdown) -> Answer:
        began = perf_counter()
        try:
            if part.trace is None:
                answer = await self._outcome(part)
            else:
                answer = await self._traced(part, part.trace)
        finally:
            to_end.one()  # who waits goes on in the loop's next turn, when this has ended
        reports.call_ended(part.method, answer.tag, perf_counter() - began)
        return answer

    async def _traced(self, part: Part, parent: str) -> Answer:
        with tracing.actor_span(parent, self.name, part.session_id, part.method) as span:
            answer = await self._outcome(part)
            if answer.tag == wire.ERROR:
                span.failed(wire.load_error(answer.data))
            return answer

    async def _outcome(self, part: Part) -> Answer:
        freezes = self._freezes
        try:
            answer = Answer(wire.OK, await self._invoke(part))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                return Answer(wire.CUT, b"")  # by a seal
            # Something that the host's own code waited for was cancelled, not this call.
            answer = self._failed(part, freezes, RemoteCallError("CancelledError", "in its code"))
        except Exception as error:
            if self._phase is Phase.ENDED and isinstance(error, RuntimeError | StaleEpochError):
                return Answer(wire.CUT, b"")  # the file was closed under it, or is another's
            answer = self._failed(part, freezes, error)
        # One that outlived a seal may have run in part: another owner may not know of it.
        return answer if self._freezes == freezes else Answer(wire.CUT, b"")

    def _failed(self, part: Part, freezes: int, error: Exception) -> Answer:
        if self._freezes == freezes:
            reports.call_failed(self.name, self.epoch, part.method, error)
        return Answer(wire.ERROR, wire.dump_error(error))

    async def _invoke(self, part: Part) -> bytes:
        method = wire.METHODS.get(part.method)
        if method is None:
            raise AttributeError(f"a session has no method {part.method!r}")
        if part.method == wire.CALL:
            return wire.dump_result(method.result, await self._call(part.args))
        args, kwargs = wire.load_args(part.args)
        own = _OWN_METHODS.get(part.method)
        if own is not None:
            return wire.dump_result(method.result, await own(self))
        session = self._sessions.session(part.session_id)
        if part.method == wire.READ_WINDOW:
            return wire.dump_window(await self._window(session, WindowRequest(*args[0])))
        if part.again and part.method == "add_compaction":
            stored = await session.get_compactions()
            if stored and [getattr(stored[-1], name) for name in _OVERLAY_FIELDS] == args:
                return wire.dump_result(method.result, stored[-1])
        if part.method == "import_compactions":
            args[0] = [Compaction(*fields) for fields in args[0]]
        result = await getattr(session, part.method)(*args, **kwargs)
        return wire.dump_result(method.result, result, args[0] if args else None)

    async def _session_ids(self) -> list[str]:
        ids = self._sessions.engine.store.session_ids()
        await self.storage.durable()
        return ids

    async def _verify(self) -> list[str]:
        """List what is wrong with the file, as SQLite and as conversation. Cost: reads it all."""
        found = [*self.storage.check(), *self._sessions.engine.problems()]
        await self.storage.durable()
        return found

    async def _call(self, data: bytes) -> Any:
        """Call a public async method of the hosted class."""
        method, args, kwargs = wire.load_call(data)
        function = None if method.startswith("_") else getattr(self.host, method, None)
        if not inspect.iscoroutinefunction(function) or method in vars(DurableObject):
            raise AttributeError(
                f"{type(self.host).__name__} has no public async method {method!r}"
            )
        result = await function(*args, **kwargs)
        await self.storage.durable()
        return result

    # ----------------------------------------------------------------------------- streams

    async def _window(self, session: Session, request: WindowRequest) -> Window:
        """Read one window; a walker that is gone is opened again where the cursor stands."""
        max_bytes = min(request.max_bytes, WINDOW_BYTES_MAX)
        if request.kind == "rows":
            return await _rows(session, request, max_bytes)
        stream = self._streams.pop(request.stream, None)
        if stream is None or stream.serial != request.serial:
            stream = await self._open(session, request)
        texts: list[bytes] = []
        size, ended = 0, False
        while not ended and size < max_bytes and len(texts) < request.max_rows:
            rows = min(WINDOW_ROWS_MAX, request.max_rows - len(texts))
            found = await session.next_window(
                stream.walker, max_bytes=max_bytes - size, max_rows=rows
            )
            ended = not found
            texts += found
            size += sum(map(len, found))
        if ended:
            return Window(texts, None, stream.facts)
        stream.serial = request.serial + 1
        self._streams[request.stream] = stream
        while len(self._streams) > STREAMS_MAX:
            self._streams.popitem(last=False)
        return Window(texts, stream.walker.cursor(), stream.facts)

    async def _open(self, session: Session, request: WindowRequest) -> _Stream:
        if request.kind == "recent" and request.cursor is None:
            walker, truncated, total = await session.open_recent(**request.params)
            return _Stream(session, walker, [truncated, total])
        if request.kind not in ("history", "recent"):
            raise ValueError(f"no stream is called {request.kind!r}")
        options = {k: v for k, v in request.params.items() if k in ("leaf_id", "newest_first")}
        return _Stream(session, await session.open_history(**options, resume=request.cursor), None)

    # ------------------------------------------------------------------------- change feed

    async def _begin_following(self) -> int:
        return self.follow()

    def follow(self) -> int:
        """Record changes from now on, if that is not done yet; return the place to pull from."""
        log = self.remains.log or self._record(complete=False)
        log.polled_at = self._clock()
        return log.place

    def _record(self, *, complete: bool) -> ChangeLog:
        log = self.remains.log = ChangeLog(complete=complete)

        def record(event: ChangeEvent) -> None:
            log.record(wire.dump_event(event))

        self._sessions.subscribe(record)
        return log

    # ------------------------------------------------------------------------ seal and end

    async def seal(self, patience_s: float) -> None:
        """Take no more calls and wait for those under way; callers wait and see no error.

        Calls that take long (they wait for a model, say) are given `patience_s` before the seal,
        while others are served as ever; then they are cancelled with a retryable error.
        """
        deadline = self._clock() + patience_s
        while self._slow() and self._clock() < deadline and self._phase is Phase.SERVING:
            await asyncio.wait(self._slow(), timeout=deadline - self._clock())
        if self._phase is not Phase.SERVING:
            return
        self._enter(Phase.SEALED)
        await self._settle()

    def freeze(self) -> None:
        """Keep the file as it is from now on, until `unseal`; it is sealed.

        Raises: OutputGateBrokenError.
        """
        assert self._phase is not Phase.SERVING
        self.storage.freeze(MigratingError(self.name, SEALED_WAIT_S))
        self._freezes += 1

    def _note_late(self) -> None:
        """Tell followers of the feed to read again: nobody announced what is true by now."""
        if self.remains.log is not None:
            self.remains.log.skip()

    @property
    def replica(self) -> Replica | None:
        """The file's replica; None where there is none."""
        return self._activation.replica

    @property
    def replica_lag_s(self) -> float:
        """For how long the replica has lacked something; 0 when it lacks nothing."""
        return 0.0 if self.replica is None else self.replica.lag_s

    def unseal(self) -> None:
        """Take calls again."""
        if self._phase is Phase.SEALED:
            self.storage.thaw()
            self._enter(Phase.SERVING)

    async def yield_if_idle(self, *, idle_s: float, resident_s: float | None) -> bool:
        """Seal when nobody would notice.

        Args:
            idle_s: how long no call must have been under way.
            resident_s: others wait for the actor: an activation this old is sealed between two
                calls, unless one of them takes long. None: never.
        """
        if self._phase is not Phase.SERVING:
            return False
        idle = not self._running and self.idle_s >= idle_s
        turn = resident_s is not None and self._clock() - self.started_at >= resident_s
        if not idle and (not turn or self._slow()):
            return False
        self._enter(Phase.SEALED)
        await self._settle()
        return True

    async def end(self) -> Ended:
        """Dispose of the host and close the file; who waits finds the next owner.

        Raises: what disposal raised, OutputGateBrokenError; the file is closed all the same.
        """
        if self._phase is not Phase.ENDED:
            self._enter(Phase.ENDED)
        await self._settle()
        self._end_watch()
        self._streams.clear()
        file_bytes, replica = 0, self._activation.replica
        try:
            if self.storage.broken is None:
                file_bytes = self.storage.database_size
            await self._activation.close()
        finally:
            if self.remains.log is not None:
                self.remains.log.close()
        position = 0 if replica is None else replica.position
        behind = self._activation.behind
        return Ended(file_bytes, self._active_at_ms, self.followed, position, behind)

    def _slow(self) -> set[asyncio.Task[Answer]]:
        """Calls under way that were answered with a ticket."""
        return self._running & self.remains.slow()

    async def _settle(self) -> None:
        """Wait until no call is under way, cancelling those that take long."""
        deadline = self._clock() + CANCEL_WAIT_S
        while self._running and self._clock() < deadline:
            for task in self._slow():
                task.cancel()
            self._quiet.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), 2 * PROMPT_S)


_OVERLAY_FIELDS = ("summary", "from_message_id", "to_message_id")
_OWN_METHODS: Final = {
    wire.FOLLOW_CHANGES: Hosted._begin_following,
    wire.LIST_SESSIONS: Hosted._session_ids,
    wire.VERIFY: Hosted._verify,
}


async def _rows(session: Session, request: WindowRequest, max_bytes: int) -> Window:
    """Read stored rows in the order they were written; the cursor is the last one's seq."""
    place = request.params["after_seq"] if request.cursor is None else request.cursor
    texts: list[bytes] = []
    facts: list[list[Any]] = []
    size = 0
    while place is not None and size < max_bytes:
        rows, place = await session.rows_window(place, max_bytes - size)
        for row in rows:
            texts.append(row.text)
            facts.append([row.parent_id, row.created_at, row.seq])
            size += len(row.text)
    return Window(texts, place, facts)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
