"""An activation: ownership by epoch, identity, start and end; and the object's own face."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from sessions_actor.durable_object import DurableObject, ObjectState
from sessions_actor.errors import StaleEpochError, StorageCorruptError, StorageError
from sessions_actor.lifecycle import Lifecycle, LifecycleCapability
from sessions_actor.open_object import Activation, open_object
from sessions_actor.storage import Storage


class Plain(DurableObject):
    """A host without a lifecycle."""

    started = False

    async def on_start(self) -> None:
        self.started = True


class Failing(LifecycleCapability):
    """A capability whose startup or disposal fails."""

    def __init__(self, when: str) -> None:
        super().__init__("failing")
        self.when = when
        self.disposed = False

    async def on_start(self) -> None:
        self.lifecycle.storage.kv.put("begun", True)
        if self.when == "start":
            raise LookupError("no start")

    async def on_dispose(self) -> None:
        self.disposed = True
        if self.when == "dispose":
            raise LookupError("no end")


class FailsToStart(DurableObject):
    """A host that never starts."""

    last: "FailsToStart"

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        self.capability = Failing("start")
        Lifecycle.install(self).use(self.capability)
        type(self).last = self


class FailsToEnd(DurableObject):
    """A host that cannot be disposed of."""

    def __init__(self, state: ObjectState) -> None:
        super().__init__(state)
        Lifecycle.install(self).use(Failing("dispose"))


def read_meta(path: Path) -> dict[str, Any]:
    storage = Storage(path)
    try:
        return storage.meta.get_all()
    finally:
        storage.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.sqlite"


async def test_an_object_knows_its_name_state_and_storage(path: Path) -> None:
    async with open_object(Plain, name="alice", path=path, quota_bytes=1_000_000) as alice:
        assert isinstance(alice, Plain)
        assert alice.started
        assert (alice.name, alice.state.name, alice.state.epoch) == ("alice", "alice", 0)
        assert alice.storage is alice.state.storage
        assert alice.storage.quota_bytes == 1_000_000
        assert alice.storage.path == str(path)
        await alice.storage.put("key", "kept")
    async with open_object(Plain, name="alice", path=path) as again:
        assert again is not alice
        assert await again.storage.get("key") == "kept"


async def test_the_file_says_whose_it_is(path: Path) -> None:
    async with open_object(Plain, name="ali\x00ce/🗝", path=path):
        pass
    first = read_meta(path)
    assert first["name"] == "ali\x00ce/🗝"
    assert first["epoch"] == 0
    assert first["created_at"] > 1_700_000_000_000
    async with open_object(Plain, name="ali\x00ce/🗝", path=path, epoch=4):
        pass
    assert read_meta(path) == {**first, "epoch": 4}


@pytest.mark.parametrize("name", ["", "n" * 1025, "\ud800", None, 7, b"alice"])
def test_a_bad_name_is_refused_before_anything_is_made(path: Path, name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        open_object(Plain, name=name, path=path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("cls", [object, Plain.__init__, None, "app:Plain"])
def test_what_is_no_host_class_is_refused(path: Path, cls: Any) -> None:
    with pytest.raises(TypeError, match="DurableObject"):
        open_object(cls, name="alice", path=path)
    with pytest.raises(ValueError, match="epoch"):
        open_object(Plain, name="alice", path=path, epoch=-1)


async def test_a_stale_epoch_is_refused_and_writes_nothing(path: Path) -> None:
    async with open_object(Plain, name="alice", path=path, epoch=7):
        pass
    before = path.read_bytes()
    with pytest.raises(StaleEpochError) as caught:
        async with open_object(Plain, name="alice", path=path, epoch=6):
            pytest.fail("the object started")
    assert (caught.value.presented, caught.value.current) == (6, 7)
    assert pickle.loads(pickle.dumps(caught.value)).args == (6, 7)
    assert path.read_bytes() == before


async def test_the_same_epoch_may_be_activated_again(path: Path) -> None:
    for epoch in (3, 3, 8):
        async with open_object(Plain, name="alice", path=path, epoch=epoch) as alice:
            assert alice.state.epoch == epoch


async def test_without_an_epoch_the_file_s_is_kept(path: Path) -> None:
    async with open_object(Plain, name="alice", path=path, epoch=7):
        pass
    async with open_object(Plain, name="alice", path=path) as alice:
        assert alice.state.epoch == 7
    assert read_meta(path)["epoch"] == 7


async def test_reopening_with_nothing_new_writes_nothing(path: Path) -> None:
    async with open_object(Plain, name="alice", path=path, epoch=1):
        pass
    before = path.stat().st_mtime_ns
    async with open_object(Plain, name="alice", path=path, epoch=1):
        pass
    assert path.stat().st_mtime_ns == before


async def test_a_used_up_quota_does_not_stop_an_activation(path: Path) -> None:
    async with open_object(Plain, name="alice", path=path) as alice:
        alice.storage.sql.exec("CREATE TABLE big (data)")
        alice.storage.sql.exec("INSERT INTO big VALUES (zeroblob(300000))")
    async with open_object(Plain, name="alice", path=path, epoch=9, quota_bytes=100_000) as alice:
        assert alice.state.epoch == 9


async def test_an_owner_fences_itself_when_the_file_goes_on_without_it(path: Path) -> None:
    async with open_object(Plain, name="alice", path=path, epoch=1) as alice:
        thief = Storage(path, lock=False)
        thief.meta.put({"epoch": 2})
        thief.close()
        with pytest.raises(StaleEpochError):
            await alice.storage.put("key", "lost")
    storage = Storage(path)
    assert storage.kv.get("key") is None
    storage.close()


async def test_two_activations_of_one_file_do_not_meet(path: Path) -> None:
    async with open_object(Plain, name="alice", path=path):
        with pytest.raises(StorageError, match="has it open already"):
            async with open_object(Plain, name="alice", path=path):
                pytest.fail("the object started twice")


async def test_a_failed_startup_disposes_and_frees_the_file(path: Path) -> None:
    with pytest.raises(LookupError, match="no start"):
        async with open_object(FailsToStart, name="alice", path=path):
            pytest.fail("the object started")
    assert FailsToStart.last.capability.disposed
    assert read_meta(path)["name"] == "alice"


async def test_a_failed_disposal_is_told_and_frees_the_file(path: Path) -> None:
    with pytest.raises(ExceptionGroup):
        async with open_object(FailsToEnd, name="alice", path=path):
            pass
    assert read_meta(path)["name"] == "alice"


async def test_what_the_body_raises_comes_out_and_the_file_is_closed(path: Path) -> None:
    async def body() -> None:
        async with open_object(Plain, name="alice", path=path) as alice:
            alice.storage.kv.put("key", "kept")
            raise LookupError

    with pytest.raises(LookupError):
        await body()
    storage = Storage(path)
    assert storage.kv.get("key") == "kept"
    storage.close()


async def test_a_foreign_file_is_refused(path: Path) -> None:
    path.write_text("not a database at all")
    with pytest.raises(StorageCorruptError):
        async with open_object(Plain, name="alice", path=path):
            pytest.fail("the object started")
    assert path.read_text() == "not a database at all"


async def test_an_activation_is_started_once_at_a_time(path: Path) -> None:
    activation = Activation(Plain, name="alice", path=path)
    with pytest.raises(RuntimeError, match="not active"):
        _ = activation.host
    host = await activation.start()
    assert activation.host is host
    assert activation.storage is host.storage
    with pytest.raises(RuntimeError, match="is active already"):
        await activation.start()
    await activation.close()
    await activation.close()
    with pytest.raises(RuntimeError, match="not active"):
        _ = activation.host
    assert await activation.start() is not host
    await activation.close()
