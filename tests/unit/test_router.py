"""The router over a fake cluster: real actors and files, deaths and restarts at will."""

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from router.directory import Directory, Owner, State
from router.relocation import Relocation
from sessions_actor.actor import ActivationSpec, ActorState
from sessions_actor.errors import (
    ConversationNotFoundError,
    MigrationFailedError,
    NoCapacityError,
    StorageCorruptError,
)

from .deployments import Deployment, World, ids, message
from .fake_cluster import until


async def test_the_first_call_creates_and_the_next_finds(world: World) -> None:
    life = await world.start()
    first = await life.router.resolve("alice")
    assert (first.name, first.epoch) == ("alice", 1)
    assert await life.router.resolve("alice") == first
    entry = life.directory.get("alice")
    assert entry is not None
    assert entry.state is State.ACTIVE


async def test_callers_at_once_share_one_activation(world: World) -> None:
    life = await world.start()
    found = await asyncio.gather(*(life.router.resolve("alice") for _ in range(20)))
    assert len({address.epoch for address in found}) == 1
    assert world.cluster.starts == 1


async def test_an_order_to_start_that_comes_late_binds_nobody(world: World) -> None:
    """Its answer was lost, the actor looked idle: whoever uses it next would find it bound."""
    life = await world.start()
    await life.get("bob").append_message(message("m"))
    await life.administration.hibernate("bob")
    [(actor, _)] = world.cluster.actors.values()
    run, late = actor._run, []

    async def lost_on_the_way(name: str, args: Any, kwargs: Any) -> Any:
        if name == "activate" and not late:
            late.append((name, args, kwargs))
            raise ActorUnavailableError("the connection broke", None)
        return await run(name, args, kwargs)

    actor._run = lost_on_the_way  # type: ignore[method-assign]
    resolving = asyncio.ensure_future(life.router.resolve("alice"))
    await until(lambda: late)
    outcome = asyncio.ensure_future(run(*late[0]))
    await asyncio.wait_for(resolving, 10)
    await asyncio.wait([outcome])
    await life.get("alice").append_message(message("m"))
    await life.get("bob").append_message(message("n"))
    assert await ids(life.get("bob")) == ["m", "n"]


async def test_a_live_owner_is_not_taken_away_by_a_complaint(world: World) -> None:
    life = await world.start()
    address = await life.router.resolve("alice")
    assert await life.router.resolve("alice", address.epoch) == address


async def test_a_dead_owner_is_replaced_under_the_next_epoch(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m"))
    life.owner("alice").die()
    assert await ids(session) == ["m"]
    entry = life.directory.get("alice")
    assert entry is not None
    assert entry.epoch == 2


async def test_a_silent_owner_is_ended_before_another_starts(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m"))
    silent = life.owner("alice")
    silent.silent = True
    address = await life.router.resolve("alice", 1)
    assert address.epoch == 2
    assert silent.dead
    assert await ids(session) == ["m"]


async def two_machines(world: World) -> Deployment:
    """A deployment whose nodes mount one disk on two machines, which file locks do not join."""
    world.cluster.roots["node-1"] = world.root
    life = await world.start()
    for node_id in ("node-0", "node-1"):
        life.router.pool.set_disk(node_id, life.router.disk_id, node_id)
        await life.directory.note_node(
            node_id, life.router.disk_id, draining=False, machine_id=node_id
        )
    return life


async def test_an_owner_that_was_ended_here_is_not_taken_for_one_that_died(world: World) -> None:
    """It is called dead at once, however long its process still runs: two looked at it."""
    life = await world.start()
    await life.get("alice").append_message(message("m"))
    serving = life.router.serving("alice")
    assert serving is not None
    serving.slot.actor.silent = True
    letting_go = asyncio.create_task(life.router.let_go(serving))
    await until(lambda: "hibernate" in serving.slot.actor.calls)
    assert not await life.router.is_alive(serving)
    await letting_go
    entry = life.directory.get("alice")
    assert entry is not None
    assert (entry.state, entry.actor) == (State.ACTIVE, serving.slot.actor_name)


async def test_a_source_that_was_ended_for_its_silence_is_not_taken_for_one_that_died(
    world: World,
) -> None:
    life = await world.start()
    await life.get("alice").append_message(message("m"))
    serving = life.router.serving("alice")
    assert serving is not None
    await life.router.kill(serving.slot)
    await life.router.bury(serving)
    entry = life.directory.get("alice")
    assert entry is not None
    assert entry.state is State.ACTIVE


async def test_an_actor_that_is_bound_by_a_late_order_is_told_to_nobody(world: World) -> None:
    """An earlier router's order reached it after it had said that it is idle."""
    life = await world.start()
    await life.get("bob").append_message(message("m"))
    await life.administration.hibernate("bob")
    [(actor, _)] = world.cluster.actors.values()
    serving_spec = ActivationSpec(
        name="carol",
        epoch=7,
        file="conversations/carol.7.sqlite",
        quota_bytes=1 << 30,
        object_class=life.router.settings.object_class,
        bounds=life.router.settings.bounds,
    )
    await actor.target.receive(serving_spec)
    await life.get("bob").append_message(message("n"))
    assert await ids(life.get("bob")) == ["m", "n"]
    assert all(not slot.actor.dead for slot in life.router.pool.slots)


async def test_a_router_that_starts_does_not_take_a_silent_owner_for_one_that_let_go(
    world: World,
) -> None:
    first = await two_machines(world)
    await first.router.resolve("alice")
    first.owner("alice").silent = True
    await first.die()
    second = await world.start()
    entry = second.directory.get("alice")
    assert entry is not None
    # It was killed, which may not have arrived: until it is outlasted it may acknowledge.
    assert (entry.state, entry.epoch) == (State.ACTIVE, 1)


async def test_an_owner_that_does_not_answer_when_it_shall_hibernate_is_not_taken_for_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.router.HIBERNATE_TIMEOUT_S", 0.05)
    life = await two_machines(world)
    await life.router.resolve("alice")
    life.owner("alice").silent = True
    serving = life.router.serving("alice")
    assert serving is not None
    assert await life.router.let_go(serving)
    assert life.router.serving("alice") is None
    entry = life.directory.get("alice")
    assert entry is not None
    assert (entry.state, entry.epoch) == (State.ACTIVE, 1)


async def test_hibernation_frees_the_actor_and_waking_uses_it_again(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m"))
    await life.administration.hibernate("alice")
    info = await life.administration.info("alice")
    assert (info.state, info.pid, info.epoch) == ("hibernated", None, 1)
    assert info.file_bytes > 0
    await life.administration.hibernate("alice")
    assert await ids(session) == ["m"]
    assert (await life.administration.info("alice")).epoch == 2
    assert world.cluster.starts == 1


async def test_unknown_names(world: World) -> None:
    life = await world.start()
    for work in (
        life.administration.info("x"),
        life.administration.hibernate("x"),
        life.administration.set_quota("x", 1_000_000),
        life.relocation.migrate("x"),
    ):
        with pytest.raises(ConversationNotFoundError, match="'x'"):
            await work
    assert not await life.administration.delete("x")
    for wrong in ("", "x" * 2000):
        with pytest.raises(ValueError, match="name"):
            await life.router.resolve(wrong)


async def test_more_conversations_than_actors(world: World) -> None:
    life = await world.start(max_active=2)
    for turn in range(2):
        for i in range(10):
            await life.get(f"c{i}").append_message(message(f"m{turn}"))
    assert world.cluster.starts <= 2
    for i in range(10):
        assert await ids(life.get(f"c{i}")) == ["m0", "m1"]


async def test_many_writers_take_turns_on_few_actors(world: World) -> None:
    life = await world.start(max_active=2)

    async def write(name: str) -> None:
        session = life.get(name)
        for i in range(5):
            await session.append_message(message(f"m{i}"))

    await asyncio.gather(*(write(f"c{i}") for i in range(12)))
    for i in range(12):
        assert await ids(life.get(f"c{i}")) == [f"m{j}" for j in range(5)]


async def test_without_room_a_new_conversation_leaves_no_trace(world: World) -> None:
    life = await world.start(max_active=1, capacity_wait_s=0.1)
    busy = await life.router.resolve("busy")
    async with life.router.locks.hold("busy"):  # it cannot be evicted
        with pytest.raises(NoCapacityError):
            await life.router.resolve("late")
    assert life.directory.get("late") is None
    assert await life.router.resolve("busy") == busy


async def test_what_cannot_start_is_told_and_blocks_nothing(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m"))
    await life.administration.hibernate("alice")
    entry = life.directory.get("alice")
    assert entry is not None
    file = world.root / entry.file
    good = file.read_bytes()
    file.write_bytes(b"a foreign file, not a database at all" * 20)
    with pytest.raises(StorageCorruptError, match="not a sound"):
        await session.get_history()
    assert file.read_bytes().startswith(b"a foreign file")  # it is left as it was
    file.write_bytes(good)
    assert await ids(session) == ["m"]


async def test_a_file_that_is_ahead_of_the_directory_is_followed(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m"))
    await life.administration.hibernate("alice")
    entry = life.directory.get("alice")
    assert entry is not None
    from sessions_actor.storage import Storage

    storage = Storage(world.root / entry.file)
    storage.meta.put({"epoch": 50})
    storage.close()
    assert await ids(session) == ["m"]
    after = life.directory.get("alice")
    assert after is not None
    assert after.epoch == 51


async def test_deletion_removes_the_file_and_a_new_one_starts_empty(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_message(message("m"))
    before = life.directory.get("alice")
    assert before is not None
    assert await life.administration.delete("alice")
    assert not (world.root / before.file).exists()
    assert await life.administration.page("", None, 10) == []
    assert await ids(session) == []
    after = life.directory.get("alice")
    assert after is not None
    assert after.epoch > before.epoch
    await life.administration.hibernate("alice")
    assert await life.administration.delete("alice")
    assert not list(world.root.glob("conversations/*/*.sqlite"))


# ------------------------------------------------------------------------- the router restarts


async def test_a_router_that_starts_finds_the_owners(world: World) -> None:
    first = await world.start()
    session = first.get("alice")
    await session.append_message(message("m"))
    address = await first.router.resolve("alice")
    await first.die()
    second = await world.start()
    assert await second.router.resolve("alice") == address
    assert world.cluster.starts == 1


async def test_a_router_that_starts_settles_owners_that_died(world: World) -> None:
    first = await world.start()
    await first.get("alice").append_message(message("m"))
    await first.get("bob").append_message(message("m"))
    await first.die()
    for actor, _ in world.cluster.actors.values():
        actor.die()
    second = await world.start()
    assert [e.state for e in second.directory.unsettled()] == []
    assert await ids(second.get("alice")) == ["m"]


async def test_an_owner_the_directory_does_not_know_lets_go(world: World) -> None:
    first = await world.start()
    await first.get("alice").append_message(message("m"))
    owner = first.owner("alice")
    await first.directory.hibernate("alice", 1, file_bytes=None, last_active_at=None)
    await first.die()
    second = await world.start()
    assert owner.target.ping().state is ActorState.IDLE
    assert second.router.serving("alice") is None
    assert await ids(second.get("alice")) == ["m"]


async def test_a_half_made_activation_is_settled(world: World) -> None:
    first = await world.start()
    slot = await first.router.pool.acquire("x", lambda views: views, 5)
    # Killed between the directory and the actor.
    await first.directory.create("alice", Owner(slot.node_id, slot.actor_name, slot.disk_id))
    await first.die()
    second = await world.start()
    assert second.directory.unsettled() == []
    await second.get("alice").append_message(message("m"))
    assert (await second.administration.info("alice")).epoch == 2


async def test_a_half_made_deletion_is_finished(world: World) -> None:
    first = await world.start()
    await first.get("alice").append_message(message("m"))
    entry = await first.directory.begin_delete("alice", 1)
    assert entry is not None
    await first.die()
    second = await world.start()
    assert second.directory.get("alice") is None
    await second.router.sweeping.sweep(second.router.disk_id)
    assert not (world.root / entry.file).exists()


@pytest.mark.parametrize("died_at", ["begin", "receive", "seal", "promote", "switch"])
async def test_a_half_made_migration_ends_in_one_owner(world: World, died_at: str) -> None:
    first = await world.start()
    session = first.get("alice")
    await session.append_message(message("m"))
    source = first.router.serving("alice")
    assert source is not None
    slot = await first.router.pool.acquire("alice", lambda views: views, 5, grow=True)
    target = Owner(slot.node_id, slot.actor_name, slot.disk_id)
    entry = await first.directory.begin_migration("alice", 1, target)
    assert entry is not None
    spec = ActivationSpec(
        "alice", 2, entry.file.replace(".1.", ".2."), 10**9, source.spec.object_class
    )
    steps = ["begin", "receive", "seal", "promote", "switch"]
    done = steps[: steps.index(died_at) + 1]
    if "receive" in done:
        await slot.actor.receive.remote(spec)
    if "seal" in done:
        await source.slot.actor.seal.remote(source.name, 1, 0)
    if "promote" in done:
        await slot.actor.promote.remote(source.name, 2)
    if "switch" in done:
        assert await first.directory.switch("alice", 1, target) is not None
    await first.die()
    second = await world.start()
    serving = second.router.serving("alice")
    assert serving is not None
    assert serving.epoch == (2 if died_at == "switch" else 1)
    hosting = [
        actor for actor, _ in world.cluster.actors.values()
        if actor.target.ping().state is ActorState.HOSTING
    ]  # fmt: skip
    assert hosting == [serving.slot.actor]
    await second.get("alice").append_message(message("after"))
    assert len(second.router.pool.slots) == 2
    await second.router.sweeping.sweep(second.router.disk_id)
    files = [f for f in world.root.glob("conversations/*/*.sqlite")]
    assert len(files) == 1


async def test_a_silent_actor_is_ended_when_a_router_starts(world: World) -> None:
    first = await world.start()
    await first.get("alice").append_message(message("m"))
    owner = first.owner("alice")
    owner.silent = True
    await first.die()
    second = await world.start()
    assert owner.dead
    assert await ids(second.get("alice")) == ["m"]


async def test_an_owner_that_cannot_be_reached_when_a_router_starts_is_ended(world: World) -> None:
    first = await world.start()
    await first.get("alice").append_message(message("m"))
    owner = first.owner("alice")
    await first.die()
    world.cluster.unreached.append(owner)
    second = await world.start()
    assert owner.dead
    assert await ids(second.get("alice")) == ["m"]


# --------------------------------------------------------------------------------- migration


async def test_a_migration_moves_everything_and_retires_the_source(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    await session.append_messages([message(f"m{i}") for i in range(50)])
    before = life.directory.get("alice")
    report = await life.relocation.migrate("alice")
    assert (report.name, report.epoch, report.messages) == ("alice", 2, 50)
    assert report.bytes > 0
    assert await ids(session) == [f"m{i}" for i in range(50)]
    assert before is not None
    assert not (world.root / before.file).exists()
    assert [view.idle for view in life.router.pool.views()] == [1]


async def test_a_migration_that_fails_leaves_the_source_serving(world: World) -> None:
    life = await world.start()

    async def copy(name: str, source: Any, target: Any, *rest: Any) -> Any:
        raise OSError("the network is gone")

    life.relocation = Relocation(life.router, copy)
    session = life.get("alice")
    await session.append_message(message("m"))
    with pytest.raises(MigrationFailedError, match="the network is gone"):
        await life.relocation.migrate("alice")
    await session.append_message(message("n"))
    info = await life.administration.info("alice")
    assert (info.state, info.epoch) == ("active", 1)
    assert [view.idle for view in life.router.pool.views()] == [1]
    files = [f for f in world.root.glob("conversations/*/*.sqlite")]
    assert len(files) == 1


@pytest.mark.parametrize("who", ["source", "target"])
async def test_a_side_that_dies_in_a_migration_loses_nothing(world: World, who: str) -> None:
    life = await world.start()

    async def copy(name: str, source: Any, target: Any, *rest: Any) -> Any:
        (source if who == "source" else target).actor.die()
        await source.actor.transfer.remote(source.name, source.epoch, None)
        await target.actor.transfer.remote(target.name, target.epoch, None)

    life.relocation = Relocation(life.router, copy)
    session = life.get("alice")
    await session.append_message(message("m"))
    with pytest.raises(MigrationFailedError):
        await life.relocation.migrate("alice")
    await session.append_message(message("n"))
    assert await ids(session) == ["m", "n"]


async def test_writers_wait_through_a_migration(world: World) -> None:
    life = await world.start()
    session = life.get("alice")
    stop = False
    written: list[str] = []

    async def write() -> None:
        while not stop:
            await session.append_message(message(f"w{len(written)}"))
            written.append(f"w{len(written)}")

    writer = asyncio.create_task(write())
    for _ in range(3):
        await until(lambda: len(written) >= 5)
        await life.relocation.migrate("alice")
        await until(lambda: len(written) % 7 == 0)
    stop = True
    await writer
    assert await ids(session) == written


async def test_many_migrations_at_once_do_not_starve_each_other(world: World) -> None:
    life = await world.start(max_active=4, capacity_wait_s=5)
    names = [f"c{i}" for i in range(8)]
    for name in names:
        await life.get(name).append_message(message("m"))
    reports = await asyncio.gather(*map(life.relocation.migrate, names))
    assert [report.messages for report in reports] == [1] * 8
    for name in names:
        assert await ids(life.get(name)) == ["m"]


async def test_an_unknown_node_is_named(world: World) -> None:
    life = await world.start()
    await life.get("alice").append_message(message("m"))
    with pytest.raises(ValueError, match=r"'nowhere'.*node-0"):
        await life.relocation.migrate("alice", "nowhere")


# ------------------------------------------------------------------------------------- nodes


async def test_a_node_that_is_gone_takes_its_actors_along(world: World) -> None:
    world.cluster.roots["node-1"] = world.root
    life = await world.start()
    address = await life.router.resolve("alice")
    serving = life.router.serving("alice")
    assert serving is not None
    gone = serving.slot.node_id
    del world.cluster.roots[gone]
    serving.slot.actor.die()
    await life.upkeep._look_around()
    assert life.router.serving("alice") is None
    after = await life.router.resolve("alice", address.epoch)
    assert after.epoch == 2


async def test_idle_conversations_hibernate_by_themselves(world: World) -> None:
    life = await world.start(idle_timeout_s=0.05)
    await life.get("alice").append_message(message("m"))
    await until(lambda: life.router.serving("alice") is None)
    assert (await life.administration.info("alice")).state == "hibernated"


async def test_a_router_that_shuts_down_leaves_everything_asleep(world: World) -> None:
    life = await world.start()
    for i in range(3):
        await life.get(f"c{i}").append_message(message("m"))
    await life.upkeep.close()
    world.lives.clear()
    assert all(
        actor.target.ping().state is ActorState.IDLE for actor, _ in world.cluster.actors.values()
    )
    directory = Directory(world.root)
    assert directory.unsettled() == []
    directory.close()


async def test_a_frozen_owner_does_not_stop_upkeep(world: World) -> None:
    life = await world.start(idle_timeout_s=0.05, lease_ttl_s=60)
    await life.get("frozen").append_message(message("m"))
    frozen = life.owner("frozen")
    frozen.silent = True
    await asyncio.sleep(0.2)  # it is idle by now, and asked to let go
    await life.get("other").append_message(message("m"))
    await until(lambda: life.router.serving("other") is None)
    entry = life.directory.get("other")
    assert entry is not None
    assert entry.state is State.HIBERNATED
    frozen.die()


async def test_limits_on_clients_hold_in_every_actor_a_conversation_moves_to(world: World) -> None:
    life = await world.start(client_parts_max=1)
    session = life.get("alice")
    two = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "a"}] * 2}
    for _ in range(2):
        with pytest.raises(ValueError, match="client_parts_max is 1"):
            await session.append_message(two, source="client")
        await life.relocation.migrate("alice")
    assert (await session.append_message(two)).inserted
