"""Every Session operation, drawn at random, against the plain model.

One machine drives one session and reopens the file at random; one drives two sessions of one
object at the same time. After every step results, change events and, once in a while, the whole
state are compared. ``--long`` goes on for at least 200,000 steps.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from sessions_actor import DurableObject, Lifecycle, Sessions, open_object
from sessions_actor.records import ChangeEvent
from tests.property import drawing, model, operations
from tests.property.operations import Operation, perform, predict, resolve, same

LONG_STEPS = 200_000
CHECK_EVERY = 16


class Conversation(DurableObject):
    """The object under test."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.sessions = Sessions(reserved_metadata_keys=drawing.RESERVED)
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.events: list[ChangeEvent] = []
        self.sessions.subscribe(self.events.append)


class Machine(RuleBasedStateMachine):
    """What both machines share: an open file, its model, and how to compare the two."""

    steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(prefix="state-machine-")
        self.model = model.Conversation(drawing.RESERVED)
        self.since_check = 0
        self.runner.run(self.open())

    async def open(self) -> None:
        """Open the file."""
        self.stack = AsyncExitStack()
        path = Path(self.folder.name) / "conversation.sqlite"
        self.object = await self.stack.enter_async_context(
            open_object(Conversation, name="state machine", path=path)
        )

    async def reopen(self) -> None:
        """Close the file and open it again: nothing may depend on memory."""
        await self.stack.aclose()
        await self.open()

    async def step(self, session_id: str, drawn: Operation) -> operations.Events:
        """Run an operation on both and compare; returns the events the model predicts."""
        Machine.steps += 1
        session = self.model.session(session_id)
        real = self.object.sessions.session(session_id)
        operation = Operation(drawn.name, resolve(drawn.args, session))
        got = await perform(real, operation)
        told = await real.get_compactions()
        want, events = predict(session, session_id, operation, told)
        if operation.name == "rows" and got[0] == "ok":
            operations.learn_times(session, got[1])
            want, _ = predict(session, session_id, operation, told)
        tree = [(row.id, row.parent) for row in session.rows]
        assert got[0] == want[0], (operation, got, want, tree)
        assert same(got[1], want[1]), (operation, got, want, tree)
        return events

    async def check(self, session_id: str) -> None:
        """Compare everything a session can tell."""
        session = self.model.session(session_id)
        tips = [None, *(row.id for row in session.rows)]
        for leaf in tips:
            for newest_first in (False, True):
                await self.step(session_id, Operation("history", (leaf, newest_first, None)))
        for name in ("rows", "stats", "compactions", "latest_leaf"):
            args = {"rows": (0,), "stats": (None,)}.get(name, ())
            await self.step(session_id, Operation(name, args))

    async def check_file(self) -> None:
        """Compare payloads and references, and let the engine check itself."""
        sql = self.object.storage.sql
        stored = {row["hash"] for row in sql.exec(
            "SELECT hash FROM cf_agents_session_attachment_meta"
        )}  # fmt: skip
        assert stored == set(self.model.payloads())
        wanting = self.model.wanting_parents()
        problems = self.object.sessions.engine.problems()
        assert len(problems) == wanting, problems
        assert all("is not in this session" in problem for problem in problems), problems

    def teardown(self) -> None:
        """Check the file as a whole, and let it go."""
        try:
            self.runner.run(self.check_file())
            assert self.object.storage.check() == []
        finally:
            self.runner.run(self.stack.aclose())
            self.runner.close()
            self.folder.cleanup()


class OneSession(Machine):
    """One session, one call after the other."""

    def do(self, operation: Operation) -> None:
        """Run one operation and compare its result and its events."""
        events = self.runner.run(self.step("", operation))
        got = operations.events_json(self.object.events)
        assert same(got, events), (operation, got, events)
        self.since_check += 1

    @rule(operation=drawing.appends)
    def append(self, operation: Operation) -> None:
        """Append."""
        self.do(operation)

    @rule(operation=drawing.updates)
    def update(self, operation: Operation) -> None:
        """Update or upsert."""
        self.do(operation)

    @rule(operation=drawing.imports)
    def import_(self, operation: Operation) -> None:
        """Import."""
        self.do(operation)

    @rule(operation=drawing.deletions)
    def delete(self, operation: Operation) -> None:
        """Delete."""
        self.do(operation)

    @rule(operation=drawing.compactions)
    def overlay(self, operation: Operation) -> None:
        """Add an overlay, or compact."""
        self.do(operation)

    @rule(operation=drawing.reads)
    def read(self, operation: Operation) -> None:
        """Read, one way or another."""
        self.do(operation)

    @rule(operation=drawing.reads)
    def read_more(self, operation: Operation) -> None:
        """Read: twice as often as the rest."""
        self.do(operation)

    @rule(really=st.integers(0, 4))
    def clear(self, really: int) -> None:
        """Clear, seldom."""
        if really == 0:
            self.do(Operation("clear"))

    @rule()
    def close_and_open(self) -> None:
        """Close the file and open it again."""
        self.runner.run(self.reopen())

    @invariant()
    def agrees(self) -> None:
        """Compare the whole state once in a while."""
        if self.since_check >= CHECK_EVERY:
            self.since_check = 0
            self.runner.run(self.check(""))
            self.runner.run(self.check_file())


class TwoSessions(Machine):
    """Two sessions of one object, each with calls of its own, at the same time."""

    names: ClassVar = ("", "drafts")

    @rule(
        first=st.lists(drawing.anything, max_size=4), second=st.lists(drawing.anything, max_size=4)
    )
    def both(self, first: list[Operation], second: list[Operation]) -> None:
        """Run some operations on each, side by side."""
        self.runner.run(self._both(first, second))
        self.since_check += 1

    async def _both(self, *lists: list[Operation]) -> None:
        tasks = [self._one(name, ops) for name, ops in zip(self.names, lists, strict=True)]
        wanted = await asyncio.gather(*tasks)
        events = operations.events_json(self.object.events)
        for name, want in zip(self.names, wanted, strict=True):
            got = [event for event in events if event["sessionId"] == name]
            assert same(got, want), (name, lists, got, want)

    async def _one(self, name: str, drawn: list[Operation]) -> operations.Events:
        events: operations.Events = []
        for operation in drawn:
            events += await self.step(name, operation)
        return events

    @rule()
    def close_and_open(self) -> None:
        """Close the file and open it again."""
        self.runner.run(self.reopen())

    @rule(which=st.sampled_from(names), really=st.integers(0, 4))
    def clear(self, which: str, really: int) -> None:
        """Clear one, seldom; the other keeps what it has."""
        if really == 0:
            self.both(*([Operation("clear")] if name == which else [] for name in self.names))

    @invariant()
    def agrees(self) -> None:
        """Compare the whole state of both once in a while."""
        if self.since_check >= CHECK_EVERY // 2:
            self.since_check = 0
            for name in self.names:
                self.runner.run(self.check(name))
            self.runner.run(self.check_file())


@contextmanager
def counted() -> Iterator[None]:
    """Count the steps of a run from 0."""
    Machine.steps = 0
    yield
    print(f"{Machine.steps} steps")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("machine", [OneSession, TwoSessions])
def test_session_agrees_with_the_model(machine: type[Machine], long_run: bool) -> None:
    options = settings(
        max_examples=100 if long_run else 15,
        stateful_step_count=200 if long_run else 30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    with counted():
        run_state_machine_as_test(machine, settings=options)
        while long_run and Machine.steps < LONG_STEPS // 2:
            run_state_machine_as_test(machine, settings=options)
