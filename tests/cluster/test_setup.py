"""What can be wrong with a deployment: each a clear error, nothing lost."""

import os
from pathlib import Path

import pytest

from router import Settings, connect
from sessions_actor.errors import RemoteCallError, StorageCorruptError, StorageError

from .conftest import Deploy, message


async def test_a_folder_that_cannot_be_written(deploy: Deploy, tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("not a folder")
    with pytest.raises(StorageError, match="a file"):
        async with deploy(storage_root=blocked / "data"):
            pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_folder_without_permission(deploy: Deploy, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(StorageError, match="permission"):
        async with deploy():
            pass


async def test_a_foreign_file_where_a_database_should_be(deploy: Deploy, tmp_path: Path) -> None:
    async with deploy() as client:
        session = client.get("alice").session()
        await session.append_message(message("m"))
        await client.get("bob").session().append_message(message("m"))
        await client.hibernate("alice")
        (file,) = [
            f for f in (tmp_path / "data" / "conversations").rglob("*.sqlite")
            if not Path(f"{f}.lock").exists()
        ]  # fmt: skip
        good = file.read_bytes()
        file.write_bytes(b"\x89PNG\r\n\x1a\n a picture" * 100)
        with pytest.raises(StorageCorruptError, match="not a sound conversation file"):
            await session.append_message(message("n"))
        assert file.read_bytes().startswith(b"\x89PNG")
        assert (await client.info("alice")).state == "hibernated"
        assert (await client.get("bob").session().append_message(message("n"))).inserted
        file.write_bytes(good)
        assert await session.get_history() == [message("m")]


async def test_a_class_that_is_not_there(deploy: Deploy) -> None:
    async with deploy(object_class="tests.cluster.hosts:Missing") as client:
        with pytest.raises(AttributeError, match="Missing"):
            await client.get("alice").session().append_message(message("m"))
        assert await client.list() == []
    async with deploy(object_class="tests.cluster.hosts:Missing") as client:
        assert await client.list() == []


async def test_a_module_that_is_not_there(deploy: Deploy) -> None:
    async with deploy(object_class="no_such_module:Class") as client:
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            await client.get("alice").session().append_message(message("m"))


async def test_a_class_that_is_no_conversation(deploy: Deploy) -> None:
    async with deploy(object_class="pathlib:Path") as client:
        with pytest.raises(TypeError, match="DurableObject"):
            await client.get("alice").session().append_message(message("m"))


async def test_a_class_that_fails_at_its_start(deploy: Deploy) -> None:
    async with deploy(object_class="tests.cluster.hosts:FailsAtStart") as client:
        for _ in range(2):
            with pytest.raises((LookupError, RemoteCallError), match="weights are missing"):
                await client.get("alice").session().append_message(message("m"))


async def test_settings_that_differ_from_the_running_ones(deploy: Deploy) -> None:
    async with deploy(warm_actors=1) as client:
        with pytest.raises(ValueError, match="warm_actors is 1, not 3"):
            async with deploy(warm_actors=3):
                pass
        async with deploy(call_timeout_s=7) as other:
            assert other.settings.call_timeout_s == 7
            assert other.settings.warm_actors == client.settings.warm_actors == 1


async def test_two_deployments_do_not_share_a_folder(deploy: Deploy, tmp_path: Path) -> None:
    from .conftest import end_deployment

    async with deploy():
        settings = Settings(storage_root=tmp_path / "data")
        try:
            with pytest.raises(StorageError, match="another deployment"):
                async with connect(namespace="test-second", settings=settings):
                    pass
        finally:
            end_deployment("test-second")


async def test_a_private_cluster_is_refused_inside_another(deploy: Deploy) -> None:
    with pytest.raises(RuntimeError, match="in a cluster already"):
        async with connect("local"):
            pass


async def test_deleting_lists_and_epochs(deploy: Deploy) -> None:
    async with deploy() as client:
        for name in ("b", "a/2", "a/1", "c"):
            await client.get(name).session().append_message(message("m"))
        assert await client.list() == ["a/1", "a/2", "b", "c"]
        assert await client.list("a/") == ["a/1", "a/2"]
        assert [name async for name in client.list(limit=3)] == ["a/1", "a/2", "b"]
        assert await client.list(after="a/2", limit=1) == ["b"]
        before = await client.info("b")
        assert await client.delete("b")
        assert not await client.delete("b")
        assert await client.list() == ["a/1", "a/2", "c"]
        session = client.get("b").session()
        assert await session.get_history() == []
        assert (await client.info("b")).epoch > before.epoch
