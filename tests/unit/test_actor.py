"""An actor hosts one conversation after another and never takes one for the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessions_actor import StaleEpochError, wire
from sessions_actor.actor import ActivationSpec, ConversationActor
from sessions_actor.overload import Bounds
from sessions_actor.transfer_steps import size_step


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
    actor = ConversationActor(str(tmp_path))
    await actor.activate(spec("a", 3))
    assert (await append(actor, "a", 3, "m")).tag == wire.OK
    await actor.hibernate("a", 3)
    await actor.activate(spec("b", 3))
    assert (await append(actor, "b", 3, "m")).tag == wire.OK
    return actor


async def test_a_call_for_the_conversation_before_is_refused_and_writes_nothing(second):
    answer = await append(second, "a", 3, "stray")
    assert answer.tag == wire.ERROR
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
