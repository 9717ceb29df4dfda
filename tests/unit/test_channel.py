"""Calls to one conversation: gathered, in order, retried, each with its own outcome."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from sessions_actor import channel as channel_module
from sessions_actor import wire
from sessions_actor.channel import Address, Channel, Succession
from sessions_actor.errors import (
    LeaseMissingError,
    MigratingError,
    NoCapacityError,
    StaleEpochError,
)
from sessions_actor.overload import Bounds
from sessions_actor.retry import is_lost
from sessions_actor.wire import Answer, Part

Behaviour = Callable[[int, list[Part]], Any]


class Owner:
    """An actor that answers as told; keeps the frames it was sent."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.frames: list[list[str]] = []
        self.parts: list[Part] = []
        self.behaviour = behaviour or (lambda epoch, parts: [ok(p.method) for p in parts])
        self.tickets: dict[str, Any] = {}
        self.serve, self.collect = Method(self._serve), Method(self._collect)

    async def _serve(self, frame: bytes) -> bytes:
        await asyncio.sleep(0.001)
        _, epoch, parts = wire.unpack_request(frame)
        self.frames.append([part.args.decode() for part in parts])
        self.parts += parts
        answers = self.behaviour(epoch, parts)
        if asyncio.iscoroutine(answers):
            answers = await answers
        return wire.pack_reply(answers)

    async def _collect(self, name: str, epoch: int, ticket: str, wait_s: float) -> bytes:
        answer = self.tickets[ticket]
        return wire.pack_reply([await answer() if callable(answer) else answer])


class Method:
    """`actor.method.remote(...)`."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def remote(self, *args: Any) -> Any:
        """Start the call."""
        return asyncio.ensure_future(self._function(*args))


class Directory:
    """Resolves to each owner in turn; the last one stays."""

    call_timeout_s = 5.0
    bounds = Bounds()

    def __init__(self, *owners: Any) -> None:
        self.owners = list(owners)
        self.asked: list[int | None] = []

    async def resolve(self, name: str, failed: Address | None) -> Address:
        self.asked.append(None if failed is None else failed.epoch)
        if failed is not None and len(self.owners) > 1:
            self.owners.pop(0)
        if isinstance(self.owners[0], Exception):
            raise self.owners[0]
        return Address(name, 10 - len(self.owners), self.owners[0])

    async def succession(self, name: str, epoch: int, wait_s: float) -> Succession | None:
        raise NotImplementedError


def ok(data: str = "") -> Answer:
    return Answer(wire.OK, data.encode())


def failed(error: Exception) -> Answer:
    return Answer(wire.ERROR, wire.dump_error(error))


def refused(error: Exception) -> Answer:
    return Answer(wire.REFUSED, wire.dump_error(error))


async def test_what_is_asked_meanwhile_travels_together_and_in_order() -> None:
    owner, directory = Owner(), Directory()
    directory.owners = [owner]
    calls = Channel("a", directory)
    await asyncio.gather(*(calls.call("", "append_message", b"%d" % i) for i in range(600)))
    assert [arg for frame in owner.frames for arg in frame] == [str(i) for i in range(600)]
    assert len(owner.frames) <= 4
    assert max(map(len, owner.frames)) <= channel_module.FRAME_PARTS_MAX
    assert directory.asked == [None]


async def test_frames_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "FRAME_BYTES_MAX", 100)
    owner = Owner()
    calls = Channel("a", Directory(owner))
    sizes = [10, 60, 60, 30, 500, 10, 10]
    await asyncio.gather(*(calls.call("", "append_message", b"x" * size) for size in sizes))
    assert [[len(arg) for arg in frame] for frame in owner.frames] == [
        [10, 60], [60, 30], [500], [10, 10],
    ]  # fmt: skip


async def test_each_part_has_its_own_outcome() -> None:
    def answer(epoch: int, parts: list[Part]) -> list[Answer]:
        return [failed(ValueError("odd")) if int(p.args) % 2 else ok() for p in parts]

    calls = Channel("a", Directory(Owner(answer)))
    found = await asyncio.gather(
        *(calls.call("", "append_message", b"%d" % i) for i in range(10)), return_exceptions=True
    )
    assert [isinstance(one, ValueError) for one in found] == [False, True] * 5


async def test_calls_that_may_take_long_travel_alone_and_hold_up_nobody() -> None:
    release = asyncio.Event()

    async def answer(epoch: int, parts: list[Part]) -> list[Answer]:
        if parts[0].method == "compact":
            await release.wait()
        return [ok() for _ in parts]

    calls = Channel("a", Directory(Owner(answer)))
    slow = asyncio.create_task(calls.call("", "compact", b"1"))
    await calls.call("", "append_message", b"2")
    assert not slow.done()
    release.set()
    await slow


@pytest.mark.parametrize("error", [StaleEpochError(1, 2), MigratingError("a", 0.1)])
async def test_a_refused_call_goes_to_the_next_owner(error: Exception) -> None:
    stale = Owner(lambda epoch, parts: [refused(error) for _ in parts])
    fresh = Owner()
    directory = Directory(stale, fresh)
    calls = Channel("a", directory)
    await asyncio.gather(*(calls.call("", "append_message", b"%d" % i) for i in range(5)))
    assert directory.asked == [None, 8]
    assert [arg for frame in fresh.frames for arg in frame] == [str(i) for i in range(5)]
    assert not any(part.again for part in fresh.parts)


async def test_a_call_to_an_owner_without_a_lease_fails_in_time() -> None:
    directory = Directory(
        Owner(lambda epoch, parts: [refused(LeaseMissingError("a", 0.1)) for _ in parts])
    )
    directory.call_timeout_s = 0.3
    with pytest.raises(TimeoutError, match="has no lease"):
        await asyncio.wait_for(Channel("a", directory).call("", "append_message", b"1"), 10)


async def test_a_call_waits_for_a_move_beyond_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    sealed_until = loop.time() + 0.5

    def answer(epoch: int, parts: list[Part]) -> list[Answer]:
        return [refused(MigratingError("a", 0.1)) if loop.time() < sealed_until else ok()]

    directory = Directory(Owner(answer))
    directory.call_timeout_s = 0.2
    monkeypatch.setattr("sessions_actor.retry.BACKOFF_MAX_S", 0.02)
    await Channel("a", directory).call("", "append_message", b"1")


async def test_a_call_does_not_wait_for_moves_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SEALED_TOTAL_S", 0.4)
    directory = Directory(
        Owner(lambda epoch, parts: [refused(MigratingError("a", 0.1)) for _ in parts])
    )
    directory.call_timeout_s = 0.2
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError, match="is migrating"):
        await asyncio.wait_for(Channel("a", directory).call("", "append_message", b"1"), 10)
    assert asyncio.get_running_loop().time() - began >= 0.4


async def test_calls_of_a_dead_owner_are_made_again_in_their_order() -> None:
    def die(epoch: int, parts: list[Part]) -> list[Answer]:
        raise ActorDiedError

    fresh = Owner()
    calls = Channel("a", Directory(Owner(die), fresh))
    await asyncio.gather(*(calls.call("", "append_message", b"%d" % i) for i in range(50)))
    assert [arg for frame in fresh.frames for arg in frame] == [str(i) for i in range(50)]
    assert fresh.parts[0].again  # it may have been carried out


async def test_a_call_that_must_not_run_twice_is_lost_with_its_owner() -> None:
    def die(epoch: int, parts: list[Part]) -> list[Answer]:
        raise ActorDiedError

    fresh = Owner()
    calls = Channel("a", Directory(Owner(die), fresh))
    with pytest.raises(ActorDiedError) as lost:
        await calls.call("", wire.CALL, b"x")
    assert is_lost(lost.value)
    assert fresh.frames == []
    cut = Channel("a", Directory(Owner(lambda e, parts: [Answer(wire.CUT, b"")]), fresh))
    with pytest.raises(MigratingError):
        await cut.call("", wire.CALL, b"x")
    stale = Owner(lambda e, parts: [refused(StaleEpochError(1, 2))])
    assert await Channel("a", Directory(stale, fresh)).call("", wire.CALL, b"x") == b"#call"


async def test_a_ticket_is_collected_while_others_go_on() -> None:
    release = asyncio.Event()
    owner = Owner()

    def answer(epoch: int, parts: list[Part]) -> list[Answer]:
        return [Answer(wire.WAITING, b"t1") if p.args == b"slow" else ok() for p in parts]

    async def outcome() -> Answer:
        try:
            await asyncio.wait_for(release.wait(), 0.01)
        except TimeoutError:
            return Answer(wire.WAITING, b"t1")
        return ok("done")

    owner.behaviour, owner.tickets["t1"] = answer, outcome
    calls = Channel("a", Directory(owner))
    slow = asyncio.create_task(calls.call("", "append_message", b"slow"))
    for i in range(3):
        await calls.call("", "append_message", b"%d" % i)
    assert not slow.done()
    release.set()
    assert await slow == b"done"
    assert not calls.busy


async def test_a_ticket_that_is_gone_makes_the_call_again() -> None:
    owner, fresh = Owner(lambda e, parts: [Answer(wire.WAITING, b"t") for _ in parts]), Owner()
    owner.tickets["t"] = Answer(wire.CUT, b"")
    calls = Channel("a", Directory(owner, fresh))
    assert await calls.call("", "append_message", b"1") == b"append_message"
    assert fresh.parts[0].again


@pytest.mark.parametrize("method", ["compact", wire.CALL])
@pytest.mark.parametrize(
    "error",
    [MigratingError("bob", 0.0), StaleEpochError(1, 2), LeaseMissingError("bob", 0.1)],
    ids=lambda error: type(error).__name__,
)
async def test_what_the_hosts_own_code_raised_is_the_callers_whatever_it_says(
    method: str, error: Exception
) -> None:
    # Its code asked another conversation, and that was moving: this one has run.
    owner = Owner(lambda epoch, parts: [failed(error)])
    calls = Channel("a", Directory(owner, Owner()))
    with pytest.raises(type(error)):
        await calls.call("", method, b"")
    assert len(owner.frames) == 1
    waiting = Owner(lambda epoch, parts: [Answer(wire.WAITING, b"t")])
    waiting.tickets["t"] = failed(error)
    calls = Channel("a", Directory(waiting, Owner()))
    with pytest.raises(type(error)):
        await calls.call("", method, b"")


async def test_a_call_at_work_beyond_its_time_is_made_again_when_it_is_cut_short() -> None:
    directory = Directory(Owner(lambda e, parts: [Answer(wire.WAITING, b"t")]), Owner())
    directory.call_timeout_s = 0.2
    loop = asyncio.get_running_loop()

    async def cut_late() -> Answer:
        await asyncio.sleep(directory.call_timeout_s * 2)
        return Answer(wire.CUT, b"")

    directory.owners[0].tickets["t"] = cut_late
    began = loop.time()
    assert await Channel("a", directory).call("", "compact", b"") == b"compact"
    assert loop.time() - began > directory.call_timeout_s


async def test_a_silent_owner_is_asked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SUSPECT_AFTER_S", 0.05)

    async def silent(epoch: int, parts: list[Part]) -> list[Answer]:
        await asyncio.Event().wait()
        return []

    fresh = Owner()
    directory = Directory(Owner(silent), fresh)
    calls = Channel("a", directory)
    assert await calls.call("", "append_message", b"1") == b"append_message"
    assert directory.asked == [None, 8]
    assert fresh.parts[0].again


async def test_an_owner_that_is_only_slow_keeps_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "SUSPECT_AFTER_S", 0.02)

    async def slow(epoch: int, parts: list[Part]) -> list[Answer]:
        await asyncio.sleep(0.15)
        return [ok() for _ in parts]

    owner = Owner(slow)
    directory = Directory(owner)
    await Channel("a", directory).call("", "append_message", b"1")
    assert len(directory.asked) > 2
    assert len(owner.frames) == 1


async def test_without_an_owner_a_call_ends_in_time() -> None:
    stale = Owner(lambda epoch, parts: [refused(StaleEpochError(1, 2)) for _ in parts])
    directory = Directory(stale)
    directory.call_timeout_s = 0.1
    with pytest.raises(TimeoutError, match=r"'a' did not answer within 0\.1 s"):
        await Channel("a", directory).call("", "append_message", b"1")


async def test_errors_of_the_resolver_reach_every_caller() -> None:
    calls = Channel("a", Directory(NoCapacityError(3)))
    found = await asyncio.gather(
        *(calls.call("", "append_message", b"x") for _ in range(3)), return_exceptions=True
    )
    assert [type(one) for one in found] == [NoCapacityError] * 3


async def test_a_cancelled_call_leaves_the_others_alone() -> None:
    owner = Owner()
    calls = Channel("a", Directory(owner))
    first = asyncio.create_task(calls.call("", "append_message", b"1"))
    second = asyncio.create_task(calls.call("", "append_message", b"2"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"append_message"
    with pytest.raises(asyncio.CancelledError):
        await first
