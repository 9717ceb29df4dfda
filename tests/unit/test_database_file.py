"""Opening, locking and removing one database file."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from sessions_actor.database_file import FileLock, remove_database
from sessions_actor.errors import OutputGateBrokenError, StorageCorruptError, StorageError
from sessions_actor.storage import Storage

needs_permissions = pytest.mark.skipif(
    os.geteuid() == 0, reason="the superuser is not refused anything"
)


def make(path: Path) -> None:
    storage = Storage(path)
    storage.kv.put("key", "kept")
    storage.close()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make(tmp_path / "a.sqlite")
    return tmp_path / "a.sqlite"


def test_files_and_folders_are_private_to_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "one" / "two" / "a.sqlite"
    storage = Storage(path)
    storage.kv.put("key", 1)
    modes = {
        entry.name: stat.S_IMODE(entry.stat().st_mode)
        for entry in [path.parent, path.parent.parent, *path.parent.iterdir()]
    }
    assert modes == {
        "one": 0o700,
        "two": 0o700,
        "a.sqlite": 0o600,
        "a.sqlite-wal": 0o600,
        "a.sqlite-shm": 0o600,
        "a.sqlite.lock": 0o600,
    }
    storage.close()


def test_a_closed_file_stands_alone(made: Path) -> None:
    assert [entry.name for entry in made.parent.iterdir()] == ["a.sqlite"]


def test_the_connection_is_durable_and_defensive(made: Path) -> None:
    storage = Storage(made)
    pragma = storage.connection.pragma
    assert pragma("journal_mode") == "wal"
    assert pragma("synchronous") == 2
    assert pragma("trusted_schema") == 0
    assert pragma("foreign_keys") == 1
    assert storage.connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1)
    storage.close()


def test_a_relative_path_stays_the_same_file_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = Storage("a.sqlite")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    storage.kv.put("key", 1)
    storage.close()
    assert storage.path == str(tmp_path / "a.sqlite")
    assert [entry.name for entry in (tmp_path / "elsewhere").iterdir()] == []


@pytest.mark.parametrize("name", [":memory:", "file:a?mode=memory", "a b#c%d", "é日本"])
def test_a_path_is_a_path_and_nothing_else(tmp_path: Path, name: str) -> None:
    make(tmp_path / name)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


# ----------------------------------------------------------------------------------------- lock


def test_a_second_opener_is_refused_until_the_first_closes(made: Path) -> None:
    first = Storage(made)
    with pytest.raises(StorageError, match="this process has it open already") as caught:
        Storage(made)
    assert caught.value.path == str(made)
    first.kv.put("key", "still mine")
    first.close()
    second = Storage(made)
    assert second.kv.get("key") == "still mine"
    second.close()


def test_the_lock_survives_a_removed_lock_file(made: Path) -> None:
    """Who holds the removed file holds nothing: the path leads to another one."""
    lock, path = FileLock(str(made)), str(made)
    lock.acquire()
    os.unlink(f"{path}.lock")
    other = FileLock(path)
    other.acquire()
    assert os.path.exists(f"{path}.lock")
    other.release()
    lock.release()
    lock.release()


def test_a_lock_left_by_a_dead_process_is_free(made: Path) -> None:
    Path(f"{made}.lock").write_text("999999 gone\n")
    make(made)
    assert not os.path.exists(f"{made}.lock")


def test_a_failed_opening_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_text("a foreign file")
    with pytest.raises(StorageCorruptError):
        Storage(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.sqlite"]


# --------------------------------------------------------------------------- what is not opened


def foreign_files(made: Path) -> Iterator[tuple[str, bytes]]:
    good = made.read_bytes()
    yield "one byte", b"x"
    yield "text", b"Dear diary,\n" * 1000
    yield "JSON", b'{"messages": []}'
    yield "an image", b"\x89PNG\r\n\x1a\n" + bytes(5000)
    yield "header alone", good[:16]
    yield "truncated in the first page", good[:1000]
    yield "truncated after it", good[:4096]
    yield "header and noise", good[:16] + os.urandom(8000)
    yield "noise in the schema", good[:100] + b"\xff" * 3996 + good[4096:]
    yield "a later format", good[:18] + b"\x09\x09" + good[20:]


def test_a_foreign_or_damaged_file_is_refused_and_left_as_it_is(made: Path) -> None:
    for what, content in foreign_files(made):
        path = made.parent / "foreign.sqlite"
        path.write_bytes(content)
        with pytest.raises(StorageCorruptError) as caught:
            Storage(path)
        assert caught.value.path == str(path), what
        assert caught.value.check, what
        assert path.read_bytes() == content, what
        assert {entry.name for entry in path.parent.iterdir()} == {"a.sqlite", "foreign.sqlite"}


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "a.sqlite").touch()
    make(tmp_path / "a.sqlite")


def test_damage_found_later_is_told_and_leaves_the_rest_readable(made: Path) -> None:
    storage = Storage(made)
    storage.sql.exec("CREATE TABLE big (id INTEGER PRIMARY KEY, text)")
    storage.sql.exec("INSERT INTO big VALUES (1, ?)", "x" * 20_000)
    page = storage.fetch("SELECT rootpage FROM sqlite_schema WHERE name = 'big'")[0][0]
    storage.close()
    with made.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)

    storage = Storage(made)
    with pytest.raises(StorageCorruptError):
        storage.fetch("SELECT * FROM big")
    assert storage.check() != []
    assert storage.kv.get("key") == "kept"
    storage.kv.put("key", "still works")
    assert storage.broken is None

    with pytest.raises(StorageCorruptError):
        storage.sql.exec("INSERT INTO big VALUES (2, '')")
    with pytest.raises(OutputGateBrokenError, match="the file is damaged"):
        storage.kv.put("key", "lost")
    storage.close()
    storage = Storage(made)
    assert storage.kv.get("key") == "still works"
    storage.close()


async def test_who_meets_damage_while_others_write_is_told_of_it(made: Path) -> None:
    storage = Storage(made)
    storage.sql.exec("CREATE TABLE big (id INTEGER PRIMARY KEY, text)")
    page = storage.fetch("SELECT rootpage FROM sqlite_schema WHERE name = 'big'")[0][0]
    storage.close()
    with made.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)

    storage = Storage(made)
    outcomes = await asyncio.gather(
        storage.put("key", "other"),
        storage.submit(lambda: storage.fetch("SELECT * FROM big")),
        storage.put("key", "later"),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [
        OutputGateBrokenError,
        StorageCorruptError,
        OutputGateBrokenError,
    ]
    storage.close()
    storage = Storage(made)
    assert storage.kv.get("key") == "kept"
    storage.close()


def test_a_folder_or_device_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="a folder is there"):
        Storage(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        Storage(tmp_path / "pipe")


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="choose another path"):
        Storage(tmp_path / "file" / "a.sqlite")
    with pytest.raises(StorageError, match="choose another path"):
        Storage(tmp_path / "file" / "deeper" / "a.sqlite")


def test_a_name_too_long_for_the_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="too long"):
        Storage(tmp_path / ("n" * 300))


@needs_permissions
def test_what_may_not_be_written_is_refused_with_advice(made: Path) -> None:
    made.chmod(0o400)
    with pytest.raises(StorageError, match="permission denied; check the owner and mode"):
        Storage(made)
    made.chmod(0o600)
    made.parent.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="permission denied; check the owner and mode"):
            Storage(made.parent / "b.sqlite")
        with pytest.raises(StorageError, match="permission denied; check the owner and mode"):
            Storage(made.parent / "folder" / "b.sqlite")
    finally:
        made.parent.chmod(0o700)


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(RuntimeError, match=r"SQLite 3\.51\.2 is too old: 3\.51\.3 is needed"):
        Storage(tmp_path / "a.sqlite")


# ------------------------------------------------------------------------------------- removing


def test_removing_takes_everything_along(made: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{made}{suffix}").touch()
    other = made.with_name("b.sqlite")
    make(other)
    remove_database(made)
    assert list(made.parent.iterdir()) == [other]
    remove_database(made)
    remove_database(made.parent / "no folder" / "a.sqlite")


def test_what_is_open_is_not_removed(made: Path) -> None:
    storage = Storage(made)
    with pytest.raises(StorageError, match="has it open already"):
        remove_database(made)
    assert storage.kv.get("key") == "kept"
    storage.close()
    assert made.exists()
