"""Several nodes: placement, migration between them, drain, a node that dies."""

import asyncio
from typing import Any

import pytest

from sessions_actor.errors import ConversationNotFoundError, NoCapacityError

from .conftest import Deploy, message, until
from .test_crash import Writer

Nodes = dict[str, str]


async def test_a_conversation_moves_to_a_node_with_a_disk_of_its_own(
    deploy: Deploy, three_nodes: Nodes
) -> None:
    async with deploy(object_class="tests.cluster.hosts:Host") as client:
        name = "moves/apart"
        alice = client.get(name)
        session = alice.session()
        await session.append_messages([message(f"m{i}") for i in range(200)])
        await alice.session("drafts").append_message(message("d"))
        await session.search("Hello")
        await session.add_compaction("sum", "m1", "m3")
        assert await alice.call("count", 7) == 7
        before = [m async for m in session.history()]
        rows = [row async for row in session.history_rows()]
        await client.migrate(name, three_nodes["head"])  # it may have been made anywhere
        report = await client.migrate(name, three_nodes["apart"])
        assert report.target_node_id == three_nodes["apart"] != report.source_node_id
        assert report.messages == 201
        assert {"cf_agents_session_messages", "sessions_actor_kv"} <= set(report.tables)
        info = await client.info(name)
        assert (info.node_id, info.epoch) == (three_nodes["apart"], report.epoch)
        assert [m async for m in session.history()] == before
        assert [row async for row in session.history_rows()] == rows
        assert await alice.call("count") == 8
        assert [hit.id for hit in await session.search("Hello", limit=3)]
        assert await alice.verify() == []
        await client.hibernate(name)
        assert len(await session.get_message("m5")) == 3
        # Its file is on that node's disk alone, so that is where it wakes.
        assert (await client.info(name)).node_id == three_nodes["apart"]
        back = await client.migrate(name, three_nodes["head"])
        assert back.target_node_id == three_nodes["head"]
        assert [m async for m in session.history()] == before
        await client.delete(name)


async def test_migrations_while_writers_go_on(deploy: Deploy, three_nodes: Nodes) -> None:
    async with deploy() as client:
        names = [f"busy/{i}" for i in range(6)]
        writers = {name: Writer(client.get(name).session()) for name in names}
        await asyncio.gather(*(writer.came_to(5) for writer in writers.values()))
        for target in ("shared", "apart", "head"):
            reports = await asyncio.gather(
                *(client.migrate(name, three_nodes[target]) for name in names)
            )
            assert {r.target_node_id for r in reports} == {three_nodes[target]}
            await asyncio.gather(*(writer.came_to(3) for writer in writers.values()))
        for name, writer in writers.items():
            acknowledged = await writer.stop()
            stored = [m["id"] async for m in client.get(name).session().history()]
            assert stored == acknowledged
            await client.delete(name)


async def test_a_stream_goes_on_through_a_migration(deploy: Deploy, three_nodes: Nodes) -> None:
    async with deploy() as client:
        session = client.get("stream/moves").session()
        ids = [f"m{i}" for i in range(2000)]
        await session.append_messages([message(i, "x" * 400) for i in ids])
        for newest_first, node in ((False, "apart"), (True, "head")):
            seen = []
            async for one in session.history(newest_first=newest_first):
                seen.append(one["id"])
                if len(seen) == 3:
                    await client.migrate("stream/moves", three_nodes[node])
            assert seen == (ids[::-1] if newest_first else ids)
        await client.delete("stream/moves")


async def test_a_drained_node_holds_nothing(deploy: Deploy, three_nodes: Nodes) -> None:
    async with deploy() as client:
        names = [f"drain/{i}" for i in range(4)]
        for name in names:
            await client.get(name).session().append_message(message("m"))
            await client.migrate(name, three_nodes["apart"])
        await client.hibernate(names[0])
        told: list[Any] = []
        report = await client.drain(three_nodes["apart"], progress=told.append)
        assert report.failed == {}
        assert report.moved >= 4
        assert told
        nodes = {node.node_id: node for node in await client.nodes()}
        assert nodes[three_nodes["apart"]].state == "draining"
        assert nodes[three_nodes["apart"]].active == 0
        for name in names:
            assert await client.get(name).session().get_history() == [message("m")]
            assert (await client.info(name)).node_id != three_nodes["apart"]
        await client.undrain(three_nodes["apart"])
        with pytest.raises(ValueError, match="node"):
            await client.drain("nowhere")


async def test_migrations_that_cannot_be(deploy: Deploy, three_nodes: Nodes) -> None:
    async with deploy() as client:
        with pytest.raises(ConversationNotFoundError):
            await client.migrate("nobody")
        await client.get("alice").session().append_message(message("m"))
        with pytest.raises(ValueError, match="nowhere"):
            await client.migrate("alice", "nowhere")
        assert await client.get("alice").session().get_history() == [message("m")]


async def test_a_node_that_dies(deploy: Deploy, cluster: Any, three_nodes: Nodes) -> None:
    node = cluster.add_node(num_cpus=1)
    async with deploy(capacity_wait_s=20) as client:
        session = client.get("dies/alice").session()
        await session.append_message(message("m"))
        await client.migrate("dies/alice", node.node_id)
        writer = Writer(session)
        await writer.came_to(5)
        assert (await client.info("dies/alice")).node_id == node.node_id
        await asyncio.to_thread(cluster.remove_node, node, False)

        async def moved() -> bool:
            return bool((await client.info("dies/alice")).node_id not in (None, node.node_id))

        # An orphan may go on for as long as Ray takes to notice; the disk and its lock are one.
        await until(moved, "another node serves it", 100)
        await writer.came_to(5)
        acknowledged = await writer.stop()
        stored = [m["id"] async for m in session.history()]
        assert stored == ["m", *acknowledged]

        async def gone() -> bool:
            return node.node_id not in {one.node_id for one in await client.nodes()}

        await until(gone, "the node is gone from the list", 100)


async def test_without_another_node_there_is_no_drain(deploy: Deploy, three_nodes: Nodes) -> None:
    async with deploy() as client:
        await client.get("alice").session().append_message(message("m"))
        for node in ("shared", "apart"):
            await client.drain(three_nodes[node])
        with pytest.raises(NoCapacityError):
            await client.drain(three_nodes["head"])
        for node in ("shared", "apart"):
            await client.undrain(three_nodes[node])
        assert await client.get("alice").session().get_history() == [message("m")]
