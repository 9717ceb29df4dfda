"""The router's process: what it does when its directory can be written no more."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router import service
from router.directory import Directory
from router.service import Deployment, RouterActor
from router.settings import Settings
from sessions_actor.errors import OutputGateBrokenError, ReplicaUnavailableError, StorageError

from .fake_cluster import until


@pytest.fixture
def actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RouterActor:
    context = SimpleNamespace(get_node_id=lambda: "node-0", gcs_address="")
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr(service, "set_up", lambda *_, **__: None)
    return RouterActor(Settings(storage_root=tmp_path).model_dump_json(), "tests")


async def test_a_router_whose_directory_broke_ends_and_leaves_the_file_to_the_next(
    tmp_path: Path, actor: RouterActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, ends = Directory(tmp_path), list[int]()
    router = SimpleNamespace(directory=directory)

    async def start(*_: Any) -> Any:
        return SimpleNamespace(router=router)

    monkeypatch.setattr(Deployment, "start", start)
    monkeypatch.setattr(service, "BROKEN_LINGER_S", 0.01)
    monkeypatch.setattr("os._exit", ends.append)
    await actor.settings()
    await directory.prove()
    directory._storage._gate._break("the disk is full")
    with pytest.raises(OutputGateBrokenError, match="opened again by the next call"):
        await directory.prove()
    await until(lambda: ends == [1])
    directory.close()  # as the end of the process does
    following = Directory(tmp_path)
    await following.prove()
    following.close()


async def test_a_start_that_fails_leaves_nothing_running_and_says_what_is_full(
    tmp_path: Path, actor: RouterActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    class Upkeep(service.Upkeep):
        async def start(self, home_node_id: str, granting: Any = lambda: None) -> None:
            granting()
            begun.append(self)
            self._look_after(home_node_id)
            self._router.directory._storage._gate._break("the disk is full")

    class Cluster:
        def __init__(self, *_: Any) -> None:
            pass

        async def keep_agent(self, node_id: str) -> None:
            await until(lambda: False, 1e6)

    monkeypatch.setattr(service, "Upkeep", Upkeep)
    monkeypatch.setattr(service, "RayCluster", Cluster)
    monkeypatch.setattr("os._exit", lambda code: pytest.fail("it has callers to tell"))
    for _ in range(2):
        with pytest.raises(StorageError, match=r"cannot write its directory.*the disk is full"):
            await actor.settings()
        assert actor._granting is None
    first, second = begun
    await until(lambda: all(task.done() for task in first._looking_after.values()))
    await until(lambda: all(task.done() for task in second._looking_after.values()))


async def test_a_router_starts_although_the_store_of_its_directory_is_away(
    actor: RouterActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Upkeep(service.Upkeep):
        async def start(self, home_node_id: str, granting: Any = lambda: None) -> None:
            granting()

    async def unconfirmed(self: Directory) -> None:
        await prove(self)
        raise ReplicaUnavailableError("the store is away", 10.0)

    prove = Directory.prove
    monkeypatch.setattr(Directory, "prove", unconfirmed)
    monkeypatch.setattr(service, "Upkeep", Upkeep)
    monkeypatch.setattr(service, "RayCluster", lambda *_: SimpleNamespace())
    assert await actor.settings()
    deployment = actor._deployment
    assert deployment is not None
    deployment.watch.end()
    await deployment.jobs.close()
    await deployment.upkeep.abandon()
    deployment.router.directory.close()
