"""A guided tour on a private cluster: what the product does, each step with what it measured.

It starts a cluster of its own with its data in a temporary folder, and leaves nothing behind. Every
number it prints comes from this run.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .demo_talk import PICTURE, REST, SECOND_ANSWER, TALK
from .render import ConversationTree, TreeRow, clean, count, preview, size

if TYPE_CHECKING:
    from sessions_actor.handle import ConversationHandle, SessionHandle
    from sessions_actor.messages import SessionMessage

    from .client import Client
    from .models import MigrationReport

NAME = "ada/saturn"
OBJECT_CLASS = "router.demo_talk:DemoConversation"
_WRITER_PAUSE_S = 0.01
_WRITER_LEAD = 20


@dataclass(slots=True)
class Measured:
    """What the tour measured, by name; units stand at the end of the names."""

    facts: dict[str, Any] = field(default_factory=dict)

    def note(self, **facts: Any) -> None:
        """Keep numbers for the end (and for `--json`)."""
        self.facts |= facts


class Tour:
    """Steps that people read while they run.

    Args: `console` shows them; None runs in silence, for programs.
    """

    def __init__(self, console: Console | None) -> None:
        self._console = console
        self._steps = 0
        self.measured = Measured()

    def step(self, title: str, explanation: str) -> None:
        """Begin a step."""
        self._steps += 1
        self._print(Text(f"\n{self._steps}  {title}", style="bold cyan"))
        self.show(Text(explanation, style="dim"))

    def say(self, text: str, **facts: Any) -> None:
        """Print a result, and keep its numbers."""
        self.measured.note(**facts)
        line = Table.grid(padding=(0, 1))
        line.add_row(Text("→", style="green"), Text(text))
        self.show(line)

    def show(self, thing: RenderableType) -> None:
        """Print something larger."""
        self._print(Padding(thing, (0, 3, 0, 3)))

    def waiting(self) -> contextlib.AbstractContextManager[object]:
        """Show that something takes its time, on a terminal."""
        if self._console is None or not self._console.is_terminal:
            return contextlib.nullcontext()
        return self._console.status("[dim]one moment")

    def _print(self, *things: RenderableType) -> None:
        if self._console is not None:
            for thing in things:
                self._console.print(thing, markup=False, highlight=False)


async def run_demo(console: Console | None, *, namespace: str = "sessions-demo") -> Measured:
    """Run the whole tour. Raises: AssertionError when the product breaks a promise it shows."""
    from .client import connect
    from .settings import Settings

    tour = Tour(console)
    began = time.perf_counter()
    with _private_folder() as folder:
        settings = Settings(storage_root=folder / "data", object_class=OBJECT_CLASS)
        tour.step(
            "A cluster of your own",
            "Ray starts on this machine, and with it a router: it knows which conversation lives "
            "where. Data goes to a temporary folder; at the end everything is gone.",
        )
        async with contextlib.AsyncExitStack() as stack:
            with tour.waiting():
                connection = connect("local", namespace=namespace, settings=settings)
                client = await stack.enter_async_context(connection)
                nodes = await client.nodes()
            seconds = time.perf_counter() - began
            tour.say(f"{count(len(nodes), 'node')} up in {seconds:.1f} s", start_s=seconds)
            await _write(tour, client)
            session = client.get(NAME).session()
            await _read(tour, session)
            await _branch(tour, session)
            await _search(tour, session)
            await _compact(tour, session)
            await _draw(tour, session)
            await _migrate(tour, client)
            await _crash(tour, client)
            await _verify(tour, client)
            await _sleep_and_wake(tour, client)
        total = time.perf_counter() - began
        tour.measured.note(total_s=total)
        tour.step("Done", f"All of it took {total:.1f} s, and the folder and the cluster are gone.")
        us = _typed()
        tour.say(f"your own:  {us} up,  and in another terminal  {us} append alice 'Hello'")
        tour.say("from Python:  from router import connect    (see the README)")
    return tour.measured


def _typed() -> str:
    """Return how our command can be typed here: by its path where it is not on PATH."""
    if shutil.which("sessions-actor") is None and Path(sys.argv[0]).name == "sessions-actor":
        return os.path.relpath(sys.argv[0])
    return "sessions-actor"


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Give a folder for the data and for Ray's own files, and take it away at the end."""
    # Short, because Ray puts sockets there whose paths may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="sa-demo-", ignore_cleanup_errors=True) as folder:
        before = os.environ.get("RAY_TMPDIR")
        os.environ["RAY_TMPDIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["RAY_TMPDIR"]
            else:
                os.environ["RAY_TMPDIR"] = before


async def _write(tour: Tour, client: "Client") -> None:
    tour.step(
        "One conversation, one actor, one file",
        f"The name {NAME!r} is all it takes: the first call gives the conversation an actor and an "
        "SQLite file of its own. A message is acknowledged only once it is safe on the disk.",
    )
    session = client.get(NAME).session()
    took = []
    for message in TALK:
        began = time.perf_counter()
        result = await session.append_message(message)
        took.append((time.perf_counter() - began) * 1000)
        assert result.inserted
    tour.say(
        f"{count(len(TALK), 'message')} appended: the first in {took[0]:.0f} ms (actor, file and"
        f" all), the others in {statistics.median(took[1:]):.1f} ms each (median)",
        first_append_ms=took[0],
        append_median_ms=statistics.median(took[1:]),
    )
    again = await session.append_message(TALK[0])
    assert not again.inserted
    tour.say("sending the first one again wrote nothing: ids make every retry harmless")
    info = await client.info(NAME)
    tour.say(f"it lives in process {info.pid}, its file has {size(info.file_bytes)}")


async def _read(tour: Tour, session: "SessionHandle") -> None:
    tour.step(
        "Reading is streaming",
        "History comes in bounded windows, never as one lump; read backwards, the newest message "
        "comes first and nothing older is touched. Pictures are stored apart and put back exactly.",
    )
    began = time.perf_counter()
    history = [message async for message in session.history()]
    tour.say(
        f"{count(len(history), 'message')} streamed from the beginning in"
        f" {(time.perf_counter() - began) * 1000:.1f} ms, equal to what was appended",
        stream_ms=(time.perf_counter() - began) * 1000,
    )
    assert history == TALK
    began = time.perf_counter()
    async for newest in session.history(newest_first=True):
        took = (time.perf_counter() - began) * 1000
        tour.say(f"newest first: {clean(preview(newest), 60)!r} after {took:.1f} ms")
        tour.measured.note(newest_ms=took)
        break
    stats = {stat.id: stat for stat in await session.get_history_row_stats()}
    tour.say(f"the picture's {size(len(PICTURE))} count for u3: {size(stats['u3'].bytes)} in all")


async def _branch(tour: Tour, session: "SessionHandle") -> None:
    tour.step(
        "Every answer may be asked for again",
        "That explanation was not for a nine-year-old. A second answer to the same question is a "
        "branch; the first one stays, and each branch reads as a conversation of its own.",
    )
    await session.append_message(SECOND_ANSWER, parent_id="u4")
    branches = await session.get_branches("u4")
    assert [one["id"] for one in branches] == ["a4", "a4b"]
    for message in REST:
        await session.append_message(message)
    first = await session.get_history(leaf_id="a4")
    active = await session.get_history()
    assert first[-1]["id"] == "a4"
    tour.say(
        f"{count(len(branches), 'branch', 'branches')} after 'Explain to me why…':"
        f" {len(first)} messages along the first, {len(active)} along the active one",
        branches=len(branches),
    )


async def _search(tour: Tour, session: "SessionHandle") -> None:
    tour.step(
        "Search",
        "The first search builds a full-text index inside the file; from then on every write keeps "
        "it in step. A conversation that is never searched never pays for it.",
    )
    took, found = [], []
    for query in ("rings", "snowballs"):
        began = time.perf_counter()
        found = await session.search(query)
        took.append((time.perf_counter() - began) * 1000)
        hits = ", ".join(result.id for result in found)
        tour.say(f"{query!r}: found in {hits} after {took[-1]:.1f} ms")
    assert "a4b" in [result.id for result in found]
    tour.measured.note(first_search_ms=took[0], search_ms=took[1])


async def _compact(tour: Tour, session: "SessionHandle") -> None:
    tour.step(
        "Compaction",
        "Long conversations outgrow a model's window. Compaction lays a summary over the middle: "
        "reads show it in place of the messages, which all stay. The summariser here picks "
        "sentences; yours calls a model.",
    )
    before = await session.get_history()
    began = time.perf_counter()
    result = await session.compact()
    took = (time.perf_counter() - began) * 1000
    assert result is not None
    after = await session.get_history()
    tour.say(
        f"{len(before)} messages read as {len(after)} after {took:.0f} ms:"
        f" {result.from_message_id} to {result.to_message_id} are now",
        messages_before=len(before),
        messages_after=len(after),
        compact_ms=took,
    )
    tour.show(Text(f"  “{clean(result.summary, 300)}”", style="italic"))


async def _draw(tour: Tour, session: "SessionHandle") -> None:
    tour.step(
        "The whole tree",
        "This is what `sessions-actor show` prints: the active path straight down, branches where "
        "they leave it, the summary above what it stands for.",
    )
    rows = [
        TreeRow(row.message["id"], row.parent_id, row.message["role"], preview(row.message), 0)
        async for row in session.history_rows()
    ]
    tour.show(ConversationTree(rows, await session.get_compactions()).render(NAME))


class _Writer:
    """Someone who goes on writing, whatever happens to the conversation."""

    def __init__(self, conversation: "ConversationHandle") -> None:
        self._session = conversation.session("guestbook")
        self._run = uuid.uuid4().hex[:6]
        self.sent: list[str] = []
        self.slowest_ms = 0.0
        self.ahead = asyncio.Event()
        self._stop = asyncio.Event()
        self._goal: int | None = None

    async def run(self) -> None:
        """Append until told to stop; an error would end the demo."""
        while not self._stop.is_set():
            number = len(self.sent) + 1
            text = f"Guest {number} looked through the telescope."
            message: SessionMessage = {
                "id": f"guest-{self._run}-{number}",
                "role": "user",
                "parts": [{"type": "text", "text": text}],
            }
            began = time.perf_counter()
            await self._session.append_message(message)
            self.slowest_ms = max(self.slowest_ms, (time.perf_counter() - began) * 1000)
            self.sent.append(message["id"])
            if number >= _WRITER_LEAD:
                self.ahead.set()
            if number == self._goal:
                self._stop.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _WRITER_PAUSE_S)

    async def finish(self) -> list[str]:
        """Write some more, stop, and return what is stored."""
        self._goal = len(self.sent) + _WRITER_LEAD
        await self._stop.wait()
        return [message["id"] async for message in self._session.history()]


@contextlib.asynccontextmanager
async def _writing(conversation: "ConversationHandle") -> AsyncIterator[_Writer]:
    writer = _Writer(conversation)
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.run())
        await writer.ahead.wait()
        yield writer


async def _migrate(tour: Tour, client: "Client") -> None:
    tour.step(
        "Moving while someone writes",
        "A migration copies everything to another actor and another file, compares digests of "
        "every table, and only then switches; a conversation of some size serves meanwhile, a "
        "small one is moved between two calls. A guest book (a second session of the same "
        "conversation) is written to all the while.",
    )
    before = await client.info(NAME)
    async with _writing(client.get(NAME)) as writer:
        report: MigrationReport = await client.migrate(NAME)
        stored = await writer.finish()
    after = await client.info(NAME)
    assert stored == writer.sent
    assert len(set(stored)) == len(stored)
    assert (before.pid, before.epoch) != (after.pid, after.epoch)
    rows = sum(digest.rows for digest in report.tables.values())
    tour.say(
        f"{count(rows, 'row')} in {count(len(report.tables), 'table')}, {size(report.bytes)}, from"
        f" process {before.pid} to {after.pid} in {report.seconds * 1000:.0f} ms; every digest"
        " equal",
        migrated_rows=rows,
        migrated_bytes=report.bytes,
        migration_ms=report.seconds * 1000,
    )
    tour.say(
        f"the writer made {count(len(writer.sent), 'entry', 'entries')} meanwhile: no error, none"
        f" lost, none twice; the slowest took {writer.slowest_ms:.0f} ms",
        writer_messages=len(writer.sent),
        writer_slowest_ms=writer.slowest_ms,
    )


async def _crash(tour: Tour, client: "Client") -> None:
    tour.step(
        "Pulling the plug",
        "The guest book is written to again, and the conversation's process is killed with SIGKILL "
        "in the middle of it. The router finds it gone and starts another one on the same file.",
    )
    before = await client.info(NAME)
    assert before.pid is not None
    async with _writing(client.get(NAME)) as writer:
        os.kill(before.pid, signal.SIGKILL)
        stored = await writer.finish()
    after = await client.info(NAME)
    assert set(writer.sent) <= set(stored)
    assert len(set(stored)) == len(stored)
    tour.say(
        f"process {before.pid} is dead, {after.pid} goes on; the writer saw no error, its slowest"
        f" entry took {writer.slowest_ms:.0f} ms, and every acknowledged one is there",
        crash_slowest_ms=writer.slowest_ms,
    )


async def _verify(tour: Tour, client: "Client") -> None:
    tour.step(
        "Trust, but verify",
        "SQLite's own integrity check, parents, continuation rows, attachment digests and the "
        "search index, all compared with one another inside the conversation's actor.",
    )
    began = time.perf_counter()
    problems = await client.verify(NAME)
    took = (time.perf_counter() - began) * 1000
    assert not problems, problems
    tour.say(f"no fault found in {took:.0f} ms", verify_ms=took)


async def _sleep_and_wake(tour: Tour, client: "Client") -> None:
    tour.step(
        "Sleeping costs nothing but the file",
        "An idle conversation hibernates and gives its actor away; the next call wakes it.",
    )
    await client.hibernate(NAME)
    asleep = await client.info(NAME)
    began = time.perf_counter()
    recent = await client.get(NAME).session().get_recent_history(2000)
    took = (time.perf_counter() - began) * 1000
    tour.say(
        f"{asleep.state}: {size(asleep.file_bytes)} on the disk; woken, with its last"
        f" {count(len(recent.messages), 'message')}, in {took:.0f} ms",
        wake_ms=took,
    )
