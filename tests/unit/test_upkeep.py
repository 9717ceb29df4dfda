"""A router's life around its calls: its start and what tends the nodes."""

import asyncio
from typing import Any

import pytest

from router import upkeep
from sessions_actor.actor import ActorState

from .deployments import World, message


@pytest.mark.parametrize("state", [ActorState.HOSTING, ActorState.ENDING, ActorState.RECEIVING])
async def test_actors_that_hang_do_not_keep_a_router_from_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch, state: ActorState
) -> None:
    """As when code of the hosted class never returns: a lock in the actor is held for ever."""
    monkeypatch.setattr(upkeep, "HIBERNATE_TIMEOUT_S", 0.2)
    first = await world.start()

    async def none_makes_room(node_id: str, **_: Any) -> bool:
        return False

    first.router.pool._evict = none_makes_room  # each has an actor of its own
    owners = []
    for name in ("alice", "bob", "carol"):
        await first.get(name).append_message(message("m"))
        owners.append(first.owner(name))
    for owner in owners:
        assert not owner.target._change.locked()
        await owner.target._change.acquire()
        owner.target._binding = owner.target._binding._replace(state=state)
    await first.die()
    second = await asyncio.wait_for(world.start(), 20)
    assert all(owner.dead for owner in owners)
    assert (await second.get("alice").append_message(message("n"))).inserted
