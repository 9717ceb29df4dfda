"""The same client for code that does not await: scripts, and Ray tasks.

Every method blocks until the async one is done; streams are ordinary iterators. The work runs on
one event loop in a thread of the process.
"""

import asyncio
import atexit
import contextlib
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from sessions_actor.handle import ConversationHandle, SessionHandle
from sessions_actor.reader import ChangeStream
from sessions_actor.records import ChangeEvent

from .client import Client, Infos, Jobs, Lines, Nodes, Points
from .models import (
    BackupReport,
    ConversationInfo,
    JobInfo,
    JobReport,
    MigrationProgress,
    MigrationReport,
    RestoreReport,
)
from .settings import Settings

T = TypeVar("T")

# Items that cross from the loop's thread at once: each crossing costs tens of microseconds.
ITEMS_AT_ONCE = 256


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="sessions-actor-loop", daemon=True
        )
        self._thread.start()
        atexit.register(self.stop)

    @property
    def usable(self) -> bool:
        """Whether its thread runs in this process: a fork leaves threads behind."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; Ctrl-C cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("blocking methods cannot be called from their own event loop")
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def stop(self) -> None:
        """End the loop; what runs there is abandoned."""
        if self.usable:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)


_shared: LoopThread | None = None
_shared_lock = threading.Lock()


def shared_loop() -> LoopThread:
    """Return this process's loop thread, starting it at its first use."""
    global _shared
    with _shared_lock:
        if _shared is None or not _shared.usable:
            _shared = LoopThread()
        return _shared


class SyncStream(Generic[T], Iterator[T]):
    """An async iterator, iterated over from a thread that does not await.

    Args: `at_once` items cross together; 1 for a stream whose reader may wait for the next.
    """

    def __init__(self, make: Callable[[], AsyncIterator[T]], at_once: int) -> None:
        self._make, self._at_once = make, at_once
        self._source: AsyncIterator[T] | None = None
        self._ready: list[T] = []
        self._taken = 0
        self._fetch = 1
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._taken == len(self._ready):
            if self._ended:
                raise StopIteration
            self._ready, self._taken = shared_loop().run(self._more()), 0
            if not self._ready:
                raise StopIteration
        self._taken += 1
        return self._ready[self._taken - 1]

    async def _more(self) -> list[T]:
        """Take items: one at first, then ever more, so that a reader who stops early can."""
        if self._source is None:
            self._source = self._make()
        found: list[T] = []
        count, self._fetch = self._fetch, min(self._at_once, self._fetch * 4)
        while len(found) < count:
            try:
                found.append(await anext(self._source))
            except StopAsyncIteration:
                self._ended = True
                break
        return found

    def close(self) -> None:
        """End the stream; it costs nothing more."""
        self._ended, self._ready, self._taken = True, [], 0
        source, self._source = self._source, None
        if source is not None and hasattr(source, "aclose"):
            shared_loop().run(source.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._source is not None and not self._ended and _shared is not None:
            with contextlib.suppress(Exception):
                self.close()


class SyncSession:
    """A session with blocking methods: those of `SessionHandle`, streams as iterators."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncSession, (self._handle,)

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._handle.session_id

    def changes(self) -> SyncStream[ChangeEvent]:
        """Follow every acknowledged write of this session from now on."""
        return _followed(self._handle)

    def __getattr__(self, name: str) -> Any:
        """Give every other method of `SessionHandle`, blocking."""
        if name.startswith("_"):
            raise AttributeError(name)
        return _blocking(getattr(self._handle, name))


class SyncConversation:
    """A conversation with blocking methods: those of `ConversationHandle`."""

    def __init__(self, handle: ConversationHandle) -> None:
        self._handle = handle

    def __reduce__(self) -> tuple[Any, ...]:
        return SyncConversation, (self._handle,)

    def __repr__(self) -> str:
        return repr(self._handle)

    @property
    def name(self) -> str:
        """The conversation's name."""
        return self._handle.name

    def session(self, session_id: str = "") -> SyncSession:
        """Return the handle of a session."""
        return SyncSession(self._handle.session(session_id))

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a public async method of the hosted class; see `ConversationHandle.call`."""
        return shared_loop().run(self._handle.call(method, *args, **kwargs))

    def session_ids(self) -> list[str]:
        """List the sessions that hold anything."""
        return shared_loop().run(self._handle.session_ids())

    def verify(self) -> list[str]:
        """List what is wrong with the file; see `ConversationHandle.verify`."""
        return shared_loop().run(self._handle.verify())

    def changes(self) -> SyncStream[ChangeEvent]:
        """Follow every acknowledged write of every session from now on."""
        return _followed(self._handle)


class SyncClient:
    """A deployment with blocking methods: see `Client`. Made by `connect_sync()`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._entered = False

    def __enter__(self) -> Self:
        self._client.join()
        try:
            shared_loop().run(self._client.open())
        except BaseException:
            self._client.leave()
            raise
        self._entered = True
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave; ends the cluster when this client started it."""
        if self._entered:
            self._entered = False
            shared_loop().run(self._client.close())
            self._client.leave()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._client.settings

    def get(self, name: str) -> SyncConversation:
        """Return the handle of a conversation; see `Client.get`."""
        return SyncConversation(self._client.get(name))

    def list(
        self, prefix: str = "", limit: int | None = None, *, after: str | None = None
    ) -> Lines:
        """List names in order; see `Client.list`."""

        async def all_names() -> list[str]:
            return await self._client.list(prefix, limit, after=after)

        return shared_loop().run(all_names())

    def info(self, name: str) -> ConversationInfo:
        """See `Client.info`."""
        return shared_loop().run(self._client.info(name))

    def active(self, limit: int = 100) -> Infos:
        """See `Client.active`."""
        return shared_loop().run(self._client.active(limit))

    def delete(self, name: str) -> bool:
        """See `Client.delete`."""
        return shared_loop().run(self._client.delete(name))

    def hibernate(self, name: str) -> None:
        """See `Client.hibernate`."""
        shared_loop().run(self._client.hibernate(name))

    def set_quota(self, name: str, quota_bytes: int | None) -> None:
        """See `Client.set_quota`."""
        shared_loop().run(self._client.set_quota(name, quota_bytes))

    def verify(self, name: str) -> Lines:
        """See `Client.verify`."""
        return shared_loop().run(self._client.verify(name))

    def restore_points(self, name: str) -> Points:
        """See `Client.restore_points`."""
        return shared_loop().run(self._client.restore_points(name))

    def restore(
        self,
        name: str,
        *,
        at: datetime | None = None,
        to: str | None = None,
        in_place: bool = False,
    ) -> RestoreReport:
        """See `Client.restore`."""
        return shared_loop().run(self._client.restore(name, at=at, to=to, in_place=in_place))

    def verify_replica(self, name: str) -> Lines:
        """See `Client.verify_replica`."""
        return shared_loop().run(self._client.verify_replica(name))

    def back_up(
        self,
        folder: str | Path,
        names: Iterable[str] | None = None,
        *,
        progress: Callable[[int, str], object] | None = None,
    ) -> BackupReport:
        """See `Client.back_up`."""
        return shared_loop().run(self._client.back_up(folder, names, progress=progress))

    def migrate(
        self,
        name: str,
        node_id: str | None = None,
        *,
        progress: Callable[[MigrationProgress], object] | None = None,
    ) -> MigrationReport:
        """See `Client.migrate`."""
        return shared_loop().run(self._client.migrate(name, node_id, progress=progress))

    def cancel_migration(self, name: str) -> bool:
        """See `Client.cancel_migration`."""
        return shared_loop().run(self._client.cancel_migration(name))

    def drain(
        self, node_id: str, *, progress: Callable[[JobInfo], object] | None = None
    ) -> JobReport:
        """See `Client.drain`."""
        return shared_loop().run(self._client.drain(node_id, progress=progress))

    def rebalance(self, *, progress: Callable[[JobInfo], object] | None = None) -> JobReport:
        """See `Client.rebalance`."""
        return shared_loop().run(self._client.rebalance(progress=progress))

    def jobs(self) -> Jobs:
        """See `Client.jobs`."""
        return shared_loop().run(self._client.jobs())

    def cancel_job(self, job_id: str) -> bool:
        """See `Client.cancel_job`."""
        return shared_loop().run(self._client.cancel_job(job_id))

    def undrain(self, node_id: str) -> None:
        """See `Client.undrain`."""
        shared_loop().run(self._client.undrain(node_id))

    def disks(self) -> dict[str, int]:
        """See `Client.disks`."""
        return shared_loop().run(self._client.disks())

    def replicas_behind(self) -> tuple[int, float]:
        """See `Client.replicas_behind`."""
        return shared_loop().run(self._client.replicas_behind())

    def nodes(self) -> Nodes:
        """See `Client.nodes`."""
        return shared_loop().run(self._client.nodes())


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """Turn an async method into a blocking one, an async iterator into an ordinary one."""
    if inspect.isasyncgenfunction(method):

        def stream(*args: Any, **kwargs: Any) -> SyncStream[Any]:
            return SyncStream(lambda: method(*args, **kwargs), ITEMS_AT_ONCE)

        return stream
    if inspect.iscoroutinefunction(method):

        def call(*args: Any, **kwargs: Any) -> Any:
            return shared_loop().run(method(*args, **kwargs))

        return call
    return method


def _followed(handle: ConversationHandle | SessionHandle) -> SyncStream[ChangeEvent]:
    async def begin() -> ChangeStream:
        stream = handle.changes()
        await stream.begun()
        return stream

    stream = shared_loop().run(begin())
    return SyncStream(lambda: stream, 1)


def connect_sync(
    address: str | None = None,
    *,
    namespace: str = "sessions",
    settings: Settings | None = None,
) -> SyncClient:
    """Return a client with blocking methods, to be entered with `with`; see `connect`.

    It works in a plain script, in a Ray task and in a Ray actor; there it uses the cluster that
    the process is in.
    """
    return SyncClient(Client(address, namespace, settings or Settings()))
