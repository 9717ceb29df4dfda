"""A directory whose replica cannot be reached for a while: what it was asked for is made."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from sessions_actor.actor import ActorState
from sessions_actor.errors import ReplicaUnavailableError

from .deployments import Deployment, World, ids, message
from .fake_cluster import until

CHANGES = ("hibernate", "note_file", "forget_new", "abandon_migration", "begin_migration")


@contextlib.contextmanager
def away(life: Deployment, *changes: str) -> Iterator[list[str]]:
    """Have changes of the directory raise after they are made; gives what was asked for."""
    asked: list[str] = []

    def late(name: str) -> Any:
        change = getattr(life.directory, name)

        async def run(*args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            await change(*args, **kwargs)
            raise ReplicaUnavailableError("the store is away", 10.0)

        return run

    for name in changes:
        setattr(life.directory, name, late(name))
    try:
        yield asked
    finally:
        for name in changes:
            delattr(life.directory, name)


def nothing_leaked(world: World, life: Deployment) -> bool:
    """Whether each actor that is taken serves somebody, and each that serves is known."""
    taken = [slot.name for slot in life.router.pool.slots if slot.name is not None]
    served = [serving.name for serving in life.router.servings()]
    states = [a.target.ping() for a, _ in world.cluster.actors.values() if not a.dead]
    hosting = [bound.name for bound in states if bound.state is ActorState.HOSTING]
    return sorted(taken) == sorted(served) == sorted(hosting)


async def test_a_switch_that_is_made_is_never_undone(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m1"))
    durable, tries = life.directory.durable, []

    async def later() -> None:
        tries.append(life.router.serving("alice"))
        if len(tries) < 3:
            raise ReplicaUnavailableError("the store is away", 10.0)
        await durable()

    life.directory.durable = later  # type: ignore[method-assign]
    source = life.router.serving("alice")
    with away(life, "switch"):
        report = await life.relocation.migrate("alice")
    assert report.epoch == 2
    assert tries == [source] * 3, "the target is not given out before the switch is confirmed"
    await session.append_message(message("m2"))
    await life.administration.hibernate("alice")
    await life.upkeep._look_around()
    assert await ids(session) == ["m1", "m2"]
    assert nothing_leaked(world, life)


async def test_whoever_lets_go_gives_its_actor_back(world: World) -> None:
    life = await world.start(max_active=1, capacity_wait_s=5)
    with away(life, *CHANGES) as asked:
        await life.get("alice").append_message(message("m"))
        await life.administration.hibernate("alice")
        await life.get("bob").append_message(message("m"))  # on the one actor there is
        life.owner("bob").die()
        await life.get("alice").append_message(message("n"))
    assert {"hibernate", "note_file"} <= set(asked)
    assert nothing_leaked(world, life)
    assert await ids(life.get("alice")) == ["m", "n"]
    assert await ids(life.get("bob")) == ["m"]
    await until(lambda: nothing_leaked(world, life))


async def test_a_move_that_fails_leaves_its_source_serving(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m1"))
    with away(life, "begin_migration", "abandon_migration"):
        outcome = await asyncio.gather(life.relocation.migrate("alice"), return_exceptions=True)
    assert isinstance(outcome[0], Exception)
    await session.append_message(message("m2"))
    assert await ids(session) == ["m1", "m2"]
    assert nothing_leaked(world, life)


@pytest.mark.parametrize("change", ["create", "activate"])
async def test_an_owner_that_could_not_be_confirmed_is_followed(world: World, change: str) -> None:
    life = await world.start()
    if change == "activate":
        await life.get("alice").append_message(message("m"))
        await life.administration.hibernate("alice")
    with away(life, change), pytest.raises(ReplicaUnavailableError):
        await life.router.resolve("alice")
    await life.get("alice").append_message(message("n"))
    assert (await ids(life.get("alice")))[-1] == "n"
    assert nothing_leaked(world, life)


async def test_a_deletion_is_carried_out_whole_and_told_once_it_is_confirmed(world: World) -> None:
    life = await world.start()
    await life.get("alice").append_message(message("m"))
    durable = life.directory.durable

    async def late() -> None:
        raise ReplicaUnavailableError("the store is away", 10.0)

    life.directory.durable = late  # type: ignore[method-assign]
    with away(life, "begin_delete", "finish_delete"):
        for _ in range(2):
            with pytest.raises(ReplicaUnavailableError):
                await life.administration.delete("alice")
    life.directory.durable = durable  # type: ignore[method-assign]
    assert not await life.administration.delete("alice")
    assert not list(world.root.glob("conversations/*/*.sqlite"))
    assert nothing_leaked(world, life)
    assert await ids(life.get("alice")) == []
