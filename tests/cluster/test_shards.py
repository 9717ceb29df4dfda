"""A deployment whose directory is split over several routers, on a real cluster."""

import asyncio
from typing import Any

import pytest

from router.shards import Shard, shard_of
from sessions_actor.errors import ConversationNotFoundError, StorageError

from .conftest import Deploy, end_deployment, message, until

Nodes = dict[str, str]
SHARDS = 2
PATIENCE: dict[str, Any] = {"capacity_wait_s": 120, "call_timeout_s": 180}


async def test_two_routers_serve_one_deployment(deploy: Deploy, three_nodes: Nodes) -> None:
    import ray

    names = [f"c{i}" for i in range(8)]
    assert {shard_of(name, SHARDS) for name in names} == {0, 1}
    async with deploy(router_shards=SHARDS, max_active=7, warm_actors=2, **PATIENCE) as client:
        for name in names:
            await client.get(name).session().append_message(message("m"))
        assert await client.list() == names
        assert await client.list(limit=3, after="c1") == ["c2", "c3", "c4"]
        assert {node.max_active for node in await client.nodes()} == {7}
        with pytest.raises(ConversationNotFoundError):
            await client.info("nobody")
        for name in names[:4]:
            await client.migrate(name, three_nodes["apart"])
        drained = await client.drain(three_nodes["apart"])
        assert (drained.state, drained.failed) == ("done", {})
        assert drained.moved >= 4
        (job,) = await client.jobs()
        assert (job.id, job.moved) == (drained.id, drained.moved)
        await client.undrain(three_nodes["apart"])
        assert {node.state for node in await client.nodes()} == {"alive"}
        for index in range(SHARDS):
            router = ray.get_actor(Shard(index, SHARDS).router_name, client._namespace)
            ray.kill(router, no_restart=False)
        await client.delete(names[0])
        assert await client.list() == names[1:]
        for name in names[1:]:
            assert await client.get(name).session().get_history() == [message("m")]
        namespace = client._namespace
    with pytest.raises(ValueError, match="router_shards is 2, not 1"):
        async with deploy(router_shards=1, **PATIENCE):
            pass
    await asyncio.to_thread(end_deployment, namespace)

    async def refused() -> bool:
        try:
            async with deploy(router_shards=1, max_active=7, warm_actors=2, **PATIENCE):
                return False
        except StorageError as error:  # or the file is locked until the old process has gone
            return "split over 2 routers, not 1" in str(error)

    await until(refused, "a start with another number is refused", 60)
