"""Handles without a cluster: what is checked before anything is sent."""

import asyncio
import gc
import inspect
import pickle
import weakref
from typing import Any

import pytest

from sessions_actor import wire
from sessions_actor.channel import Address, Succession
from sessions_actor.handle import ConversationHandle, SessionHandle
from sessions_actor.overload import Bounds
from sessions_actor.sessions import Session


class Nobody:
    """A resolver that must not be asked."""

    call_timeout_s = 1.0
    bounds = Bounds()

    async def resolve(self, name: str, failed: Address | None) -> Address:
        raise AssertionError("nothing should have been sent")

    async def succession(self, name: str, epoch: int, wait_s: float) -> Succession | None:
        raise AssertionError("nothing should have been sent")


def session() -> Any:
    return ConversationHandle("alice", Nobody()).session()


def test_a_session_handle_has_the_methods_of_a_session() -> None:
    """Save those that take a function, or are windows for the actor."""
    in_process_only = {
        "on_compaction", "compact_after", "mirror", "open_history", "open_recent", "next_window",
        "rows_window",
    }  # fmt: skip
    own, remote = (
        {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}
        for kind in (Session, SessionHandle)
    )
    assert own - in_process_only <= remote
    assert remote - own == {"changes"}


def test_parameters_are_those_of_a_session() -> None:
    for name, function in vars(SessionHandle).items():
        if name[0] == "_" or name == "changes":
            continue
        here = inspect.signature(function).parameters
        there = inspect.signature(getattr(Session, name)).parameters
        assert list(here) == list(there), name
        assert [p.kind for p in here.values()] == [p.kind for p in there.values()], name
        assert [p.default for p in here.values()] == [p.default for p in there.values()], name


def test_every_method_that_crosses_is_known() -> None:
    crossing = {name for name in wire.METHODS if not name.startswith("#")}
    assert crossing <= set(vars(SessionHandle))
    assert crossing <= set(dir(Session))


@pytest.mark.parametrize("name", ["", "x" * 1025, "\ud83d", 5, None, b"bytes"])
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        ConversationHandle(name, Nobody())


@pytest.mark.parametrize("session_id", [5, None, "\ud83d"])
def test_bad_session_ids_are_refused(session_id: Any) -> None:
    with pytest.raises(ValueError, match="session_id"):
        ConversationHandle("alice", Nobody()).session(session_id)


async def test_what_is_ill_formed_is_never_sent() -> None:
    good = {"id": "m", "role": "user", "parts": []}
    for wrong in ("text", {"id": "m"}, {**good, "id": ""}, {**good, "parts": [{"type": 5}]}):
        for method in ("append_message", "update_message", "upsert_message"):
            with pytest.raises(ValueError, match=r"message|id|role|parts"):
                await getattr(session(), method)(wrong)
        with pytest.raises(ValueError, match=r"message|id|role|parts"):
            await session().append_messages([good, wrong])
        with pytest.raises(ValueError, match=r"message|id|role|parts"):
            await session().import_message(wrong, parent_id=None, created_at=1)
    with pytest.raises(TypeError, match=r"message\.extra: set"):
        await session().append_message({**good, "extra": {1}})
    for wrong in ("text", {"id": "m"}, 5):
        with pytest.raises(TypeError):
            await session().append_messages(wrong)
    with pytest.raises(ValueError, match="created_at"):
        await session().import_messages([{"message": good, "parent_id": None}])


def test_handles_pickle() -> None:
    one = pickle.loads(pickle.dumps(ConversationHandle("alice", Nobody()).session("s")))
    assert (one.session_id, repr(one)) == ("s", "<session 's' of <conversation 'alice'>>")


def test_a_handle_forgets_the_loops_that_are_closed() -> None:
    handle = ConversationHandle("alice", Nobody())

    async def use() -> None:
        assert handle.channel() is handle.channel()

    loops = []
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(use())
        loop.close()
        loops.append(weakref.ref(loop))
        del loop
    asyncio.run(use())
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3
