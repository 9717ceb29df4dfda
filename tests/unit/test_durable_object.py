"""The class people derive from."""

import dataclasses
from pathlib import Path

import pytest

from sessions_actor.durable_object import DurableObject, ObjectState
from sessions_actor.storage import Storage


async def test_an_object_is_its_name_and_its_storage(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "a.sqlite")
    state = ObjectState("alice", storage, epoch=3)
    alice = DurableObject(state)
    assert alice.state is state
    assert (alice.name, alice.storage, alice.state.epoch) == ("alice", storage, 3)
    assert alice.installed_lifecycle is None
    await alice.on_start()
    storage.close()


def test_the_state_cannot_be_changed(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "a.sqlite")
    state = ObjectState("alice", storage)
    assert state.epoch == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.epoch = 1  # type: ignore[misc]
    storage.close()
