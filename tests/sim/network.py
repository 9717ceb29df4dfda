"""Calls between simulated processes, with what Ray and a network may do to them.

- A call and its reply each take a while, now and then much longer, so calls overtake each other.
- A call whose connection breaks fails with ActorUnavailableError at the caller: it may have been
  carried out (at most once), be carried out later, or never. One to a dead actor fails with
  ActorDiedError. Calls to the router are made again by Ray itself, so they may run twice.
- Machines on two sides of a partition do not hear each other; what was under way waits for the
  partition to heal or fails after a while.
- Everything that crosses is pickled, so nothing is shared.

Traps: a test's faults may ask to be told when a method is called, carried out or answered.
"""

import asyncio
import inspect
import pickle
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from ray.exceptions import ActorDiedError, ActorUnavailableError, TaskCancelledError

from .loop import SimFuture
from .machines import Node, Process

if TYPE_CHECKING:
    from .cluster import Actor

# Seconds on the way: usually, and at worst.
HOP_S: Final = 0.001
SLOW_HOP_S: Final = 0.4
# How long it takes until a caller learns that an actor died, or that a connection broke.
DEATH_NEWS_S: Final = 0.3
SILENCE_S: Final = (1.0, 5.0)

Stage = str
"""When a trap springs: "called", "done" (carried out, not answered yet) or "answered"."""


def _unavailable() -> Exception:
    return ActorUnavailableError("the connection broke", None)


class Call:
    """One call from its caller to its caller's future.

    `dropped`: it will not be carried out any more if it was not yet. `mute`: its answer is lost.
    """

    __slots__ = (
        "actor", "caller", "data", "delivered", "dropped", "method", "mute", "number", "reply",
        "runs", "target", "task",
    )  # fmt: skip

    def __init__(
        self, number: int, caller: Process, actor: "Actor", method: str, reply: SimFuture
    ) -> None:
        self.number, self.caller, self.actor, self.method = number, caller, actor, method
        self.reply = reply
        self.data = b""
        self.target: Process | None = None
        self.task: asyncio.Task[Any] | None = None
        self.delivered = self.dropped = self.mute = False
        self.runs = 1


class Network:
    """Carries calls. `loss` and `slow` are chances for each message."""

    def __init__(self, rng: Random, trace: Callable[..., None]) -> None:
        self._rng, self._trace = rng, trace
        self.slow = 0.0
        self.loss = 0.0
        self.twice = 0.0
        self.on_answer: Callable[[Process, Call, Any], None] = lambda *_: None
        self.traps: dict[tuple[str, Stage], Callable[[Call], None]] = {}
        self._sides: dict[Node, int] = {}
        self._open: dict[int, Call] = {}
        self._held: list[tuple[Node, Node, Callable[[], None]]] = []
        self._count = 0
        self.calls = 0

    # --------------------------------------------------------------------------- partitions

    def part(self, sides: dict[Node, int]) -> None:
        """Cut machines off from those on another side; a machine not named is on side 0."""
        self._sides = sides
        for call in list(self._open.values()):
            self._watch_silence(call)

    def heal(self) -> None:
        """Let everyone hear everyone again; what waited goes on."""
        self._sides = {}
        held, self._held = self._held, []
        for _, _, go_on in held:
            go_on()

    def reaches(self, one: Node, other: Node) -> bool:
        """Say whether two machines hear each other."""
        sides = self._sides
        return not sides or sides.get(one, 0) == sides.get(other, 0)

    def when_reachable(self, one: Node, other: Node, go_on: Callable[[], None]) -> None:
        """Call back at once, or when a partition between two machines is over."""
        if self.reaches(one, other):
            go_on()
        else:
            self._held.append((one, other, go_on))

    # -------------------------------------------------------------------------------- calls

    def call(
        self, caller: Process, actor: "Actor", method: str, args: Any, kwargs: Any
    ) -> SimFuture:
        """Make a call; arguments that are results under way are waited for first."""
        self._count += 1
        self.calls += 1
        call = Call(self._count, caller, actor, method, SimFuture(loop=caller.loop))
        self._open[call.number] = call
        waited = [arg for arg in args if isinstance(arg, asyncio.Future)]
        if not waited:
            call.data = pickle.dumps((args, kwargs), 5)
            self._send(call)
            return call.reply

        def ready(_: object) -> None:
            if call.data or not all(one.done() for one in waited):
                return
            failed = next((one.exception() for one in waited if one.exception()), None)
            if failed is not None:
                self._settle(call, False, failed)
                return
            found = tuple(a.result() if isinstance(a, asyncio.Future) else a for a in args)
            call.data = pickle.dumps((found, kwargs), 5)
            self._send(call)

        for one in waited:
            one.add_done_callback(ready)
        return call.reply

    def _delay(self) -> float:
        random = self._rng.random
        return random() * (SLOW_HOP_S if random() < self.slow else HOP_S)

    def _send(self, call: Call) -> None:
        if call.dropped or call.reply.done():
            return
        self._spring(call, "called")
        actor, here = call.actor, call.caller.node
        if actor.is_gone_for(here):
            self.fail(call, ActorDiedError())
            return
        target = actor.process
        if target is None:
            actor.waiting.append(call)  # it is being started
            return
        call.target = target
        if not self.reaches(here, target.node):
            self._watch_silence(call)
            self.when_reachable(here, target.node, lambda: self._send(call))
            return
        if self._rng.random() < self.loss:
            self._break(call)
            if call.dropped:
                return
        delay = self._delay()
        target.loop.post(delay, self._deliver, call, target)
        if actor.repeats and self._rng.random() < self.twice:
            # The connection broke and Ray made the call again, while the first is carried out.
            call.runs = 2
            target.loop.post(delay + self._delay(), self._deliver, call, target)

    def _break(self, call: Call) -> None:
        """Break the connection under a call: its answer is lost, or the call as well."""
        if call.actor.repeats:
            return  # Ray connects again and makes the call again
        call.mute = True
        call.dropped = not call.delivered and self._rng.random() < 0.5
        call.caller.loop.post(self._rng.random(), self._settle, call, False, _unavailable())

    def _deliver(self, call: Call, here: Process) -> None:
        """In the callee's loop: begin to carry a call out."""
        if not call.dropped:
            call.delivered = True
            call.runs -= 1
            call.task = here.loop.create_task(self._run(call, here, call.runs == 0))

    async def _run(self, call: Call, here: Process, tells: bool) -> None:
        try:
            args, kwargs = pickle.loads(call.data)
            result = getattr(here.instance, call.method)(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = await result
            well = True
        except asyncio.CancelledError:
            well, result = False, TaskCancelledError()
        except Exception as error:
            well, result = False, error
        if tells:
            if well:
                self.on_answer(here, call, result)
            self._answer(call, here, well, result)

    def _answer(self, call: Call, here: Process, well: bool, value: Any) -> None:
        self._spring(call, "done")
        if not here.alive:
            return
        self._trace("done", call.method, here, well, value)
        try:
            value = pickle.loads(pickle.dumps(value, 5))
        except Exception:
            assert not well, f"{call.method} returned what does not pickle: {value!r}"

        def go_on() -> None:
            call.caller.loop.post(self._delay(), self._settle, call, well, value, True)

        self.when_reachable(here.node, call.caller.node, go_on)
        self._spring(call, "answered")

    def _settle(self, call: Call, well: bool, value: Any, arrived: bool = False) -> None:
        """In the caller's loop: give it what came back, or the news that nothing will."""
        if arrived and call.mute:
            return
        self._open.pop(call.number, None)
        if call.reply.done():
            return
        if well:
            call.reply.set_result(value)
        else:
            call.reply.set_exception(value)

    def fail(self, call: Call, error: Exception) -> None:
        """Have a caller learn, in a while, that its call failed."""
        call.mute = True
        news = self._rng.random() * DEATH_NEWS_S
        call.caller.loop.post(news, self._settle, call, False, error)

    def _watch_silence(self, call: Call) -> None:
        """Break the connection of a call that a partition silences for long."""
        if call.actor.repeats:
            return

        def look() -> None:
            if call.reply.done() or call.target is None:
                return
            if not self.reaches(call.caller.node, call.target.node):
                call.mute = True
                call.dropped = not call.delivered and self._rng.random() < 0.7
                self._settle(call, False, _unavailable())

        call.caller.loop.post(self._rng.uniform(*SILENCE_S), look)

    def under_way(self) -> list[Call]:
        """Return the calls whose callers wait."""
        return [call for call in self._open.values() if not call.reply.done()]

    # ------------------------------------------------------------------------------- deaths

    def process_died(self, process: Process) -> None:
        """See to the calls that were with a process that died."""
        for call in list(self._open.values()):
            if call.target is not process or call.reply.done():
                continue
            if call.actor.repeats and self._rng.random() < 0.85:
                call.target, call.delivered, call.runs = None, False, 1
                call.actor.waiting.append(call)  # Ray makes it again
            elif self._rng.random() < 0.8:
                self.fail(call, ActorDiedError())
            else:
                self.fail(call, _unavailable())

    def actor_gone(self, actor: "Actor") -> None:
        """Tell callers who hear the head that it counts an actor as dead."""
        for call in [*self._open.values()]:
            if call.actor is actor and actor.is_gone_for(call.caller.node):
                self.fail(call, ActorDiedError())

    def resume(self, actor: "Actor") -> None:
        """Send what waited for an actor to start."""
        waiting, actor.waiting = actor.waiting, []
        for call in waiting:
            if not call.reply.done():
                self._send(call)

    def _spring(self, call: Call, stage: Stage) -> None:
        if self.traps:
            trap = self.traps.pop((call.method, stage), None)
            if trap is not None:
                trap(call)
