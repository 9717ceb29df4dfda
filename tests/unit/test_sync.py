"""Blocking calls and iterators over an event loop in a thread."""

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.sync import LoopThread, SyncConversation, SyncSession, SyncStream, shared_loop
from sessions_actor.handle import ConversationHandle
from sessions_actor.overload import Bounds


class Source:
    """An async iterator that knows how far it was read."""

    def __init__(self, count: int) -> None:
        self.count, self.taken, self.closed = count, 0, False

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        if self.taken >= self.count:
            raise StopAsyncIteration
        self.taken += 1
        return self.taken - 1

    async def aclose(self) -> None:
        self.closed = True


def test_a_stream_is_an_ordinary_iterator() -> None:
    assert list(SyncStream(lambda: Source(1000), 256)) == list(range(1000))
    assert list(SyncStream(lambda: Source(0), 256)) == []


def test_who_stops_early_has_read_little() -> None:
    source = Source(1000)
    stream = SyncStream(lambda: source, 256)
    assert next(stream) == 0
    assert source.taken == 1
    assert [next(stream) for _ in range(3)] == [1, 2, 3]
    assert source.taken < 10
    stream.close()
    assert source.closed
    assert list(stream) == []


def test_a_stream_closes_at_the_end_of_its_block() -> None:
    source = Source(5)
    with SyncStream(lambda: source, 1) as stream:
        assert next(stream) == 0
    assert source.closed


def test_errors_of_a_stream_are_raised() -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ValueError("x")

    stream = SyncStream(broken, 1)
    assert next(stream) == 1
    with pytest.raises(ValueError, match="x"):
        next(stream)


def test_threads_share_one_loop() -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(shared_loop())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_a_blocking_call_on_the_loops_own_thread_is_refused() -> None:
    loop = LoopThread()

    async def nested() -> None:
        loop.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="own event loop"):
        loop.run(nested())
    loop.stop()
    assert not loop.usable


class Resolver:
    """Never asked."""

    call_timeout_s = 1.0
    bounds = Bounds()


def test_blocking_handles_pickle() -> None:
    conversation = SyncConversation(ConversationHandle("alice", Resolver()))  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(conversation))
    assert again.name == "alice"
    session = pickle.loads(pickle.dumps(conversation.session("s")))
    assert isinstance(session, SyncSession)
    assert session.session_id == "s"


def test_every_method_of_a_session_is_there() -> None:
    from sessions_actor.handle import SessionHandle

    session = SyncConversation(ConversationHandle("alice", Resolver())).session()  # type: ignore[arg-type]
    for name in vars(SessionHandle):
        if not name.startswith("_"):
            assert callable(getattr(session, name))
