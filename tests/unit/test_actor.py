"""An actor hosts one conversation after another and never takes one for the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sessions_actor import LeaseMissingError, StaleEpochError, wire
from sessions_actor.actor import ActivationSpec, ActorState, ConversationActor
from sessions_actor.lease import NodeLease
from sessions_actor.overload import Bounds
from sessions_actor.transfer_steps import size_step
from sessions_actor.waiting import Countdown

from .fake_cluster import standing_lease, until


def spec(name: str, epoch: int) -> ActivationSpec:
    return ActivationSpec(
        name,
        epoch,
        f"conversations/{name}.sqlite",
        10**9,
        "sessions_actor.conversation:Conversation",
        Bounds(calls=100),
    )


async def append(actor: ConversationActor, name: str, epoch: int, message_id: str) -> Any:
    message = {"id": message_id, "role": "user", "parts": []}
    args = wire.dump_args([message], {}, ["message"])
    frame = wire.pack_request(name, epoch, [wire.Part("", "append_message", args)])
    (answer,) = wire.unpack_reply(await actor.serve(frame))
    return answer


async def rows(actor: ConversationActor) -> int:
    assert actor._hosted is not None
    table = "cf_agents_session_messages"
    return actor._hosted.storage.sql.exec(f"SELECT count(*) AS n FROM {table}").one()["n"]


@pytest.fixture
async def second(tmp_path: Path) -> ConversationActor:
    """An actor that hosted `a` under epoch 3 and now hosts `b`, under epoch 3 as well."""
    actor = ConversationActor(str(tmp_path), standing_lease)
    await actor.activate(spec("a", 3))
    assert (await append(actor, "a", 3, "m")).tag == wire.OK
    await actor.hibernate("a", 3)
    await actor.activate(spec("b", 3))
    assert (await append(actor, "b", 3, "m")).tag == wire.OK
    return actor


async def test_a_call_for_the_conversation_before_is_refused_and_writes_nothing(second):
    answer = await append(second, "a", 3, "stray")
    assert answer.tag == wire.REFUSED
    assert isinstance(wire.load_error(answer.data), StaleEpochError)
    assert await rows(second) == 1


@pytest.mark.parametrize(
    "order",
    [
        lambda actor: actor.hibernate("a", 3),
        lambda actor: actor.seal("a", 3, 0),
        lambda actor: actor.transfer("a", 3, size_step),
        lambda actor: actor.promote("a", 3),
    ],
    ids=["hibernate", "seal", "transfer", "promote"],
)
async def test_an_order_for_the_conversation_before_is_refused(second, order):
    with pytest.raises(StaleEpochError):
        await order(second)
    assert (await append(second, "b", 3, "n")).tag == wire.OK


async def test_discarding_the_conversation_before_leaves_this_one_alone(second, tmp_path):
    await second.unseal("a", 3)
    await second.discard("a", 3)
    assert (await append(second, "b", 3, "n")).tag == wire.OK
    assert await rows(second) == 2
    assert (tmp_path / "conversations/a.sqlite").exists()
    await second.hibernate("b", 3)


# ------------------------------------------------------------------------------------- lease


class Leased:
    """An actor that hosts `a`, on a node whose lease and clock are ours."""

    def __init__(self, root: Path) -> None:
        self.time = 0.0
        self.lease = NodeLease.in_memory(lambda: self.time)
        self.lease.grant(1, 0.0, 10.0)
        self.actor = ConversationActor(str(root), lambda: self.lease)


@pytest.fixture
async def leased(tmp_path: Path) -> Leased:
    found = Leased(tmp_path)
    await found.actor.activate(spec("a", 1))
    return found


async def test_past_the_lease_a_call_is_refused_and_writes_nothing(leased: Leased) -> None:
    leased.time = 11.0
    answer = await append(leased.actor, "a", 1, "m")
    assert isinstance(wire.load_error(answer.data), LeaseMissingError)
    assert await rows(leased.actor) == 0


async def test_a_call_waits_for_the_lease_to_be_renewed(leased: Leased) -> None:
    leased.time = 11.0
    asked = asyncio.create_task(append(leased.actor, "a", 1, "m"))
    await asyncio.sleep(0)
    leased.lease.grant(1, 11.0, 10.0)
    assert (await asked).tag == wire.OK


async def test_what_was_done_past_the_lease_is_not_acknowledged(leased: Leased) -> None:
    hosted = leased.actor._hosted
    assert hosted is not None
    serve = hosted.serve

    async def slow(*args: Any) -> Any:
        answers = await serve(*args)
        leased.time = 11.0  # it froze here, and woke
        return answers

    hosted.serve = slow  # type: ignore[method-assign]
    assert (await append(leased.actor, "a", 1, "m")).tag == wire.CUT


async def test_an_outcome_is_not_collected_past_the_lease(leased: Leased) -> None:
    hosted = leased.actor._hosted
    assert hosted is not None
    part = wire.Part("", "get_latest_leaf", b"[[],{},[]]")
    done = asyncio.create_task(hosted._run(part, Countdown(1)))
    ticket = hosted.remains.ticket(done).data.decode()
    await done
    leased.time = 11.0
    (answer,) = wire.unpack_reply(await leased.actor.collect("a", 1, ticket, 0))
    assert answer.tag == wire.CUT


async def test_an_activation_of_an_ended_term_is_over(leased: Leased) -> None:
    leased.lease.grant(2, 0.0, 20.0)
    answer = await append(leased.actor, "a", 1, "m")
    assert isinstance(wire.load_error(answer.data), StaleEpochError)
    await until(lambda: leased.actor.ping().state is ActorState.IDLE)


async def test_changes_are_not_told_past_the_lease(leased: Leased) -> None:
    import pickle

    hosted = leased.actor._hosted
    assert hosted is not None
    hosted.follow()
    assert (await append(leased.actor, "a", 1, "m")).tag == wire.OK
    leased.time = 11.0
    page = pickle.loads(await leased.actor.changes("a", 1, 1, 0))
    assert (page.events, page.place, page.ended, page.lost) == ([], 1, True, True)
