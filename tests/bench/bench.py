"""What the lines share: sizes, folders, one private deployment, bare actors, the reference.

Everything is started when a line first asks for it, on a cluster of our own, and ended with the
run. Nothing here joins a cluster that someone else runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from sessions_actor import open_object
from sessions_actor.conversation import Conversation
from sessions_actor.names import file_stem
from tests.reference.client import ReferenceClient
from tests.reference.server import ReferenceServer, missing_tool

from . import data
from .bare import BareActor
from .measure import REPORT, Goal, Pair, Result, counts_cpu

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "bench"
ACTORS_MAX = 64

Line = Callable[["Bench"], Awaitable[None]]
LINES: dict[str, Line] = {}
"""Every line of the table by name, in its order."""


def line(name: str) -> Callable[[Line], Line]:
    """Register a line of the table."""

    def register(work: Line) -> Line:
        LINES[name] = work
        return work

    return register


class SkipError(Exception):
    """Why a line, or a part of it, cannot be measured here."""


class Bench:
    """One run.

    Args:
        small: a few seconds per line, to see that it works.
        repeat: rounds of each measurement.
        reference: folder in which the reference is, or may be, installed.
        note: is told why something is skipped.
    """

    def __init__(
        self, *, small: bool, repeat: int, reference: Path, note: Callable[[str], object]
    ) -> None:
        self.small, self.repeat = small, repeat
        self.results: list[Result] = []
        self._reference_folder, self._note = reference, note
        self._stack = AsyncExitStack()
        self._cluster = AsyncExitStack()
        self._client: Any = None
        self._bare: list[Any] = []
        self._reference: ReferenceClient | None = None
        self._built: dict[tuple[int, int, data.NameOf], Path] = {}
        self.folder = Path()

    async def __aenter__(self) -> Bench:
        found = tempfile.TemporaryDirectory(prefix="sessions-bench-", ignore_cleanup_errors=True)
        self.folder = Path(self._stack.enter_context(found))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.leave_cluster()
        await self._stack.aclose()

    # ------------------------------------------------------------------------------ results

    def size(self, full: int, small: int | None = None) -> int:
        """Choose a number by the run's size; small is a fiftieth unless it is given."""
        if not self.small:
            return full
        return max(1, full // 50) if small is None else small

    def add(self, name: str, pair: Pair, unit: str, goal: Goal = REPORT) -> None:
        """Note a result."""
        self.results.append(Result(name, pair.ours, pair.floor, unit, goal))

    def report(self, name: str, ours: float, unit: str, goal: Goal = REPORT) -> None:
        """Note a figure that has no floor."""
        self.results.append(Result(name, ours, None, unit, goal))

    def skip(self, what: str, why: str) -> None:
        """Say that something is not measured."""
        self._note(f"{what}: skipped, {why}")

    # -------------------------------------------------------------------------------- files

    def built(
        self,
        count: int,
        message_bytes: int = data.MESSAGE_BYTES,
        name: data.NameOf = data.rising_id,
    ) -> Path:
        """Return a file with a chain of messages, made at its first use; copy it to change it."""
        key = count, message_bytes, name
        if key not in self._built:
            self._built[key] = path = self.folder / f"built-{len(self._built)}.sqlite"
            data.build(path, count, message_bytes=message_bytes, name=name)
        return self._built[key]

    def new_file(self) -> Path:
        """Name a file that is not there yet."""
        return Path(tempfile.mkdtemp(dir=self.folder)) / "conversation.sqlite"

    @asynccontextmanager
    async def opened(self, path: Path) -> AsyncIterator[Any]:
        """Open a conversation in this process; gives its session."""
        async with open_object(Conversation, name="bench", path=path) as host:
            yield host.session

    # ------------------------------------------------------------------------------ cluster

    async def client(self) -> Any:
        """Return the deployment's client, starting cluster and deployment at the first use."""
        if self._client is None:
            import ray

            from router import Settings, connect

            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            os.environ["PYTHONPATH"] = path
            settings = Settings(
                storage_root=self.folder / "data", idle_timeout_s=86_400, max_active=ACTORS_MAX
            )
            entering = connect("local", namespace=NAMESPACE, settings=settings)
            self._client = await self._cluster.enter_async_context(entering)
            assert ray.is_initialized()
        return self._client

    async def leave_cluster(self) -> None:
        """End the deployment and its cluster; the next use starts another."""
        self._client = None
        self._bare.clear()
        await self._cluster.aclose()

    async def bare(self, count: int = 1) -> list[Any]:
        """Return bare actors, started and called once."""
        import ray

        await self.client()
        actor: Any = ray.remote(num_cpus=0.01)(BareActor)
        while len(self._bare) < count:
            self._bare.append(actor.remote())
            await self._bare[-1].call.remote(b"")
        return self._bare[:count]

    async def holding(self, name: str, path: Path | None) -> Any:
        """Return the handle of a conversation that holds a file's content, awake.

        Args: the file is moved; None, or one that is not there, leaves the conversation empty.
        """
        client = await self.client()
        session = client.get(name).session()
        if path is not None and path.exists():
            await session.append_message(data.Messages().one())
            await client.hibernate(name)
            folder: Path = client.settings.storage_root / "conversations"
            (file,) = folder.glob(f"{file_stem(name)}.*.sqlite")
            path.rename(file)
        await session.get_compactions()
        return session

    def copy_of(self, path: Path) -> Path:
        """Copy a built file, cheaply where the file system can."""
        target = self.new_file()
        with path.open("rb") as source, target.open("wb") as sink:
            left = os.fstat(source.fileno()).st_size
            while left > 0:
                left -= os.copy_file_range(source.fileno(), sink.fileno(), left)
        return target

    # ---------------------------------------------------------------------------- reference

    def reference(self) -> ReferenceClient:
        """Return a client of the reference, installing and starting it at the first use.

        Raises: SkipError when it cannot run here.
        """
        if counts_cpu():
            raise SkipError("the CPU time of another process is not counted")
        if self._reference is None:
            missing = missing_tool()
            if missing is not None:
                raise SkipError(f"the reference needs {missing}")
            try:
                server = self._stack.enter_context(ReferenceServer(self._reference_folder))
            except (OSError, RuntimeError, TimeoutError) as error:
                raise SkipError(f"the reference does not start: {error}") from error
            self._reference = ReferenceClient(server.base)
            self._stack.callback(self._reference.close)
        return self._reference

    def refer(self, name: str, op: str, *args: Any) -> Any:
        """Ask the reference's object of a name."""
        client = self.reference()
        try:
            answer = client.call(name, op, list(args), "")
        except (ConnectionError, HTTPException):  # it hangs up on a client that is silent
            client.close()
            answer = client.call(name, op, list(args), "")
        if "ok" not in answer:
            raise RuntimeError(f"the reference: {answer}")
        return answer["ok"]

    def filled_reference(self, count: int) -> str:
        """Return the name of a reference object that holds a chain of messages."""
        name = f"chain-{count}"
        stored = self.refer(name, "historyCount", {})
        supply = data.Messages()
        while stored < count:
            some = supply.many(min(1000, count - stored))
            stored += self.refer(name, "appendMany", [[message, {}] for message in some])
        return name


def default_reference() -> Path:
    """Return where the reference is kept between runs."""
    given = os.environ.get("SESSIONS_ACTOR_REFERENCE")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "sessions-actor-reference"


def say(text: str) -> None:
    """Tell people something that is no result."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def skipping(bench: Bench, what: str) -> Any:
    """Note what cannot be measured here and go on."""
    try:
        yield
    except SkipError as error:
        bench.skip(what, str(error))
