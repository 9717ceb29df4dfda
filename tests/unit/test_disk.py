"""The disk under a storage root: its identity, and chores."""

import threading
from pathlib import Path

import pytest

from sessions_actor.disk import (
    NODE_ROOT_VARIABLE,
    disk_id,
    file_bytes,
    remove_file,
    root_here,
)
from sessions_actor.errors import StorageError
from sessions_actor.storage import Storage


def test_a_disk_keeps_its_id(tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    first = disk_id(root)
    assert len(first) == 32
    assert disk_id(root) == first
    assert disk_id(tmp_path / "other") != first
    assert [file.name for file in root.iterdir()] == ["disk-id"]


def test_processes_at_once_agree_on_the_id(tmp_path: Path) -> None:
    found: list[str] = []
    begin = threading.Barrier(8)

    def ask() -> None:
        begin.wait()
        found.append(disk_id(tmp_path / "root"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("x")
    with pytest.raises(StorageError, match="root"):
        disk_id(tmp_path / "root")


def test_a_node_may_keep_files_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NODE_ROOT_VARIABLE, raising=False)
    assert root_here("/data") == Path("/data")
    monkeypatch.setenv(NODE_ROOT_VARIABLE, str(tmp_path))
    here = root_here("/data")
    assert here.parent == tmp_path
    assert root_here("/data") == here != root_here("/other")


def test_files_are_removed_unless_something_has_them_open(tmp_path: Path) -> None:
    assert remove_file(tmp_path, "conversations/ab/x.1.sqlite")
    storage = Storage(tmp_path / "x.sqlite")
    storage.kv.put("a", 1)
    assert file_bytes(tmp_path, "x.sqlite") > 0  # type: ignore[operator]
    assert not remove_file(tmp_path, "x.sqlite")
    storage.close()
    assert remove_file(tmp_path, "x.sqlite")
    assert file_bytes(tmp_path, "x.sqlite") is None
    assert list(tmp_path.iterdir()) == []
