"""One activation, served: frames, tickets, windows, seal and end. A real file, no Ray."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sessions_actor import DurableObject, Lifecycle, ObjectState, Sessions, wire
from sessions_actor.errors import MigratingError, OverloadedError, StaleEpochError
from sessions_actor.hosted import TRANSITIONS, Hosted, Phase, sessions_of
from sessions_actor.open_object import Activation
from sessions_actor.overload import Bounds
from sessions_actor.wire import Answer, Part, WindowRequest

from .fake_cluster import until


class Host(DurableObject):
    """A conversation with methods that wait."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.sessions = Sessions()
        self.lifecycle = Lifecycle.install(self).use(self.sessions)
        self.release = asyncio.Event()
        self.finished = False

    async def hold(self) -> str:
        """Wait to be released."""
        await self.release.wait()
        self.finished = True
        return "released"

    async def echo_later(self, value: Any, times: int = 1) -> Any:
        """Give back what was given so many times, once released."""
        await self.release.wait()
        return value * times

    async def stubborn(self) -> None:
        """Go on although it was cancelled, and write."""
        while not self.release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.release.wait()
        await self.storage.put("late", 1)

    async def echo(self, value: Any) -> Any:
        """Give back what was given."""
        return value

    async def cancel_its_own(self) -> None:
        """Wait for work of its own that is cancelled."""
        work = asyncio.ensure_future(self.release.wait())
        work.cancel()
        await work

    async def ask_one_that_moves(self) -> None:
        """Ask another conversation, which moves."""
        raise MigratingError("bob", 0.0)


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[Hosted]:
    found = await host(tmp_path)
    yield found
    if found.phase is not Phase.ENDED:
        await found.end()


async def host(tmp_path: Path, **options: Any) -> Hosted:
    activation: Activation[DurableObject] = Activation(
        Host, name="alice", path=tmp_path / "alice.sqlite", epoch=3
    )
    await activation.start()
    options = {"bounds": Bounds(calls=100)} | options
    return Hosted(activation, name="alice", epoch=3, **options)


def part(method: str, *args: Any, **kwargs: Any) -> Part:
    return Part("", method, wire.dump_args(args, kwargs, ["x"] * len(args)))


def call(method: str, *args: Any) -> Part:
    return Part("", wire.CALL, wire.dump_call(method, args, {}))


def message(name: str) -> dict[str, Any]:
    return {"id": name, "role": "user", "parts": [{"type": "text", "text": name}]}


def error_of(answer: Answer) -> Exception:
    assert answer.tag == wire.ERROR
    return wire.load_error(answer.data)


def refusal_of(answer: Answer) -> Exception:
    assert answer.tag == wire.REFUSED
    return wire.load_error(answer.data)


def test_phases_are_complete() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert TRANSITIONS[Phase.ENDED] == frozenset()


def test_a_host_without_sessions_is_told_what_to_do(tmp_path: Path) -> None:
    class Bare(DurableObject):
        pass

    state = ObjectState("a", None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"self\.sessions = Sessions\(\)"):
        sessions_of(Bare(state))


async def test_parts_of_a_frame_share_one_commit_and_have_their_own_savepoint(
    hosted: Hosted,
) -> None:
    commits = []
    hosted.storage.on_commit(lambda: commits.append(1))
    parts = [part("append_message", message(f"m{i}")) for i in range(20)]
    parts.insert(7, part("import_messages", [[message("c"), "c", 1]]))  # its own parent
    answers = await hosted.serve(3, parts)
    assert [answer.tag for answer in answers] == [wire.OK] * 7 + [wire.ERROR] + [wire.OK] * 13
    assert isinstance(error_of(answers[7]), ValueError)
    assert len(commits) == 1
    session = hosted.host.sessions.session()  # type: ignore[attr-defined]
    assert [m["id"] async for m in session.history()] == [f"m{i}" for i in range(20)]


async def test_another_epoch_is_refused_and_writes_nothing(hosted: Hosted) -> None:
    for epoch in (2, 4):
        (answer,) = await hosted.serve(epoch, [part("append_message", message("m"))])
        error = refusal_of(answer)
        assert isinstance(error, StaleEpochError)
        assert (error.presented, error.current) == (epoch, 3)
    (found,) = await hosted.serve(3, [part("get_message", "m")])
    assert found == Answer(wire.OK, b"null")


async def test_unknown_methods_are_refused(hosted: Hosted) -> None:
    for wrong in (part("open_history"), part("__class__"), call("_hidden"), call("on_start")):
        (answer,) = await hosted.serve(3, [wrong])
        assert isinstance(error_of(answer), AttributeError)


async def test_a_call_that_takes_long_is_answered_with_a_ticket(hosted: Hosted) -> None:
    slow, quick = await hosted.serve(3, [call("hold"), part("append_message", message("m"))])
    assert (slow.tag, quick.tag) == (wire.WAITING, wire.OK)
    ticket = slow.data.decode()
    assert (await hosted.remains.collect(ticket, 0.001)).tag == wire.WAITING
    assert hosted.pending == 1
    assert hosted.idle_s == 0
    await hosted.serve(3, [Part("", wire.CALL, wire.dump_call("echo", (1,), {}))])
    hosted.host.release.set()  # type: ignore[attr-defined]
    outcome = await hosted.remains.collect(ticket, 5)
    assert wire.load_result(wire.ResultKind.PICKLE, outcome.data) == "released"
    assert (await hosted.remains.collect(ticket, 0.001)).tag == wire.CUT
    assert hosted.pending == 0


async def test_more_calls_than_it_may_hold_are_refused_at_once(tmp_path: Path) -> None:
    hosted = await host(tmp_path, bounds=Bounds(calls=3))
    await hosted.serve(3, [call("hold") for _ in range(3)])
    (answer,) = await hosted.serve(3, [part("get_message", "m")])
    error = error_of(answer)
    assert isinstance(error, OverloadedError)
    assert (error.pending, error.limit) == (3, 3)
    hosted.host.release.set()  # type: ignore[attr-defined]
    await hosted.end()


async def test_at_a_seal_callers_wait_and_go_on_when_it_is_lifted(hosted: Hosted) -> None:
    await hosted.seal(0)
    waiting = asyncio.create_task(hosted.serve(3, [part("append_message", message("m"))]))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    hosted.unseal()
    assert [answer.tag for answer in await waiting] == [wire.OK]


async def test_at_a_seal_that_ends_the_activation_callers_are_sent_on(hosted: Hosted) -> None:
    await hosted.seal(0)
    waiting = asyncio.create_task(hosted.serve(3, [part("append_message", message("m"))]))
    await asyncio.sleep(0)
    await hosted.end()
    assert isinstance(refusal_of((await waiting)[0]), StaleEpochError)


async def test_nobody_waits_at_a_seal_for_ever(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions_actor.hosted.SEALED_WAIT_S", 0.02)
    await hosted.seal(0)
    (answer,) = await hosted.serve(3, [part("append_message", message("m"))])
    assert isinstance(refusal_of(answer), MigratingError)
    hosted.unseal()


async def test_a_seal_lets_long_calls_finish_within_its_patience(hosted: Hosted) -> None:
    (slow,) = await hosted.serve(3, [call("hold")])
    sealing = asyncio.create_task(hosted.seal(10))
    await asyncio.sleep(0.01)
    assert hosted.phase is Phase.SERVING  # others are served meanwhile
    hosted.host.release.set()  # type: ignore[attr-defined]
    await sealing
    assert hosted.phase is Phase.SEALED
    assert (await hosted.remains.collect(slow.data.decode(), 1)).tag == wire.OK


async def test_a_seal_cuts_short_what_takes_longer(hosted: Hosted) -> None:
    (slow,) = await hosted.serve(3, [call("hold")])
    await hosted.seal(0.02)
    assert (await hosted.remains.collect(slow.data.decode(), 1)).tag == wire.CUT
    assert not hosted.host.finished  # type: ignore[attr-defined]


async def test_a_refusal_is_told_from_what_a_method_raised(hosted: Hosted) -> None:
    (raised,) = await hosted.serve(3, [call("ask_one_that_moves")])
    assert raised.tag == wire.ERROR
    (refused,) = await hosted.serve(2, [call("ask_one_that_moves")])
    assert refused.tag == wire.REFUSED


async def test_what_a_method_cancelled_itself_is_no_seal(hosted: Hosted) -> None:
    (answer,) = await hosted.serve(3, [call("cancel_its_own")])
    assert answer.tag == wire.ERROR
    assert "CancelledError" in str(wire.load_error(answer.data))


async def test_what_goes_on_after_the_end_is_not_acknowledged(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessions_actor.hosted.CANCEL_WAIT_S", 0.05)
    (slow,) = await hosted.serve(3, [call("stubborn")])
    await hosted.end()
    hosted.host.release.set()  # type: ignore[attr-defined]
    assert (await hosted.remains.collect(slow.data.decode(), 5)).tag == wire.CUT


async def test_only_the_idle_yield_unless_it_is_their_turn(hosted: Hosted) -> None:
    await hosted.serve(3, [part("append_message", message("m"))])
    assert not await hosted.yield_if_idle(idle_s=60, resident_s=None)
    assert not await hosted.yield_if_idle(idle_s=60, resident_s=3600)
    await hosted.serve(3, [call("hold")])
    assert not await hosted.yield_if_idle(idle_s=0, resident_s=0)
    hosted.host.release.set()  # type: ignore[attr-defined]
    await until(lambda: not hosted.pending)
    assert hosted.phase is Phase.SERVING
    assert await hosted.yield_if_idle(idle_s=60, resident_s=0)
    assert hosted.phase is Phase.SEALED


async def test_what_it_leaves_at_its_end(hosted: Hosted) -> None:
    await hosted.serve(3, [part("append_message", message("m"))])
    ended = await hosted.end()
    assert ended.file_bytes > 0
    assert ended.last_active_at > 0
    assert not ended.followed


async def test_an_activation_whose_gate_broke_ends_itself(tmp_path: Path) -> None:
    lost = []
    hosted = await host(tmp_path, on_lost=lambda: lost.append(1))
    hosted.storage.connection.execute("COMMIT") if hosted.storage.pending else None
    hosted.storage._gate._break("the disk is gone")  # type: ignore[attr-defined]
    assert lost == [1]
    (answer,) = await hosted.serve(3, [part("append_message", message("m"))])
    assert isinstance(refusal_of(answer), StaleEpochError)
    await hosted.end()


async def pull(hosted: Hosted, request: WindowRequest) -> wire.LoadedWindow:
    asked = Part("", wire.READ_WINDOW, wire.dump_args([request], {}, ["request"]))
    (answer,) = await hosted.serve(3, [asked])
    assert answer.tag == wire.OK, error_of(answer)
    return wire.load_window(answer.data)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("forget", [False, True])
async def test_windows_go_on_where_the_cursor_stands(
    hosted: Hosted, newest_first: bool, forget: bool
) -> None:
    ids = [f"m{i}" for i in range(300)]
    await hosted.serve(3, [part("append_messages", [message(i) for i in ids])])
    seen: list[str] = []
    serial, cursor = 0, None
    while serial == 0 or cursor is not None:
        params = {"newest_first": newest_first}
        window = await pull(
            hosted, WindowRequest("s", serial, "history", params, cursor, 1 << 20, 70)
        )
        found = [wire.loads(text)["id"] for text in window.split()]
        assert len(found) <= 70
        seen += found
        serial, cursor = serial + 1, window.cursor
        if forget:
            hosted._streams.clear()
    assert seen == (ids[::-1] if newest_first else ids)


async def test_a_window_asked_for_twice_is_read_twice(hosted: Hosted) -> None:
    ids = [f"m{i}" for i in range(30)]
    await hosted.serve(3, [part("append_messages", [message(i) for i in ids])])
    first = await pull(hosted, WindowRequest("s", 0, "history", {}, None, 1 << 20, 10))
    once = await pull(hosted, WindowRequest("s", 1, "history", {}, first.cursor, 1 << 20, 10))
    again = await pull(hosted, WindowRequest("s", 1, "history", {}, first.cursor, 1 << 20, 10))
    assert once.split() == again.split()
    assert once.cursor == again.cursor


async def test_rows_and_recent_windows(hosted: Hosted) -> None:
    await hosted.serve(3, [part("append_messages", [message(f"m{i}") for i in range(500)])])
    window = await pull(hosted, WindowRequest("r", 0, "rows", {"after_seq": 0}, None, 2000, 9999))
    assert 0 < len(window.sizes) < 500
    assert window.facts[0][:1] == [None]
    rest = await pull(
        hosted, WindowRequest("r", 1, "rows", {"after_seq": 0}, window.cursor, 1 << 22, 9999)
    )
    assert len(window.sizes) + len(rest.sizes) == 500
    assert rest.cursor is None
    params = {"max_content_bytes": 500, "leaf_id": None}
    recent = await pull(hosted, WindowRequest("n", 0, "recent", params, None, 1 << 20, 999))
    truncated, total = recent.facts
    assert truncated
    assert total > 10_000
    assert wire.loads(recent.split()[-1])["id"] == "m499"


async def test_open_streams_are_bounded(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessions_actor.hosted.STREAMS_MAX", 4)
    await hosted.serve(3, [part("append_messages", [message(f"m{i}") for i in range(20)])])
    for i in range(10):
        await pull(hosted, WindowRequest(f"s{i}", 0, "history", {}, None, 1 << 20, 5))
    assert len(hosted._streams) == 4


async def test_a_repeated_overlay_is_stored_once(hosted: Hosted) -> None:
    await hosted.serve(3, [part("append_messages", [message(f"m{i}") for i in range(4)])])
    adding = part("add_compaction", "sum", "m0", "m1")
    (first,) = await hosted.serve(3, [adding])
    (again,) = await hosted.serve(3, [adding._replace(again=True)])
    assert first == again
    (other,) = await hosted.serve(3, [adding])
    assert other != first


async def test_the_change_feed_is_recorded_for_those_who_follow(tmp_path: Path) -> None:
    hosted = await host(tmp_path)
    await hosted.serve(3, [part("append_message", message("unseen"))])
    assert hosted.remains.log is None
    (answer,) = await hosted.serve(3, [Part("", wire.FOLLOW_CHANGES, wire.dump_args([], {}, []))])
    place = wire.loads(answer.data)
    await hosted.serve(3, [part("append_message", message("seen"))])
    log = hosted.remains.log
    assert log is not None
    page = await log.poll(place, 1)
    assert [wire.load_event(e).message["id"] for e in page.events] == ["seen"]  # type: ignore[index]
    assert hosted.followed
    assert (await hosted.end()).followed
    assert (await log.poll(page.place, 1)).ended


async def test_a_followed_activation_records_from_its_start(tmp_path: Path) -> None:
    hosted = await host(tmp_path, follow=True)
    await hosted.serve(3, [part("append_message", message("first"))])
    log = hosted.remains.log
    assert log is not None
    page = await log.poll(0, 1)
    assert not page.lost
    assert len(page.events) == 1
    await hosted.end()
